// Which bits mean which number: the table of every floating format that PTX conversions, TMA and
// the tensor core touch. Decoding is exact (every value of every format is a double). Rounding into
// a format is convert.h. Encodings follow PTX ISA "Alternate floating-point data formats", OCP MX
// v1.0 for the MX types.
#pragma once

#include <cstdint>

namespace sm100sim::numerics {

enum class Format : uint8_t {
  kF64,
  kF32,
  kTf32,
  kF16,
  kBf16,
  kE5m2,
  kE4m3,
  kE3m2,
  kE2m3,
  kE2m1,
  kUe8m0,
  kUe4m3
};

// How a format spends its top exponent code.
enum class Special : uint8_t {
  kIeee,     // infinities and NaNs
  kNanOnly,  // all ones is NaN, no infinity (E4M3, UE4M3, UE8M0)
  kNone,     // finite numbers only (E3M2, E2M3, E2M1)
};

struct FormatInfo {
  const char* name;  // as PTX spells it
  int bits;          // of the code; TF32 is kept in 32 bits with 13 low zeros
  int exponent_bits;
  int mantissa_bits;  // stored fraction
  int bias;
  bool has_sign;
  Special special;
  uint64_t canonical_nan;  // 0 where there is none
  double max_finite;
};

const FormatInfo& info(Format format);

// The value of a code; bits above the format's width are ignored. NaN gives a quiet NaN.
double decode(Format format, uint64_t code);

bool is_nan(Format format, uint64_t code);

}  // namespace sm100sim::numerics
