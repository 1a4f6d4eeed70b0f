// The two descriptors of tcgen05.mma: the 64-bit shared-memory matrix descriptor (also of
// tcgen05.cp) and the 32-bit instruction descriptor of every kind, decoded from their bits and
// validated. Sources: PTX ISA 9.0 "Shared memory descriptor", "Instruction descriptor", "Matrix
// shape"; cute/arch/mma_sm100_desc.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "numerics/format.h"

namespace sm100sim::tensorcore {

using Errors = std::vector<std::string>;

enum class SwizzleMode : uint8_t { kNone = 0, k128BAtom32B = 1, k128B = 2, k64B = 4, k32B = 6 };

struct MatrixDescriptor {
  uint32_t start = 0;  // bytes, within the 18-bit window
  uint32_t leading = 0;
  uint32_t stride = 0;
  uint32_t base_offset = 0;       // 0..7, in units of 128 bytes
  bool leading_absolute = false;  // sm_103a only
  SwizzleMode swizzle = SwizzleMode::kNone;
};

// `what` names the operand in messages ("a-desc").
MatrixDescriptor decode_matrix_descriptor(uint64_t bits, const char* what, Errors* errors);

enum class Kind : uint8_t { kF16, kTf32, kF8f6f4, kI8, kMxf8f6f4, kMxf4, kMxf4nvf4 };
const char* name(Kind kind);
bool block_scaled(Kind kind);

// .scale_vec::1X/2X/4X, or .block32/.block16, or nothing.
enum class ScaleVector : uint8_t { kDefault, k1X, k2X, k4X, kBlock32, kBlock16 };

struct InstructionDescriptor {
  Kind kind = Kind::kF16;
  numerics::Format a = numerics::Format::kF16, b = numerics::Format::kF16;
  numerics::Format d = numerics::Format::kF32;  // kF16 or kF32; kI8 accumulates in s32
  bool a_signed = true, b_signed = true;        // kI8
  bool saturate = false;                        // kI8
  bool negate_a = false, negate_b = false;
  bool transpose_a = false, transpose_b = false;  // true = MN-major in shared memory
  int m = 0, n = 0, k = 0;                        // of the whole pair with cta_group::2
  numerics::Format scale = numerics::Format::kUe8m0;
  int scale_a_id = 0, scale_b_id = 0;
  int scales_per_row = 0;  // 1, 2 or 4 along K; 0 for the unscaled kinds
};

struct InstructionContext {
  Kind kind;
  int cta_group;  // 1 or 2
  ScaleVector scale_vector = ScaleVector::kDefault;
  bool weight_stationary = false;  // .ws
  bool arch_specific = true;       // sm_100a: kind::i8 and .scale_vec::NX exist; false = sm_100f
};

InstructionDescriptor decode_instruction_descriptor(uint32_t bits,
                                                    const InstructionContext& context,
                                                    Errors* errors);

// Bits of one element in its shared-memory container: 16, 32, 8 (f8f6f4 kinds, whatever the type),
// or 4 (mxf4 kinds).
int container_bits(Kind kind);

}  // namespace sm100sim::tensorcore
