// Scalar arithmetic of PTX: f32 in every rounding mode, f16/bf16 scalars and packed pairs, f32x2,
// minimum and maximum, and the approximate functions. Everything is computed exactly (or with a
// sticky bit) and rounded once. Approximate functions are the exact mathematics rounded to nearest:
// the hardware's last bits are not specified, so no test may depend on them.
#pragma once

#include <cstdint>

#include "numerics/convert.h"

namespace sm100sim::numerics {

struct F32Mode {
  Round round = Round::kNearestEven;
  bool ftz = false;  // subnormal inputs and results become zero of the same sign
  bool sat = false;  // clamp to [0, 1], NaN to +0
};

uint32_t add_f32(uint32_t a, uint32_t b, const F32Mode& mode = {});
uint32_t mul_f32(uint32_t a, uint32_t b, const F32Mode& mode = {});
uint32_t fma_f32(uint32_t a, uint32_t b, uint32_t c, const F32Mode& mode = {});
uint32_t div_f32(uint32_t a, uint32_t b, const F32Mode& mode = {});
uint32_t sqrt_f32(uint32_t a, const F32Mode& mode = {});
uint32_t ftz_f32(uint32_t a);

// f32x2: two independent operations on the halves of a 64-bit register.
uint64_t add_f32x2(uint64_t a, uint64_t b, const F32Mode& mode = {});
uint64_t mul_f32x2(uint64_t a, uint64_t b, const F32Mode& mode = {});
uint64_t fma_f32x2(uint64_t a, uint64_t b, uint64_t c, const F32Mode& mode = {});

// Mixed precision: add/sub/fma.<round>.f32.{f16,bf16}: the narrow operands are widened exactly
// first.
uint32_t add_f32_narrow(Format narrow, uint32_t a, uint32_t c, bool subtract,
                        const F32Mode& mode = {});
uint32_t fma_f32_narrow(Format narrow, uint32_t a, uint32_t b, uint32_t c,
                        const F32Mode& mode = {});

struct HalfMode {
  bool ftz = false;  // f16 only
  bool sat = false;
  bool relu = false;  // fma only
};

// `format` is kF16 or kBf16; round to nearest even. The x2 forms work on both halves of a 32-bit
// register.
uint16_t add_half(Format format, uint16_t a, uint16_t b, const HalfMode& mode = {});
uint16_t sub_half(Format format, uint16_t a, uint16_t b, const HalfMode& mode = {});
uint16_t mul_half(Format format, uint16_t a, uint16_t b, const HalfMode& mode = {});
uint16_t fma_half(Format format, uint16_t a, uint16_t b, uint16_t c, const HalfMode& mode = {});
uint32_t add_half2(Format format, uint32_t a, uint32_t b, const HalfMode& mode = {});
uint32_t sub_half2(Format format, uint32_t a, uint32_t b, const HalfMode& mode = {});
uint32_t mul_half2(Format format, uint32_t a, uint32_t b, const HalfMode& mode = {});
uint32_t fma_half2(Format format, uint32_t a, uint32_t b, uint32_t c, const HalfMode& mode = {});

struct MinMaxMode {
  bool ftz = false;
  bool nan = false;  // .NaN: any NaN input gives the canonical NaN; otherwise the number wins
  bool xorsign_abs = false;  // .xorsign.abs: compare magnitudes, sign = XOR of the input signs
  bool abs = false;          // .abs of the three-input form
};

// kF32, kF16 or kBf16 codes. -0 < +0. Two NaNs give the canonical NaN.
uint32_t min_max(Format format, uint32_t a, uint32_t b, bool maximum, const MinMaxMode& mode = {});
uint32_t min_max_half2(Format format, uint32_t a, uint32_t b, bool maximum,
                       const MinMaxMode& mode = {});

enum class Approx : uint8_t { kEx2, kLg2, kRcp, kRsqrt, kSqrt, kTanh, kSin, kCos };

// kF32, kF16 or kBf16 codes in and out. PTX leaves sqrt/rcp/rsqrt/lg2 of special values to the
// usual limits.
uint32_t approximate(Approx function, Format format, uint32_t a, bool ftz = false);

// Round-to-odd helpers, exact up to a sticky bit: correct inputs for encode() into any format with
// at most 50 bits.
double odd_add(double a, double b);
double odd_fma(double a, double b,
               double c);  // a*b must be exact in double (f32 or narrower factors)

}  // namespace sm100sim::numerics
