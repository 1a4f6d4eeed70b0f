// Products in AVX-512 (F, BW, DQ, VL): float32 FMAs on weights looked up from their FP4 codes.
//
// Registers of the tallest tile, 6 rows x 4 panels: 24 partial sums, 4 weight vectors, 1 spread
// activation, 1 table of the 16 FP4 values. The outputs stay in memory: they are touched once in 32
// steps. A step per row and panel is one FMA; a weight vector costs a shift and
// a vpermps, whose index reads only the low 4 bits of each dword, so that the nibbles need no mask.
#include <immintrin.h>

#include "elementwise.inl"
#include "pack.inl"
#include "probe.inl"
#include "product.inl"

namespace megamoe::cpu {
namespace {

struct Avx512 {
  using V = __m512;
  using Element = float;
  static constexpr int kSteps = 32, kTileRows = 6, kWide = 4, kInPlace = 6;

  struct Codes {
    __m512i v;
  };
  static V zero() { return _mm512_setzero_ps(); }
  static V load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  static Codes codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
  // Step s of a code vector is its k = s: nibble s/2 of the low or high half of each dword
  // (layout.h).
  static V decode(const Codes& c, int s) {
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f,
                                        -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    typedef uint32_t Dwords __attribute__((vector_size(64)));
    const Dwords shifted = reinterpret_cast<Dwords>(c.v) >> ((s & 1) * 16 + (s >> 1) * 4);
    return _mm512_permutexvar_ps(reinterpret_cast<__m512i>(shifted), table);
  }
  static V spread(const float* x) { return _mm512_set1_ps(*x); }
  // _mm512_fmadd_ps(x, w, acc), in the one form that accumulates in place: GCC 12 prefers forms
  // that overwrite x or w and then moves 24 sums about, which takes FMA slots.
  static V dot(V acc, V x, V w) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
  }
  static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V powers(const uint8_t* scales) {
    const __m512i s =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(s, 23));
  }
};

}  // namespace

extern const Path kPathAvx512 = {
    "avx512",           Avx512::kTileRows,  4,        quantize_row, scalable,
    pack_tile_float32,  multiply<Avx512>,   activate, finish,       combine,
    probe_dots<Avx512>, probe_read<Avx512>,
};

}  // namespace megamoe::cpu
