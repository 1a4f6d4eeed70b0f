// The format table and exact decoding. See format.h.
#include "numerics/format.h"

#include <bit>
#include <cmath>
#include <limits>

namespace sm100sim::numerics {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// name, bits, exponent bits, mantissa bits, bias, sign, special codes, canonical NaN, largest
// finite value
constexpr FormatInfo kFormats[] = {
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

}  // namespace

const FormatInfo& info(Format format) { return kFormats[static_cast<int>(format)]; }

double decode(Format format, uint64_t code) {
  if (format == Format::kF64) return std::bit_cast<double>(code);
  if (format == Format::kF32) return std::bit_cast<float>(static_cast<uint32_t>(code));
  const FormatInfo& f = info(format);
  if (format == Format::kTf32)
    return std::bit_cast<float>(static_cast<uint32_t>(code) & 0xFFFFE000u);
  const int exponent = static_cast<int>(code >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
  const int mantissa = static_cast<int>(code) & ((1 << f.mantissa_bits) - 1);
  const bool negative = f.has_sign && (code >> (f.bits - 1) & 1);
  const bool top = exponent == (1 << f.exponent_bits) - 1;
  double value;
  if (format == Format::kUe8m0) {  // no fraction, no subnormals: 0 is 2^-127
    value = top ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent - f.bias);
  } else if (top && f.special == Special::kIeee) {
    value = mantissa ? std::numeric_limits<double>::quiet_NaN() : kInf;
  } else if (top && f.special == Special::kNanOnly && mantissa == (1 << f.mantissa_bits) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  } else {
    value = std::ldexp((1 << f.mantissa_bits) + mantissa, exponent - f.bias - f.mantissa_bits);
  }
  return negative ? -value : value;
}

bool is_nan(Format format, uint64_t code) { return std::isnan(decode(format, code)); }

}  // namespace sm100sim::numerics
