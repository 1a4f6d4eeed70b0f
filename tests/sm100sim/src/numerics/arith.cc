// Scalar arithmetic with one rounding: an exact or round-to-odd double, then encode(). See arith.h.
#include "numerics/arith.h"

#include <bit>
#include <cmath>

namespace sm100sim::numerics {
namespace {

float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t as_bits(float value) { return std::bit_cast<uint32_t>(value); }

// Makes the last bit of a sum odd when the sum was not exact: later roundings to fewer bits are
// then single roundings.
double make_odd(double sum, double error) {
  if (error == 0 || !std::isfinite(sum)) return sum;
  const uint64_t bits = std::bit_cast<uint64_t>(sum);
  if (bits & 1) return sum;
  // The exact value lies between sum and its neighbour on the side of the error; that neighbour is
  // odd. Stepping toward zero changes nothing else, since a truncated even value with a remainder
  // becomes odd by setting the bit.
  const bool outward = (error > 0) == (sum > 0);
  return std::bit_cast<double>(outward ? bits + 1 : bits - 1);
}

uint32_t finish(double exact, const F32Mode& mode) {
  Conversion how{.round = mode.round, .sat = mode.sat};
  uint32_t bits = static_cast<uint32_t>(encode(Format::kF32, exact, how));
  return mode.ftz ? ftz_f32(bits) : bits;
}

// The sign of an exact zero sum: +0 except toward minus infinity, or when both terms are -0.
double zero_sum(double a, double b, Round round) {
  if (std::signbit(a) && std::signbit(b)) return -0.0;
  if (std::signbit(a) != std::signbit(b) || a != 0) return round == Round::kDown ? -0.0 : 0.0;
  return 0.0;
}

template <typename Function>
uint32_t both(uint32_t a, uint32_t b, Function function) {
  return static_cast<uint32_t>(
             function(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16)))
             << 16 |
         function(static_cast<uint16_t>(a), static_cast<uint16_t>(b));
}

uint32_t exponent_mask(Format format) {
  const FormatInfo& f = info(format);
  return ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
}

// The value of a code; subnormals are zeros of the same sign with ftz.
double flushed(Format format, uint32_t code, bool ftz) {
  if (ftz && (code & exponent_mask(format)) == 0) code &= 1u << (info(format).bits - 1);
  return decode(format, code);
}

uint16_t finish_half(Format format, double exact, const HalfMode& mode) {
  uint16_t code =
      static_cast<uint16_t>(encode(format, exact, {.relu = mode.relu, .sat = mode.sat}));
  if (mode.ftz && (code & 0x7C00) == 0) code &= 0x8000;
  return code;
}

}  // namespace

double odd_add(double a, double b) {
  const double sum = a + b;
  const double virtual_b = sum - a;
  const double error = (a - (sum - virtual_b)) + (b - virtual_b);
  return make_odd(sum, error);
}

double odd_fma(double a, double b, double c) { return odd_add(a * b, c); }

uint32_t ftz_f32(uint32_t a) { return (a & 0x7F800000) == 0 ? a & 0x80000000 : a; }

uint32_t add_f32(uint32_t a, uint32_t b, const F32Mode& mode) {
  if (mode.ftz) a = ftz_f32(a), b = ftz_f32(b);
  if (mode.round == Round::kNearestEven && !mode.sat) {
    const float sum = as_float(a) + as_float(b);
    if (std::isnan(sum)) return 0x7FFFFFFF;
    return mode.ftz ? ftz_f32(as_bits(sum)) : as_bits(sum);
  }
  const double x = as_float(a), y = as_float(b);
  const double sum = odd_add(x, y);
  return finish(sum == 0 ? zero_sum(x, y, mode.round) : sum, mode);
}

uint32_t mul_f32(uint32_t a, uint32_t b, const F32Mode& mode) {
  if (mode.ftz) a = ftz_f32(a), b = ftz_f32(b);
  if (mode.round == Round::kNearestEven && !mode.sat) {
    const float product = as_float(a) * as_float(b);
    if (std::isnan(product)) return 0x7FFFFFFF;
    return mode.ftz ? ftz_f32(as_bits(product)) : as_bits(product);
  }
  return finish(static_cast<double>(as_float(a)) * as_float(b), mode);
}

uint32_t fma_f32(uint32_t a, uint32_t b, uint32_t c, const F32Mode& mode) {
  if (mode.ftz) a = ftz_f32(a), b = ftz_f32(b), c = ftz_f32(c);
  if (mode.round == Round::kNearestEven && !mode.sat) {
    const float sum = std::fma(as_float(a), as_float(b), as_float(c));
    if (std::isnan(sum)) return 0x7FFFFFFF;
    return mode.ftz ? ftz_f32(as_bits(sum)) : as_bits(sum);
  }
  const double product = static_cast<double>(as_float(a)) * as_float(b);
  const double addend = as_float(c);
  const double sum = odd_add(product, addend);
  return finish(sum == 0 ? zero_sum(product, addend, mode.round) : sum, mode);
}

uint32_t div_f32(uint32_t a, uint32_t b, const F32Mode& mode) {
  if (mode.ftz) a = ftz_f32(a), b = ftz_f32(b);
  const double x = as_float(a), y = as_float(b);
  double quotient = x / y;
  if (std::isfinite(quotient) && quotient != 0)
    quotient = make_odd(quotient, std::fma(-quotient, y, x) * (y < 0 ? -1 : 1));
  return finish(quotient, mode);
}

uint32_t sqrt_f32(uint32_t a, const F32Mode& mode) {
  if (mode.ftz) a = ftz_f32(a);
  const double x = as_float(a);
  double root = std::sqrt(x);
  if (root > 0 && std::isfinite(root)) root = make_odd(root, std::fma(-root, root, x));
  return finish(root, mode);
}

uint64_t add_f32x2(uint64_t a, uint64_t b, const F32Mode& mode) {
  return static_cast<uint64_t>(
             add_f32(static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b >> 32), mode))
             << 32 |
         add_f32(static_cast<uint32_t>(a), static_cast<uint32_t>(b), mode);
}

uint64_t mul_f32x2(uint64_t a, uint64_t b, const F32Mode& mode) {
  return static_cast<uint64_t>(
             mul_f32(static_cast<uint32_t>(a >> 32), static_cast<uint32_t>(b >> 32), mode))
             << 32 |
         mul_f32(static_cast<uint32_t>(a), static_cast<uint32_t>(b), mode);
}

uint64_t fma_f32x2(uint64_t a, uint64_t b, uint64_t c, const F32Mode& mode) {
  return static_cast<uint64_t>(fma_f32(static_cast<uint32_t>(a >> 32),
                                       static_cast<uint32_t>(b >> 32),
                                       static_cast<uint32_t>(c >> 32), mode))
             << 32 |
         fma_f32(static_cast<uint32_t>(a), static_cast<uint32_t>(b), static_cast<uint32_t>(c),
                 mode);
}

uint32_t add_f32_narrow(Format narrow, uint32_t a, uint32_t c, bool subtract, const F32Mode& mode) {
  const uint32_t wide = static_cast<uint32_t>(encode(Format::kF32, decode(narrow, a)));
  return add_f32(wide, subtract ? c ^ 0x80000000 : c, mode);
}

uint32_t fma_f32_narrow(Format narrow, uint32_t a, uint32_t b, uint32_t c, const F32Mode& mode) {
  return fma_f32(static_cast<uint32_t>(encode(Format::kF32, decode(narrow, a))),
                 static_cast<uint32_t>(encode(Format::kF32, decode(narrow, b))), c, mode);
}

uint16_t add_half(Format format, uint16_t a, uint16_t b, const HalfMode& mode) {
  const double x = flushed(format, a, mode.ftz), y = flushed(format, b, mode.ftz);
  const double sum = odd_add(x, y);
  return finish_half(format, sum == 0 ? zero_sum(x, y, Round::kNearestEven) : sum, mode);
}

uint16_t sub_half(Format format, uint16_t a, uint16_t b, const HalfMode& mode) {
  return add_half(format, a, static_cast<uint16_t>(b ^ 0x8000), mode);
}

uint16_t mul_half(Format format, uint16_t a, uint16_t b, const HalfMode& mode) {
  return finish_half(format, flushed(format, a, mode.ftz) * flushed(format, b, mode.ftz), mode);
}

uint16_t fma_half(Format format, uint16_t a, uint16_t b, uint16_t c, const HalfMode& mode) {
  const double product = flushed(format, a, mode.ftz) * flushed(format, b, mode.ftz),
               addend = flushed(format, c, mode.ftz);
  const double sum = odd_add(product, addend);
  return finish_half(format, sum == 0 ? zero_sum(product, addend, Round::kNearestEven) : sum, mode);
}

uint32_t add_half2(Format format, uint32_t a, uint32_t b, const HalfMode& mode) {
  return both(a, b, [&](uint16_t x, uint16_t y) { return add_half(format, x, y, mode); });
}

uint32_t sub_half2(Format format, uint32_t a, uint32_t b, const HalfMode& mode) {
  return both(a, b, [&](uint16_t x, uint16_t y) { return sub_half(format, x, y, mode); });
}

uint32_t mul_half2(Format format, uint32_t a, uint32_t b, const HalfMode& mode) {
  return both(a, b, [&](uint16_t x, uint16_t y) { return mul_half(format, x, y, mode); });
}

uint32_t fma_half2(Format format, uint32_t a, uint32_t b, uint32_t c, const HalfMode& mode) {
  const uint32_t upper =
      fma_half(format, static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16),
               static_cast<uint16_t>(c >> 16), mode);
  return upper << 16 | fma_half(format, static_cast<uint16_t>(a), static_cast<uint16_t>(b),
                                static_cast<uint16_t>(c), mode);
}

uint32_t min_max(Format format, uint32_t a, uint32_t b, bool maximum, const MinMaxMode& mode) {
  const uint32_t infinity = exponent_mask(format), sign = 1u << (info(format).bits - 1);
  if (mode.ftz) {
    if (!(a & infinity)) a &= sign;
    if (!(b & infinity)) b &= sign;
  }
  const uint32_t xor_sign = (a ^ b) & sign;
  if (mode.abs || mode.xorsign_abs) a &= ~sign, b &= ~sign;
  const uint32_t magnitude_a = a & ~sign, magnitude_b = b & ~sign;
  const bool nan_a = magnitude_a > infinity, nan_b = magnitude_b > infinity;
  uint32_t out;
  if (nan_a || nan_b) {
    if (mode.nan || (nan_a && nan_b)) return static_cast<uint32_t>(info(format).canonical_nan);
    out = nan_a ? b : a;
  } else {  // codes of a sign order like integers; -0 comes just before +0
    auto key = [&](uint32_t code, uint32_t magnitude) {
      return code & sign ? -static_cast<int64_t>(magnitude) - 1 : static_cast<int64_t>(magnitude);
    };
    const bool a_below = key(a, magnitude_a) < key(b, magnitude_b);
    out = a_below == maximum ? b : a;
  }
  return mode.xorsign_abs ? (out & ~sign) | xor_sign : out;
}

uint32_t min_max_half2(Format format, uint32_t a, uint32_t b, bool maximum,
                       const MinMaxMode& mode) {
  return both(a, b, [&](uint16_t x, uint16_t y) { return min_max(format, x, y, maximum, mode); });
}

uint32_t approximate(Approx function, Format format, uint32_t a, bool ftz) {
  const double x = flushed(format, a, ftz);
  double y = 0;
  switch (function) {
    case Approx::kEx2:
      y = std::exp2(x);
      break;
    case Approx::kLg2:
      y = std::log2(x);
      break;
    case Approx::kRcp:
      y = 1 / x;
      break;
    case Approx::kRsqrt:
      y = 1 / std::sqrt(x);
      break;
    case Approx::kSqrt:
      y = std::sqrt(x);
      break;
    case Approx::kTanh:
      y = std::tanh(x);
      break;
    case Approx::kSin:
      y = std::sin(x);
      break;
    case Approx::kCos:
      y = std::cos(x);
      break;
  }
  const uint32_t code = static_cast<uint32_t>(encode(format, y));
  return ftz && !(code & exponent_mask(format)) ? code & (1u << (info(format).bits - 1)) : code;
}

}  // namespace sm100sim::numerics
