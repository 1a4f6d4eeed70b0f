// Products in AVX2 and FMA: a panel's 16 rows are two vectors of 8 float32.
//
// Registers of the tallest tile, 6 rows x 1 panel: 12 partial sums, 2 weight vectors, 1 spread
// activation, 1 spare. vpermps looks up 8 entries, so it gives the magnitude (its index reads the
// low 3 bits of a dword) and the code's sign is moved to the top bit.
#include <immintrin.h>

#include "elementwise.inl"
#include "pack.inl"
#include "probe.inl"
#include "product.inl"

namespace megamoe::cpu {
namespace {

struct Avx2 {
  struct V {
    __m256 a, b;
  };
  using Element = float;
  static constexpr int kSteps = 32, kTileRows = 6, kWide = 1, kInPlace = 4;

  struct Codes {
    __m256i a, b;
  };
  static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, const V& v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
  }
  static Codes codes(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  static __m256 decode(__m256i c, int shift) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256 sign_mask = _mm256_set1_ps(-0.0f);
    typedef uint32_t Dwords __attribute__((vector_size(32)));
    const Dwords dwords = reinterpret_cast<Dwords>(c);
    const __m256i index = reinterpret_cast<__m256i>(dwords >> shift);
    const __m256 sign = reinterpret_cast<__m256>(dwords << (28 - shift));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, index), _mm256_and_ps(sign, sign_mask));
  }
  static V decode(const Codes& c, int s) {
    const int shift = (s & 1) * 16 + (s >> 1) * 4;
    return {decode(c.a, shift), decode(c.b, shift)};
  }
  static __m256 spread(const float* x) { return _mm256_broadcast_ss(x); }
  static V dot(const V& acc, __m256 x, const V& w) {
    return {_mm256_fmadd_ps(x, w.a, acc.a), _mm256_fmadd_ps(x, w.b, acc.b)};
  }
  static V fma(const V& a, const V& b, const V& c) {
    return {_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
  }
  static __m256 power(const uint8_t* scales) {
    const __m128i s = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(s), 23));
  }
  static V powers(const uint8_t* scales) { return {power(scales), power(scales + 8)}; }
};

}  // namespace

extern const Path kPathAvx2 = {
    "avx2",         Avx2::kTileRows, 4,      quantize_row, scalable,         pack_tile_float32,
    multiply<Avx2>, activate,        finish, combine,      probe_dots<Avx2>, probe_read<Avx2>,
};

}  // namespace megamoe::cpu
