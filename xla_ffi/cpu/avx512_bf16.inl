// Products in AVX-512 BF16, over the dot instruction as a parameter: path_avx512_bf16.cc has the
// real one, the C++ tests put a bit-exact emulation in its place on machines without it.
//
// Registers of the tallest tile, 6 rows x 4 panels: 24 partial sums, 4 weight vectors, 1 spread
// pair of activations, 1 table (the 16 FP4 values twice, since vpermw's index reads
// 5 bits of each word). A step takes a pair of k: vdpbf16ps adds the odd k's product, then the even
// k's, each rounded to nearest even, with denormals flushed whatever the mode. Both operands are
// exact in bfloat16.
#pragma once

#include <immintrin.h>

#include "elementwise.inl"
#include "pack.inl"
#include "product.inl"

namespace megamoe::cpu {
namespace {

template <class Dot>
struct Avx512Bf16 {
  using V = __m512;
  using Element = uint32_t;
  static constexpr int kSteps = 16, kTileRows = 6, kWide = 4, kInPlace = 6;

  struct Codes {
    __m512i v;
  };
  static V zero() { return _mm512_setzero_ps(); }
  // The buffer of decoded weights holds bfloat16 pairs in the place of float32.
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static Codes codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  // Step s of a code vector is its k = 2s (low words) and 2s + 1 (high words).
  static V decode(const Codes& c, int s) {
    // Pairs of bfloat16: 0, 0.5; 1, 1.5; 2, 3; 4, 6; the same negated.
    const __m512i table = _mm512_broadcast_i64x4(
        _mm256_setr_epi32(0x3f000000, 0x3fc03f80, 0x40404000, 0x40c04080,
                          static_cast<int>(0xbf008000u), static_cast<int>(0xbfc0bf80u),
                          static_cast<int>(0xc040c000u), static_cast<int>(0xc0c0c080u)));
    typedef uint16_t Words __attribute__((vector_size(64)));
    const Words shifted = reinterpret_cast<Words>(c.v) >> (4 * s);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(reinterpret_cast<__m512i>(shifted), table));
  }
  static __m512i spread(const uint32_t* x) { return _mm512_set1_epi32(static_cast<int>(*x)); }
  static V dot(V acc, __m512i x, V w) { return Dot::dot(acc, x, _mm512_castps_si512(w)); }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V powers(const uint8_t* scales) {
    const __m512i s =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(s, 23));
  }
};

}  // namespace
}  // namespace megamoe::cpu
