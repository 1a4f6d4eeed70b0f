// Number formats for the path files: bfloat16, E4M3 and UE8M0 on 32 values at a time.
//
// Plain loops of constant length over arrays, so that each path file's own instruction set
// vectorises them. Internal linkage throughout (see path.h). Floating-point code here gives the
// same bits in every path: no contraction (-ffp-contract=off), and denormals are flushed by the
// mode that fp_mode.h sets.
#pragma once

#include <stdint.h>

namespace megamoe::cpu {
namespace {

inline uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
inline float float_of(uint32_t x) { return __builtin_bit_cast(float, x); }

constexpr uint32_t kInfBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

// Rounds to nearest even; every NaN becomes 0x7fc0.
inline uint16_t to_bfloat16(float x) {
  const uint32_t b = bits_of(x);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((b & 0x7fffffffu) > kInfBits ? kNanBits >> 16 : rounded);
}
inline float from_bfloat16(uint16_t x) { return float_of(static_cast<uint32_t>(x) << 16); }
inline float round_bfloat16(float x) { return from_bfloat16(to_bfloat16(x)); }

// ceil(log2(amax / 448)) on the bits of a normal amax: 448 = 1.75 * 2^8, so the significand decides
// whether amax lies above 448 * 2^(exponent - 8). For a denormal the result is below -126.
inline int32_t e4m3_scale_exponent(uint32_t amax_bits) {
  return static_cast<int32_t>(amax_bits >> 23) - 127 - 8 + ((amax_bits & 0x7fffffu) > 0x600000u);
}

// E4M3 of |x| <= 448, to nearest even. Below 2^-6 the grid is 2^-9: adding 2^14 rounds to it.
inline uint8_t to_e4m3(float x) {
  const uint32_t b = bits_of(x), a = b & 0x7fffffffu;
  const uint32_t normal = ((a + 0x7ffffu + ((a >> 20) & 1u)) >> 20) - (120u << 3);
  const uint32_t small = bits_of(float_of(a) + 16384.0f) - bits_of(16384.0f);
  return static_cast<uint8_t>(((b >> 24) & 0x80u) | (a < (121u << 23) ? small : normal));
}

inline float from_e4m3(uint8_t code) {
  const uint32_t m = code & 0x7fu;
  const float small = static_cast<float>(static_cast<int32_t>(m)) * 0.001953125f;  // 2^-9
  const uint32_t large = m == 0x7fu ? kNanBits : (m << 20) + (120u << 23);
  return float_of((m < 8u ? bits_of(small) : large) | (static_cast<uint32_t>(code & 0x80u) << 24));
}

// Codes and scale byte of a group, given the bits of its largest magnitude and the exponent to use.
inline uint8_t encode_group(const float* x, uint32_t amax_bits, int32_t exponent, uint8_t* codes) {
  const bool finite = amax_bits < kInfBits;
  const float inverse = finite ? float_of(static_cast<uint32_t>(127 - exponent) << 23) : 0.0f;
  for (int i = 0; i < 32; ++i) codes[i] = finite ? to_e4m3(x[i] * inverse) : 0;
  return finite ? static_cast<uint8_t>(exponent + 127) : 255;
}

inline uint32_t largest_magnitude(const float* x) {
  uint32_t amax = 0;
  for (int i = 0; i < 32; ++i) {
    const uint32_t a = bits_of(x[i]) & 0x7fffffffu;
    amax = a > amax ? a : amax;  // on bits: NaN lies above Inf, so neither can hide
  }
  return amax;
}

}  // namespace
}  // namespace megamoe::cpu
