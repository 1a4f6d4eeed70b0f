// Rounding into a format: integer arithmetic on the significand of an exact double. See convert.h.
#include "numerics/convert.h"

#include <bit>
#include <cmath>

namespace sm100sim::numerics {
namespace {

// |x| * 2^-unit_exponent rounded to an integer; |x| finite and non-zero. `negative` decides the
// directed modes.
uint64_t round_magnitude(double magnitude, int unit_exponent, bool negative,
                         const Conversion& how) {
  const uint64_t bits = std::bit_cast<uint64_t>(magnitude);
  int exponent = static_cast<int>(bits >> 52);
  uint64_t significand = bits & ((uint64_t{1} << 52) - 1);
  if (exponent)
    significand |= uint64_t{1} << 52;
  else
    exponent = 1;
  const int drop = unit_exponent - (exponent - 1075);  // bits below the unit
  if (drop <= 0) return significand << -drop;
  const bool away =
      (how.round == Round::kUp && !negative) || (how.round == Round::kDown && negative);
  if (how.round == Round::kStochastic) {
    // The discarded bits, cut to as many as there are random bits, plus the random bits: a carry
    // rounds away from zero.
    const int keep = how.random_bits;
    uint64_t top = 0, whole = 0;
    if (drop < 64) whole = significand >> drop;
    const int shift = drop - keep;
    if (shift < 0) {
      top = significand << -shift;
    } else if (shift < 64) {
      top = significand >> shift;
    }
    top &= (uint64_t{1} << keep) - 1;
    return whole + ((top + (how.random & ((uint64_t{1} << keep) - 1))) >> keep);
  }
  if (drop > 54) return away ? 1 : 0;
  const uint64_t whole = significand >> drop;
  const uint64_t rest = significand & ((uint64_t{1} << drop) - 1);
  const uint64_t half = uint64_t{1} << (drop - 1);
  switch (how.round) {
    case Round::kNearestEven:
      return whole + (rest > half || (rest == half && (whole & 1)));
    case Round::kNearestAway:
      return whole + (rest >= half);
    default:
      return whole + (away && rest != 0);
  }
}

uint64_t encode_ue8m0(double x, const Conversion& how) {
  if (std::isnan(x)) return 0xFF;
  x = std::fabs(x);
  if (std::isinf(x)) return how.satfinite ? 0xFE : 0xFF;
  if (x <= 0x1p-127) return 0;
  int exponent;
  const double fraction =
      std::frexp(x, &exponent);  // x = fraction * 2^exponent, fraction in [0.5, 1)
  int code = exponent - 1 + 127;
  if (fraction != 0.5) {
    const bool up = how.round == Round::kUp ||
                    (how.round == Round::kNearestEven && fraction >= 0.75) ||
                    (how.round == Round::kNearestAway && fraction >= 0.75);
    code += up;
  }
  if (code > 0xFE) return how.satfinite ? 0xFE : 0xFF;
  return static_cast<uint64_t>(code);
}

// |x| is above the largest finite value after rounding.
uint64_t overflow(const FormatInfo& f, uint64_t max_code, bool negative, const Conversion& how) {
  if (how.satfinite || f.special == Special::kNone) return max_code;
  if (f.special == Special::kNanOnly) return f.canonical_nan;
  const bool toward_zero = how.round == Round::kTowardZero ||
                           (how.round == Round::kDown && !negative) ||
                           (how.round == Round::kUp && negative);
  return toward_zero ? max_code : max_code + 1;  // the next code is infinity
}

}  // namespace

namespace {

// The common case: to nearest even, a normal result that fits. False when it is another case.
bool encode_normal(const FormatInfo& f, double x, uint64_t* code) {
  const uint64_t bits = std::bit_cast<uint64_t>(x), magnitude = bits & ~(uint64_t{1} << 63);
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent < 1 - f.bias || exponent >= (1 << f.exponent_bits) - 2 - f.bias) return false;
  const int drop = 52 - f.mantissa_bits;
  const uint64_t half_less = (uint64_t{1} << (drop - 1)) - 1 + (magnitude >> drop & 1);
  *code =
      ((magnitude + half_less) >> drop) - (static_cast<uint64_t>(1023 - f.bias) << f.mantissa_bits);
  *code |= (bits >> 63) << (f.bits - 1);
  return true;
}

}  // namespace

uint64_t encode(Format to, double x, const Conversion& how) {
  const FormatInfo& f = info(to);
  const bool plain = how.round == Round::kNearestEven && !how.sat && !how.relu;
  uint64_t fast;
  if (plain && f.has_sign && f.bits <= 32 && to != Format::kTf32 && encode_normal(f, x, &fast))
    return fast;
  if (to == Format::kUe8m0) return encode_ue8m0(x, how);
  if (how.sat) {
    if (std::isnan(x) || x <= 0) return 0;
    if (x > 1) x = 1;
  }
  const int mantissa_bits = f.mantissa_bits;
  const int shift = to == Format::kTf32 ? 13 : 0;
  const uint64_t inf_code = ((uint64_t{1} << f.exponent_bits) - 1) << mantissa_bits;
  uint64_t max_code = inf_code - 1;
  if (f.special == Special::kNanOnly) max_code = inf_code + (uint64_t{1} << mantissa_bits) - 2;
  if (f.special == Special::kNone) max_code = inf_code + (uint64_t{1} << mantissa_bits) - 1;
  if (std::isnan(x)) return f.special == Special::kNone ? max_code : f.canonical_nan;
  bool negative = std::signbit(x);
  if (how.relu && negative) return 0;
  if (!f.has_sign && negative) return 0;
  const double magnitude = std::fabs(x);
  uint64_t code;
  if (magnitude == 0) {
    code = 0;
  } else if (std::isinf(magnitude)) {
    code = how.satfinite || f.special == Special::kNone ? max_code
           : f.special == Special::kNanOnly             ? f.canonical_nan
                                                        : inf_code;
  } else if (to == Format::kF64) {
    code = std::bit_cast<uint64_t>(magnitude);
  } else {
    int exponent =
        static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52) - 1023;  // f64 subnormals: below
    if (exponent < 1 - f.bias) exponent = 1 - f.bias;
    const uint64_t units = round_magnitude(magnitude, exponent - mantissa_bits, negative, how);
    // units has mantissa_bits + 1 bits (one more on carry): adding the exponent field carries over
    // by itself.
    code = units + (static_cast<uint64_t>(exponent - (1 - f.bias)) << mantissa_bits);
    if (code > max_code) code = overflow(f, max_code, negative, how);
  }
  code <<= shift;
  if (negative && f.has_sign) code |= uint64_t{1} << (f.bits - 1);
  return code;
}

uint64_t convert(Format to, Format from, uint64_t code, const Conversion& how) {
  return encode(to, decode(from, code), how);
}

int part_bits(Format format) {
  switch (format) {
    case Format::kE2m1:
      return 4;
    case Format::kF16:
    case Format::kBf16:
      return 16;
    case Format::kF32:
    case Format::kTf32:
      return 32;
    case Format::kF64:
      return 64;
    default:
      return 8;
  }
}

uint32_t pack2(Format to, float a, float b, const Conversion& how) {
  Conversion upper = how, lower = how;
  if (how.round == Round::kStochastic) {
    const int bits = to == Format::kF16 ? 13 : 16;
    upper.random = (how.random >> 16) & ((1u << bits) - 1);
    lower.random = how.random & ((1u << bits) - 1);
    upper.random_bits = lower.random_bits = bits;
  }
  return static_cast<uint32_t>(encode(to, a, upper) << part_bits(to) | encode(to, b, lower));
}

uint32_t pack4(Format to, float a, float b, float e, float f, const Conversion& how) {
  const float parts[4] = {a, b, e, f};
  const int bits = part_bits(to);
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    Conversion one = how;
    if (how.round == Round::kStochastic) {
      if (to == Format::kE2m1) {
        const int half = i % 2 == 0 ? 16 : 0, byte = i < 2 ? 8 : 0;
        one.random = how.random >> (half + byte) & 0xFF;
        one.random_bits = 8;
      } else {
        one.random = (i < 2 ? how.random >> 16 : how.random) & 0xFFFF;
        one.random_bits = 16;
      }
    }
    out = out << bits | static_cast<uint32_t>(encode(to, parts[i], one));
  }
  return out;
}

uint32_t repack2(Format to, Format from, uint32_t a, const Conversion& how) {
  const int in = part_bits(from), out = part_bits(to);
  const uint32_t mask = (in == 32 ? 0 : 1u << in) - 1;
  const uint64_t upper = convert(to, from, a >> in & mask, how),
                 lower = convert(to, from, a & mask, how);
  return static_cast<uint32_t>(upper << out | lower);
}

double to_integral(double x, Round round) {
  switch (round) {
    case Round::kTowardZero:
      return std::trunc(x);
    case Round::kDown:
      return std::floor(x);
    case Round::kUp:
      return std::ceil(x);
    default:
      return std::nearbyint(x);
  }
}

uint64_t to_integer(double x, Round round, int bits, bool is_signed, bool from_f64) {
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  if (std::isnan(x)) return from_f64 || bits == 64 ? uint64_t{1} << (bits - 1) : 0;
  const double v = to_integral(x, round);
  const double limit = std::ldexp(1.0, is_signed ? bits - 1 : bits);
  if (v >= limit) return is_signed ? mask >> 1 : mask;
  if (is_signed) {
    if (v < -limit) return uint64_t{1} << (bits - 1);
    return static_cast<uint64_t>(static_cast<int64_t>(v)) & mask;
  }
  return v <= 0 ? 0 : static_cast<uint64_t>(v);
}

uint64_t from_integer(Format to, uint64_t value, bool is_signed, const Conversion& how) {
  const bool negative = is_signed && static_cast<int64_t>(value) < 0;
  uint64_t magnitude = negative ? 0 - value : value;
  if (to == Format::kF64) {
    // 64 bits do not fit a double: round here.
    if (magnitude == 0) return 0;
    const int top = 63 - std::countl_zero(magnitude);
    if (top > 52) {
      const int drop = top - 52;
      const uint64_t rest = magnitude & ((uint64_t{1} << drop) - 1),
                     half = uint64_t{1} << (drop - 1);
      uint64_t whole = magnitude >> drop;
      const bool away =
          (how.round == Round::kUp && !negative) || (how.round == Round::kDown && negative);
      if (how.round == Round::kNearestEven)
        whole += rest > half || (rest == half && (whole & 1));
      else
        whole += away && rest;
      const double v = std::ldexp(static_cast<double>(whole), drop);
      return std::bit_cast<uint64_t>(negative ? -v : v);
    }
    const double v = static_cast<double>(magnitude);
    return std::bit_cast<uint64_t>(negative ? -v : v);
  }
  // Keep 53 bits with a sticky lowest one; every other format is narrower.
  const int top = magnitude ? 63 - std::countl_zero(magnitude) : 0;
  if (top > 52) {
    const int drop = top - 52;
    const bool sticky = magnitude & ((uint64_t{1} << drop) - 1);
    magnitude = (magnitude >> drop | sticky) << drop;
  }
  const double v = static_cast<double>(magnitude);
  return encode(to, negative ? -v : v, how);
}

}  // namespace sm100sim::numerics
