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

// name, bits, exponent bits, mantissa bits, bias, sign, special codes, canonical NaN, largest
// finite value
inline constexpr FormatInfo kFormats[] = {
    {"f64", 64, 11, 52, 1023, true, Special::kIeee, 0x7FFFFFFFFFFFFFFF, 0x1.fffffffffffffp1023},
    {"f32", 32, 8, 23, 127, true, Special::kIeee, 0x7FFFFFFF, 0x1.fffffep127},
    {"tf32", 32, 8, 10, 127, true, Special::kIeee, 0x7FFFFFFF, 0x1.ffcp127},
    {"f16", 16, 5, 10, 15, true, Special::kIeee, 0x7FFF, 65504.0},
    {"bf16", 16, 8, 7, 127, true, Special::kIeee, 0x7FFF, 0x1.fep127},
    {"e5m2", 8, 5, 2, 15, true, Special::kIeee, 0x7F, 57344.0},
    {"e4m3", 8, 4, 3, 7, true, Special::kNanOnly, 0x7F, 448.0},
    {"e3m2", 6, 3, 2, 3, true, Special::kNone, 0, 28.0},
    {"e2m3", 6, 2, 3, 1, true, Special::kNone, 0, 7.5},
    {"e2m1", 4, 2, 1, 1, true, Special::kNone, 0, 6.0},
    {"ue8m0", 8, 8, 0, 127, false, Special::kNanOnly, 0xFF, 0x1p127},
    {"ue4m3", 8, 4, 3, 7, false, Special::kNanOnly, 0x7F, 448.0},
};

constexpr const FormatInfo& info(Format format) { return kFormats[static_cast<int>(format)]; }

// The value of a code; bits above the format's width are ignored. NaN gives a quiet NaN.
double decode(Format format, uint64_t code);

bool is_nan(Format format, uint64_t code);

}  // namespace sm100sim::numerics
