// One tcgen05.mma: decode, fetch the operands, accumulate. The three steps are separate so that the
// machine can place them in time; none of them waits. Arithmetic is arithmetic.h, operand walks
// operand.h, scale factors scale_factors.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tensorcore/arithmetic.h"
#include "tensorcore/descriptor.h"
#include "tensorcore/operand.h"
#include "tensorcore/ports.h"
#include "tensorcore/scale_factors.h"

namespace sm100sim::tensorcore {

struct MmaRequest {
  InstructionContext context;
  uint32_t d_tmem = 0;
  bool a_in_tmem = false;
  uint64_t a = 0;  // descriptor, or tensor-memory address when a_in_tmem
  uint64_t b = 0;  // descriptor
  uint32_t instruction = 0;
  uint32_t scale_a_tmem = 0,
           scale_b_tmem =
               0;  // block-scaled kinds; bits 31:23 are ignored (CuTe keeps the id there)
  bool enable_input_d = true;
  int scale_input_d = 0;                          // D * 2^-n first; f16 and tf32 kinds
  std::array<uint32_t, 8> disable_output_lane{};  // words 0-3: the (even) CTA, 4-7: the odd one
  Arithmetic arithmetic = Arithmetic::kModel;
};

// Where an element of D lies.
struct DCell {
  int lane;    // 0..127
  int column;  // relative to the address
};

class Mma {
 public:
  explicit Mma(const MmaRequest& request);

  // Rules broken by the operands; nothing may be executed unless this is empty.
  const Errors& errors() const { return errors_; }
  const InstructionDescriptor& descriptor() const { return descriptor_; }
  int ctas() const { return request_.context.cta_group; }
  uint64_t multiply_adds() const;

  // Everything the operation reads and writes, of all CTAs of the group.
  void footprint(std::vector<SharedRange>* shared, std::vector<TmemRect>* tmem) const;

  // Reads A, B and the scale factors.
  void fetch(SharedPort& shared, TmemPort& tmem);
  // D = A * B (+ D): reads and writes the accumulator. After fetch().
  void accumulate(TmemPort& tmem);

  // Rows of D that one CTA holds, and their place.
  int rows_per_cta() const;
  DCell d_cell(int row, int column) const;

 private:
  int segments() const;  // parts of N that lie in different lanes: 1, 2 (64 rows) or 4 (32 rows)
  int columns_per_segment() const { return descriptor_.n / segments(); }
  bool half_lanes() const;
  void check_addresses();
  OperandShape shape_a() const;
  OperandShape shape_b() const;
  void fetch_scale_factors(int cta, TmemPort& tmem);
  // Lanes are physical rows; kRows consecutive ones share a partition and a segment.
  static constexpr int kRows = 8;
  void accumulate_rows(int cta, int physical_row, TmemPort& tmem);

  struct PartitionScales {
    Scales a, b;
    std::vector<uint8_t> b_special;  // of B and of its scales
    std::vector<uint8_t> b_poison;   // likewise: 0 or 15, as cells of D hold it
  };

  MmaRequest request_;
  InstructionDescriptor descriptor_;
  MatrixDescriptor a_descriptor_, b_descriptor_;
  Errors errors_;
  std::array<Operand, 2> a_;  // per CTA: its rows, or one row a lane when A lies in tensor memory
  Operand b_;                 // all columns, of both CTAs
  std::array<std::array<PartitionScales, 4>, 2> scales_;  // per CTA and 32-lane partition
};

}  // namespace sm100sim::tensorcore
