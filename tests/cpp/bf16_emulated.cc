// The AVX-512 BF16 kernel on an emulation of vdpbf16ps, bit for bit as Intel's manual defines it
// (Architecture Instruction Set Extensions, VDPBF16PS): for each lane a fused multiply-add of the
// odd elements, then one of the even elements, each rounded to nearest even, denormals zero on
// input and output. The emulation relies on the mode that fp_mode.h sets for the last point.
#include "avx512_bf16.inl"
#include "probe.inl"

namespace megamoe::cpu {
namespace {

struct Emulated {
  static __m512 dot(__m512 acc, __m512i x, __m512i w) {
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512 x_odd = _mm512_castsi512_ps(_mm512_and_epi32(x, high));
    const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_epi32(w, high));
    const __m512 x_even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    return _mm512_fmadd_ps(x_even, w_even, _mm512_fmadd_ps(x_odd, w_odd, acc));
  }
};

using Isa = Avx512Bf16<Emulated>;

}  // namespace

extern const Path kPathEmulatedBf16 = {
    "avx512_bf16 (emulated)", Isa::kTileRows,  2,        quantize_row, scalable,
    pack_tile_bfloat16,       multiply<Isa>,   activate, finish,       combine,
    probe_dots<Isa>,          probe_read<Isa>,
};

}  // namespace megamoe::cpu
