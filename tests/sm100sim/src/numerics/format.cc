// The format table and exact decoding. See format.h.
#include "numerics/format.h"

#include <bit>
#include <cmath>
#include <limits>

namespace sm100sim::numerics {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double power(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

}  // namespace

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
    value = top ? kNaN : power(exponent - f.bias);
  } else if (top && f.special == Special::kIeee) {
    value = mantissa ? kNaN : kInf;
  } else if (top && f.special == Special::kNanOnly && mantissa == (1 << f.mantissa_bits) - 1) {
    value = kNaN;
  } else if (exponent == 0) {
    value = mantissa * power(1 - f.bias - f.mantissa_bits);
  } else {
    const uint64_t biased = static_cast<uint64_t>(exponent - f.bias + 1023);
    value = std::bit_cast<double>(biased << 52 | static_cast<uint64_t>(mantissa)
                                                     << (52 - f.mantissa_bits));
  }
  return negative ? -value : value;
}

bool is_nan(Format format, uint64_t code) { return std::isnan(decode(format, code)); }

}  // namespace sm100sim::numerics
