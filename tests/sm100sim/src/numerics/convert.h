// Rounding an exact real into a format, with every rounding and saturation mode of PTX `cvt`, and
// the packed spellings of the instruction. All sources (f32, f16, bf16, narrow floats) are exact
// doubles, so one routine serves every pair of formats.
#pragma once

#include <cstdint>

#include "numerics/format.h"

namespace sm100sim::numerics {

enum class Round : uint8_t {
  kNearestEven,  // .rn
  kTowardZero,   // .rz
  kDown,         // .rm
  kUp,           // .rp
  kNearestAway,  // .rna (tf32)
  kStochastic,   // .rs: carry out of (discarded bits + random bits)
};

struct Conversion {
  Round round = Round::kNearestEven;
  bool satfinite = false;  // .satfinite: clamp to the largest finite value; where the format has no
                           // NaN it becomes +max
  bool relu = false;    // .relu: negative results (and -0) become +0, NaN becomes the canonical NaN
  bool sat = false;     // .sat: clamp to [0, 1], NaN becomes +0
  uint32_t random = 0;  // random bits of .rs, right-aligned
  int random_bits = 0;  // how many of them the discarded part is compared with
};

// The code of x in `to`. UE8M0 drops the sign first, as PTX does. A NaN becomes the format's
// canonical NaN.
uint64_t encode(Format to, double x, const Conversion& how = {});

// The same for bits of another format: preserves nothing of a NaN's payload.
uint64_t convert(Format to, Format from, uint64_t code, const Conversion& how = {});

// cvt.<round>.<to>x2.f32 d, a, b: `a` goes to the upper part. Parts are 4 bits wide for E2M1, 8
// bits for the 6- and 8-bit formats (6-bit codes in the low bits, top two zero), 16 for f16/bf16.
// With kStochastic `how.random` is the whole rbits operand (f16x2: 13 low bits of each half;
// bf16x2: 16 bits of each half).
uint32_t pack2(Format to, float a, float b, const Conversion& how);

// cvt.rs.<to>x4.f32 d, {a, b, e, f}, rbits: from the top part down. F8/F6: the upper 16 random bits
// serve a and b, the lower e and f (one value for both of a pair, as the text reads). E2M1: the
// upper bytes of both halves serve a (upper half) and b (lower half), the lower bytes e and f; that
// split inside a pair is inferred.
uint32_t pack4(Format to, float a, float b, float e, float f, const Conversion& how);

// cvt.<to>x2.<from>x2 d, a: part by part (f16x2/bf16x2 to narrow, narrow to f16x2/bf16x2, ue8m0x2
// to bf16x2).
uint32_t repack2(Format to, Format from, uint32_t a, const Conversion& how = {});

// Width in bits of one part of a packed register.
int part_bits(Format format);

// cvt to integers: .rni/.rzi/.rmi/.rpi, clamped to the destination; NaN gives 0, or the top bit for
// f64 sources and 64-bit results.
uint64_t to_integer(double x, Round round, int bits, bool is_signed, bool from_f64);
// cvt.rXi.f32.f32 and the like: an integral value in the same format.
double to_integral(double x, Round round);
// cvt from integers, correctly rounded also for 64-bit values.
uint64_t from_integer(Format to, uint64_t value, bool is_signed, const Conversion& how);

}  // namespace sm100sim::numerics
