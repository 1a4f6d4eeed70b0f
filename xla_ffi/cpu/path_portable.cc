// Products in portable C++: what runs on aarch64, on old x86 and wherever no faster path is chosen.
//
// Four vectors of four floats (GCC's and Clang's vector extension) stand for the 16 rows of a
// panel, so that SSE2 and NEON registers hold them: a tile of 2 rows x 1 panel keeps 8 partial
// sums, 4 weights and a spread activation in 16 registers. Products of an E4M3 and an E2M1 value
// are exact in float32, so a multiplication and an addition give the bits of an FMA.
#include "elementwise.inl"
#include "pack.inl"
#include "probe.inl"
#include "product.inl"

namespace megamoe::cpu {
namespace {

typedef float Quad __attribute__((vector_size(16)));

struct Portable {
  struct V {
    Quad q[4];
  };
  using Element = float;
  static constexpr int kSteps = 32, kTileRows = 2, kWide = 1, kInPlace = 1;

  struct Codes {
    uint32_t dword[16];
  };
  static V zero() { return V{}; }
  static V load(const float* p) {
    V v;
    memcpy(&v, p, sizeof(v));
    return v;
  }
  static void store(float* p, const V& v) { memcpy(p, &v, sizeof(v)); }
  // Bytes, not a copied dword: the layout is little-endian whatever the host is.
  static Codes codes(const uint8_t* p) {
    Codes c;
    for (int n = 0; n < 16; ++n) {
      c.dword[n] = p[4 * n] | static_cast<uint32_t>(p[4 * n + 1]) << 8 |
                   static_cast<uint32_t>(p[4 * n + 2]) << 16 |
                   static_cast<uint32_t>(p[4 * n + 3]) << 24;
    }
    return c;
  }
  static V decode(const Codes& c, int s) {
    static constexpr float kTable[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    float w[16];
    const int shift = (s & 1) * 16 + (s >> 1) * 4;
    for (int n = 0; n < 16; ++n) w[n] = kTable[(c.dword[n] >> shift) & 15u];
    return load(w);
  }
  static float spread(const float* x) { return *x; }
  static V dot(const V& acc, float x, const V& w) {
    V r;
    for (int i = 0; i < 4; ++i) r.q[i] = acc.q[i] + w.q[i] * x;
    return r;
  }
  static V fma(const V& a, const V& b, const V& c) {
    V r;
    for (int i = 0; i < 4; ++i) r.q[i] = c.q[i] + a.q[i] * b.q[i];
    return r;
  }
  static V powers(const uint8_t* scales) {
    float f[16];
    for (int n = 0; n < 16; ++n) f[n] = float_of(static_cast<uint32_t>(scales[n]) << 23);
    return load(f);
  }
};

}  // namespace

extern const Path kPathPortable = {
    "portable",           Portable::kTileRows,  4,        quantize_row, scalable,
    pack_tile_float32,    multiply<Portable>,   activate, finish,       combine,
    probe_dots<Portable>, probe_read<Portable>,
};

}  // namespace megamoe::cpu
