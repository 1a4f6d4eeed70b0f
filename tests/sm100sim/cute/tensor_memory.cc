// Prints, from CuTe's own definitions: the register fragments of tcgen05.ld for every shape,
// repetition and packing; where tcgen05.cp puts its rows; the layouts of accumulators and scale
// factors in tensor memory. Host only, compiled with g++ against the CUTLASS headers.
#include <cstdio>
#include <cute/atom/copy_traits_sm100.hpp>
#include <cute/atom/mma_traits_sm100.hpp>
#include <cute/tensor.hpp>

using namespace cute;

// A bit address of tensor memory: lanes are 2^21 bits apart.
void print_cell(int bit) { std::printf(" %d:%d", bit >> 21, (bit & ((1 << 21) - 1)) / 32); }

// "ld <name> <registers> : lane:column of bit 0 (and of bit 16) of every register, thread by
// thread".
template <class Op>
void fragment(const char* name) {
  using Traits = Copy_Traits<Op>;
  typename Traits::ValID address;
  typename Traits::DstLayout destination;
  constexpr int bits = decltype(size<1>(destination))::value;
  std::printf("ld %s %d :", name, bits / 32);
  for (int thread = 0; thread < 32; ++thread)
    for (int bit = 0; bit < bits; bit += 16) print_cell(int(address(destination(thread, bit))));
  std::printf("\n");
}

// "cp <name> <source row> <lane>" for every copy of every row. CuTe counts source bits column-major
// over blocks of `rows` rows.
template <class Op>
void copy_rows(const char* name, int rows) {
  using Traits = Copy_Traits<Op>;
  typename Traits::ValID address;
  typename Traits::SrcLayout source;
  typename Traits::DstLayout destination;
  for (int bit = 0; bit < int(size<1>(destination)); ++bit) {
    const int from = int(source(0, bit)), to = int(address(destination(0, bit)));
    const int row = from % rows + from / (rows * 128) * rows, column_bit = from / rows % 128;
    if (column_bit == 0) std::printf("cp %s %d %d\n", name, row, to >> 21);
  }
}

// "d <name> : lane:column for (m, n), m fastest".
template <class Frg, int m, int n>
void accumulator(const char* name) {
  auto tensor = Frg::make(Shape<Shape<Int<m>, Int<n>>, _1, _1>{});
  std::printf("d %s %d %d :", name, m, n);
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < m; ++i) {
      const uint32_t address = uint32_t(tensor.layout()(make_coord(make_coord(i, j), 0, 0)));
      std::printf(" %u:%u", address >> 16, address & 0xFFFF);
    }
  std::printf("\n");
}

// "sf <name> rows blocks : lane:column:byte for (row, copy, block)" of an 8-bit tensor: lanes are
// 2^18 bytes apart.
template <class Frg, int rows, int vector, int blocks>
void scale_factors(const char* name) {
  auto tensor = Frg::make(Shape<Shape<Int<rows>, Shape<Int<vector>, Int<blocks>>>, _1, _1>{});
  auto layout = tensor.layout();
  std::printf("sf %s %d %d :", name, rows, blocks);
  for (int copy = 0; copy < int(size<0, 0>(layout)) / rows; ++copy)
    for (int row = 0; row < rows; ++row)
      for (int block = 0; block < blocks; ++block) {
        const uint32_t address =
            uint32_t(layout(make_coord(make_coord(row + copy * rows, block * vector), 0, 0)));
        std::printf(" %u:%u:%u", address >> 18, (address & 0x3FFFF) / 4, address % 4);
      }
  std::printf("\n");
}

#define LD(lanes, bits, n)                                                          \
  fragment<SM100_TMEM_LOAD_##lanes##dp##bits##b##n##x>(#lanes "dp" #bits "b.x" #n); \
  fragment<SM100_TMEM_LOAD_##lanes##dp##bits##b##n##x_16b>(#lanes "dp" #bits "b.x" #n ".pack");
#define LD32(lanes, bits) \
  LD(lanes, bits, 1)      \
  LD(lanes, bits, 2) LD(lanes, bits, 4) LD(lanes, bits, 8) LD(lanes, bits, 16) LD(lanes, bits, 32)

int main() {
  LD32(16, 256);
  LD32(16, 128);
  LD(16, 128, 64);
  LD32(16, 64);
  LD(16, 64, 64);
  LD(16, 64, 128);
  LD32(16, 32);
  LD(16, 32, 64);
  LD(16, 32, 128);
  LD32(32, 32);
  LD(32, 32, 64);
  LD(32, 32, 128);

  copy_rows<SM100::TMEM::UTCCP::SM100_UTCCP_4x32dp128bit_1cta>("32x128b.warpx4", 32);
  copy_rows<SM100::TMEM::UTCCP::SM100_UTCCP_2x64dp128bitlw0213_1cta>("64x128b.warpx2::02_13", 64);
  copy_rows<SM100::TMEM::UTCCP::SM100_UTCCP_2x64dp128bitlw0123_1cta>("64x128b.warpx2::01_23", 32);

  accumulator<UMMA::tmem_frg_1sm<float>, 128, 16>("1.128");
  accumulator<UMMA::tmem_frg_1sm<float, float, UMMA::TmemAllocMode::NonInterleaved>, 64, 16>(
      "1.64");
  accumulator<UMMA::tmem_frg_2sm<float>, 128, 32>("2.256");
  accumulator<UMMA::tmem_frg_2sm<float>, 64, 32>("2.128");
  accumulator<UMMA::tmem_frg_ws_1sm<float>, 64, 64>("ws.64");
  accumulator<UMMA::tmem_frg_ws_1sm<float>, 32, 64>("ws.32");

  scale_factors<UMMA::tmem_sf_frg<float_ue8m0_t, 32, 1, true>, 128, 32, 1>("sfa.1X");
  scale_factors<UMMA::tmem_sf_frg<float_ue8m0_t, 32, 2, false>, 256, 32, 1>("sfb.1X");
  scale_factors<UMMA::tmem_sf_frg<float_ue8m0_t, 32, 1, true>, 128, 32, 2>("sfa.2X");
  scale_factors<UMMA::tmem_sf_frg<float_ue4m3_t, 16, 1, false>, 128, 16, 4>("sfb.4X");
  scale_factors<UMMA::tmem_sf_frg<float_ue8m0_t, 32, 2, true>, 64, 32, 1>("sfa.2sm128.1X");
  scale_factors<UMMA::tmem_sf_frg<float_ue8m0_t, 32, 2, false,
                                  UMMA::TmemAllocMode::ScaleFactorDuplicated2by2>,
                128, 32, 1>("sfb.2sm128.1X");
}
