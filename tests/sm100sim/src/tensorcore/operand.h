// Where the elements of A and B lie: the canonical K-major and MN-major layouts of shared memory in every swizzle mode, and A in tensor
// memory. Fetching decodes each operand once, to significands and exponents, with one poison flag a row.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcore/descriptor.h"
#include "tensorcore/ports.h"

namespace sm100sim::tensorcore {

// XOR of a swizzle mode on a byte address (anchored on absolute addresses when base offset is 0).
uint32_t swizzle_address(SwizzleMode mode, uint32_t address, uint32_t base_offset = 0);

// K-major: address of 16-byte chunk `chunk` (along K) of row `row`.
uint32_t k_major_chunk(const MatrixDescriptor& descriptor, int row, int chunk);
// MN-major: address of the 16-byte chunk that holds rows `row_chunk`*T .. +T-1 (T = elements in 16 bytes) of column k.
uint32_t mn_major_chunk(const MatrixDescriptor& descriptor, int row_chunk, int k);

// One operand, decoded. Values are exact; row r, element k at [r * k_size + k].
struct Operand {
  int rows = 0, k_size = 0;
  std::vector<double> value;       // NaN and infinities as they are
  std::vector<int16_t> exponent;   // of the value as the tensor core aligns it: not normalised below the format's smallest normal
  std::vector<uint8_t> poisoned;   // per row
};

struct OperandShape {
  numerics::Format format;
  int container_bits;
  int rows;          // to fetch from this CTA
  int k;
  bool mn_major;
  bool negate;
  bool integer = false, is_signed = true;  // kI8
};

// Appends the rows of one CTA.
void fetch_shared(const MatrixDescriptor& descriptor, const OperandShape& shape, int cta, SharedPort& port, Operand* out);

// A from tensor memory: `lane_of_row[r]` for each row. 8-bit containers for f8f6f4 kinds (E2M1 in bits 5:2), packed otherwise.
void fetch_tmem(uint32_t address, const OperandShape& shape, int cta, const std::vector<int>& lane_of_row, TmemPort& port,
                Operand* out);

// The shared bytes that fetch_shared will read.
void shared_footprint(const MatrixDescriptor& descriptor, const OperandShape& shape, int cta, std::vector<SharedRange>* out);

}  // namespace sm100sim::tensorcore
