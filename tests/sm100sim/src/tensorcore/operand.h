// Where the elements of A and B lie: the canonical K-major and MN-major layouts of shared memory in
// every swizzle mode, and A in tensor memory. Fetching decodes each operand once into exact values
// and exponents, with one poison flag a row.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcore/descriptor.h"
#include "tensorcore/ports.h"

namespace sm100sim::tensorcore {

// Exponent that marks a zero, and the lowest-bit exponent of an all-zero row: both lose every
// comparison.
inline constexpr int kZeroExponent = -4000;
inline constexpr int kNoLowestBit = 4000;

// XOR of a swizzle mode on a byte address. Anchored on absolute addresses when the base offset is
// 0; otherwise the pattern starts `base_offset` lines of 128 bytes later.
uint32_t swizzle_address(SwizzleMode mode, uint32_t address, uint32_t base_offset = 0);

// K-major: address of 16-byte chunk `chunk` (along K) of row `row`.
uint32_t k_major_chunk(const MatrixDescriptor& descriptor, int row, int chunk);
// MN-major: address of the 16-byte chunk that holds rows row_chunk*T .. +T-1 (T = elements in 16
// bytes) of column k.
uint32_t mn_major_chunk(const MatrixDescriptor& descriptor, int row_chunk, int k);

// One operand, decoded. Element (row, k) at [row * row_step + k * k_step]: rows of A are
// contiguous, columns of B are.
struct Operand {
  Operand() = default;
  Operand(int rows, int k, bool k_contiguous);

  int rows = 0, k = 0, row_step = 0, k_step = 0;
  std::vector<double> value;        // NaN and infinities as they are
  std::vector<int16_t> exponent;    // as the tensor core aligns: subnormals keep the format's
                                    // smallest exponent; zeros kZeroExponent
  std::vector<int16_t> lowest_bit;  // per row: exponent of the lowest set bit of any element
  std::vector<uint8_t> special;     // per row: holds a NaN or an infinity
  std::vector<uint8_t> poisoned;    // per row
};

struct OperandShape {
  numerics::Format format = numerics::Format::kF16;
  int container_bits = 16;
  int rows = 0;  // to fetch from this CTA
  int k = 0;
  bool mn_major = false;
  bool negate = false;
  bool integer = false, is_signed = true;  // kI8: values are the integers, exponents unused
};

// Fetches `shape.rows` rows of one CTA into rows first.. of `out`.
void fetch_shared(const MatrixDescriptor& descriptor, const OperandShape& shape, int cta,
                  SharedPort& port, int first, Operand* out);

// A from tensor memory: row r lies in lane lanes[r]. f8f6f4 kinds have one element a byte (E2M1 in
// bits 5:2, 6-bit types in bits 5:0); the other kinds are packed.
void fetch_tmem(uint32_t address, const OperandShape& shape, int cta, const std::vector<int>& lanes,
                TmemPort& port, Operand* out);

// The 16-byte chunks that fetch_shared will read, as ranges.
void shared_footprint(const MatrixDescriptor& descriptor, const OperandShape& shape, int cta,
                      std::vector<SharedRange>* out);

}  // namespace sm100sim::tensorcore
