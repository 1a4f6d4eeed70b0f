// The AVX-512 BF16 path with the processor's own vdpbf16ps; see avx512_bf16.inl.
#include "avx512_bf16.inl"
#include "probe.inl"

namespace megamoe::cpu {
namespace {

struct Vdpbf16ps {
  static __m512 dot(__m512 acc, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
};

using Isa = Avx512Bf16<Vdpbf16ps>;

}  // namespace

extern const Path kPathAvx512Bf16 = {
    "avx512_bf16", Isa::kTileRows, 2,      quantize_row, scalable,        pack_tile_bfloat16,
    multiply<Isa>, activate,       finish, combine,      probe_dots<Isa>, probe_read<Isa>,
};

}  // namespace megamoe::cpu
