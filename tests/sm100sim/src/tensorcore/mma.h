// One tcgen05.mma: decode, fetch the operands, accumulate. The three steps are separate so that the machine can place them in time; none of
// them waits. Arithmetic is arithmetic.h, operand walks operand.h, scale factors scale_factors.h.
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
  uint32_t scale_a_tmem = 0, scale_b_tmem = 0;  // block-scaled kinds
  bool enable_input_d = true;
  int scale_input_d = 0;                            // D * 2^-n first; f16 and tf32 kinds
  std::array<uint32_t, 8> disable_output_lane{};    // 4 words used with cta_group::1
  Arithmetic arithmetic = Arithmetic::kModel;
};

// Where row m (of this CTA's part) and column n of D lie.
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

  // Everything the operation reads and writes.
  void footprint(std::vector<SharedRange>* shared, std::vector<TmemRect>* tmem) const;

  // Reads A, B and the scale factors of all CTAs of the group.
  void fetch(SharedPort& shared, TmemPort& tmem);
  // D = A * B (+ D): reads and writes the accumulator. After fetch().
  void accumulate(TmemPort& tmem);

  // Rows of D that one CTA holds, and their place.
  int rows_per_cta() const;
  DCell d_cell(int row, int column) const;

 private:
  void accumulate_cta(int cta, TmemPort& tmem);
  std::vector<int> a_lanes() const;
  OperandShape a_shape() const;
  OperandShape b_shape() const;

  MmaRequest request_;
  InstructionDescriptor descriptor_;
  MatrixDescriptor a_descriptor_, b_descriptor_;
  Errors errors_;
  std::array<Operand, 2> a_;  // per CTA; M=128 pairs hold 128 rows: lanes 0-63 for the first half of N, 64-127 for the second
  Operand b_;                 // all N rows
  std::array<Scales, 2> scale_a_, scale_b_;
};

}  // namespace sm100sim::tensorcore
