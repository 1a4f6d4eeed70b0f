// Prints, from CuTe's own definitions: address swizzles; the canonical shared-memory layouts of
// tcgen05 operands with the matrix descriptor that CuTe makes for one instruction's slice;
// instruction descriptors. Host only, compiled with g++ against the CUTLASS headers.
#include <cstdio>
#include <cute/arch/mma_sm100_desc.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
#include <cute/tensor.hpp>

using namespace cute;

template <class Swizzle>
void swizzle(const char* name) {
  std::printf("swizzle %s", name);
  for (int address = 0; address < 4096; address += 8)
    std::printf(" %d", int(Swizzle::apply(address)));
  std::printf("\n");
}

// "layout <name> <element bytes> <MN-major> <descriptor> <rows> <k> : byte address of every 16-byte
// unit's first element".
template <UMMA::Major major, class Type, class Atom, int rows, int depth, int k>
void layout(const char* name) {
  auto whole = tile_to_shape(Atom{}, Shape<Int<rows>, Int<depth>>{});
  // A real buffer: the swizzle acts on the bits of addresses when an element is reached through
  // CuTe's smem pointer.
  alignas(4096) static Type buffer[rows * depth];
  auto tensor = make_tensor(make_smem_ptr(buffer), whole);
  auto byte_of = [&](int r, int c) {
    return int(reinterpret_cast<char*>(&tensor(r, c)) - reinterpret_cast<char*>(buffer));
  };
  auto slice = local_tile(tensor, Shape<Int<rows>, Int<k>>{}, make_coord(0, 0));
  uint64_t descriptor = UMMA::make_umma_desc<major>(slice);
  constexpr int unit = 16 / sizeof(Type);
  std::printf("layout %s %d %d %llu %d %d :", name, int(sizeof(Type)),
              int(major == UMMA::Major::MN), (unsigned long long)descriptor, rows, k);
  if constexpr (major == UMMA::Major::K) {
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < k; c += unit) std::printf(" %d", byte_of(r, c));
  } else {
    for (int r = 0; r < rows; r += unit)
      for (int c = 0; c < k; ++c) std::printf(" %d", byte_of(r, c));
  }
  std::printf("\n");
}

template <class Type, int rows, int k>
void layouts(const char* type) {
  constexpr int depth = 4 * k;
  char name[64];
  std::snprintf(name, sizeof name, "%s.K.none", type);
  layout<UMMA::Major::K, Type, UMMA::Layout_K_INTER_Atom<Type>, rows, depth, k>(name);
  std::snprintf(name, sizeof name, "%s.K.32", type);
  layout<UMMA::Major::K, Type, UMMA::Layout_K_SW32_Atom<Type>, rows, depth, k>(name);
  std::snprintf(name, sizeof name, "%s.K.64", type);
  layout<UMMA::Major::K, Type, UMMA::Layout_K_SW64_Atom<Type>, rows, depth, k>(name);
  std::snprintf(name, sizeof name, "%s.K.128", type);
  layout<UMMA::Major::K, Type, UMMA::Layout_K_SW128_Atom<Type>, rows, depth, k>(name);
  std::snprintf(name, sizeof name, "%s.MN.none", type);
  layout<UMMA::Major::MN, Type, UMMA::Layout_MN_INTER_Atom<Type>, rows, depth, k>(name);
  if constexpr (sizeof(Type) < 4) {
    std::snprintf(name, sizeof name, "%s.MN.32", type);
    layout<UMMA::Major::MN, Type, UMMA::Layout_MN_SW32_Atom<Type>, rows, depth, k>(name);
    std::snprintf(name, sizeof name, "%s.MN.64", type);
    layout<UMMA::Major::MN, Type, UMMA::Layout_MN_SW64_Atom<Type>, rows, depth, k>(name);
    std::snprintf(name, sizeof name, "%s.MN.128", type);
    layout<UMMA::Major::MN, Type, UMMA::Layout_MN_SW128_Atom<Type>, rows, depth, k>(name);
  } else {
    std::snprintf(name, sizeof name, "%s.MN.128atom32", type);
    layout<UMMA::Major::MN, Type, UMMA::Layout_MN_SW128_32B_Atom<Type>, rows, depth, k>(name);
  }
}

template <class A, class B, class C, int m, int n, UMMA::Major am = UMMA::Major::K,
          UMMA::Major bm = UMMA::Major::K, UMMA::ScaleIn an = UMMA::ScaleIn::One,
          UMMA::ScaleIn bn = UMMA::ScaleIn::One>
void instruction(const char* kind, const char* a, const char* b, const char* c) {
  const uint32_t bits = uint32_t(UMMA::make_instr_desc<A, B, C, m, n, am, bm, an, bn>());
  std::printf("idesc %s %u %s %s %s %d %d %d %d %d %d\n", kind, bits, a, b, c, m, n, int(am),
              int(bm), int(an), int(bn));
}

template <class A, class B, class SF, int m, int n>
void scaled(const char* kind, const char* a, const char* b, const char* sf) {
  for (uint32_t id = 0; id < 4; ++id) {
    const uint64_t both =
        UMMA::make_runtime_instr_desc_block_scaled<A, B, float, SF, m, n, UMMA::Major::K,
                                                   UMMA::Major::K>(id << 30, (3 - id) << 30);
    std::printf("idesc_scaled %s %u %s %s %s %d %d %u %u\n", kind, uint32_t(both >> 32), a, b, sf,
                m, n, id, 3 - id);
  }
}

int main() {
  swizzle<Swizzle<0, 4, 3>>("none");
  swizzle<Swizzle<1, 4, 3>>("32");
  swizzle<Swizzle<2, 4, 3>>("64");
  swizzle<Swizzle<3, 4, 3>>("128");
  swizzle<Swizzle<2, 5, 2>>("128atom32");

  layouts<uint8_t, 128, 32>("u8");
  layouts<half_t, 128, 16>("f16");
  layouts<tfloat32_t, 128, 8>("tf32");

  using MN = std::integral_constant<UMMA::Major, UMMA::Major::MN>;
  instruction<half_t, half_t, float, 128, 256>("f16", "f16", "f16", "f32");
  instruction<half_t, half_t, half_t, 64, 8>("f16", "f16", "f16", "f16");
  instruction<bfloat16_t, bfloat16_t, float, 128, 64, MN::value, MN::value>("f16", "bf16", "bf16",
                                                                            "f32");
  instruction<tfloat32_t, tfloat32_t, float, 128, 16>("tf32", "tf32", "tf32", "f32");
  instruction<float_e4m3_t, float_e5m2_t, float, 128, 112>("f8f6f4", "e4m3", "e5m2", "f32");
  instruction<float_e5m2_t, float_e4m3_t, half_t, 128, 96, UMMA::Major::K, UMMA::Major::MN>(
      "f8f6f4", "e5m2", "e4m3", "f16");
  instruction<cute::detail::float_e2m1_unpacksmem_t, cute::detail::float_e3m2_unpacksmem_t, float,
              128, 32, UMMA::Major::K, UMMA::Major::K, UMMA::ScaleIn::Neg>("f8f6f4", "e2m1", "e3m2",
                                                                           "f32");
  instruction<cute::detail::float_e2m3_unpacksmem_t, float_e4m3_t, float, 128, 32, UMMA::Major::K,
              UMMA::Major::K, UMMA::ScaleIn::One, UMMA::ScaleIn::Neg>("f8f6f4", "e2m3", "e4m3",
                                                                      "f32");
  scaled<cute::detail::float_e2m1_unpacksmem_t, float_e4m3_t, float_ue8m0_t, 256, 128>(
      "mxf8f6f4", "e2m1", "e4m3", "ue8m0");
  scaled<float_e4m3_t, cute::detail::float_e2m1_unpacksmem_t, float_ue8m0_t, 128, 256>(
      "mxf8f6f4", "e4m3", "e2m1", "ue8m0");
  scaled<float_e2m1_t, float_e2m1_t, float_ue8m0_t, 256, 192>("mxf4", "e2m1", "e2m1", "ue8m0");
  scaled<float_e2m1_t, float_e2m1_t, float_ue4m3_t, 128, 64>("mxf4nvf4", "e2m1", "e2m1", "ue4m3");
}
