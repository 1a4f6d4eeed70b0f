// The products: a block of rows times two or four panels. One body for every path; the including
// file supplies the instructions as a struct `Isa` and has to say how its registers hold a tile.
//
// * V: 16 float32, one for each row of a panel
// * Element: a row's values of one step in a packed tile, float or uint32_t (a pair of bfloat16)
// * kSteps: dot steps in a group, 32, or 16 if a step takes a pair of k
// * kTileRows: rows of the tallest tile; kWide: panels that a tile holds at once, 4 or 1
// * kInPlace: rows of the tallest tile whose weights are decoded as they are used, not to a buffer
// * zero(), load(p), store(p, v), codes(p), decode(codes, step of its quarter), spread(element),
//   dot(acc, x, w), fma(a, b, c) = a * b + c, powers(scale bytes)
//
// Every path, tile height, number of panels and source of weights runs THE SAME steps for an
// output: from +0, each group of 32 k is summed in ascending steps on unscaled weights; the sum
// times the weight's scale is then added to the output, groups ascending. So a row's bits depend on
// nothing but the row and the weights.
#pragma once

#include <string.h>

#include "formats.inl"
#include "pack.inl"
#include "path.h"

namespace megamoe::cpu {
namespace {

constexpr int64_t kCodeBlock = 256;  // bytes of codes, and of scales, of a panel's group (layout.h)
constexpr int64_t kScaleBlock = 16;
constexpr int64_t kAhead = 8;  // groups between a prefetch and its use

// An address as an integer, since what is asked for ahead may lie beyond the array, where a pointer
// must not point; a prefetch of such an address does nothing.
using Address = uintptr_t;

inline Address address_of(const uint8_t* p, int64_t offset) {
  return reinterpret_cast<Address>(p) + static_cast<Address>(offset);
}

inline void prefetch_group(Address p) {
  for (Address i = 0; i < 4; ++i) __builtin_prefetch(reinterpret_cast<const void*>(p + i * 64));
}

// Weights decoded as they are used: each vector of codes yields a quarter of the group's steps.
template <class Isa, int kWide>
struct InPlace {
  const uint8_t* codes[kWide];
  const uint8_t* scales[kWide];

  struct Quarter {
    typename Isa::Codes c[kWide];
  };
  Quarter quarter(int64_t g, int v) const {
    Quarter q;
    for (int n = 0; n < kWide; ++n) q.c[n] = Isa::codes(codes[n] + g * kCodeBlock + v * 64);
    return q;
  }
  typename Isa::V weight(const Quarter& q, int64_t, int, int step, int n) const {
    return Isa::decode(q.c[n], step);
  }
  typename Isa::V power(int64_t g, int n) const { return Isa::powers(scales[n] + g * kScaleBlock); }
};

// Weights decoded once for all tiles of a block: [group][step][panel] vectors, then [group][panel]
// powers.
template <class Isa, int kWide>
struct Buffered {
  const float* weights;
  const float* scale_powers;

  struct Quarter {};
  Quarter quarter(int64_t, int) const { return {}; }
  typename Isa::V weight(const Quarter&, int64_t g, int v, int step, int n) const {
    const int64_t s = g * Isa::kSteps + v * (Isa::kSteps / 4) + step;
    return Isa::load(weights + (s * kWide + n) * 16);
  }
  typename Isa::V power(int64_t g, int n) const {
    return Isa::load(scale_powers + (g * kWide + n) * 16);
  }
};

// acc[r * 64 + 16 n ..] += the sum over groups first..last-1 for a tile of kRows rows. x: the tile
// at group `first`.
template <class Isa, int kRows, int kWide, class Weights>
__attribute__((noinline)) void tile(const Weights& weights, int64_t first, int64_t last,
                                    const Address* ahead, const typename Isa::Element* x,
                                    float* acc) {
  using V = typename Isa::V;
  constexpr int kQuarter = Isa::kSteps / 4;
  for (int64_t g = first; g < last; ++g) {
    if (ahead != nullptr) {
      for (int n = 0; n < kWide; ++n)
        prefetch_group(ahead[n] + static_cast<Address>(g * kCodeBlock));
    }
    V p[kRows][kWide];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < kWide; ++n) p[r][n] = Isa::zero();
    }
#pragma GCC unroll 1
    // Kept a loop: four times the code would leave the decoded-uop cache.
    for (int v = 0; v < 4; ++v) {
      const auto quarter = weights.quarter(g, v);
#pragma GCC unroll 8
      for (int s = 0; s < kQuarter; ++s) {
        V w[kWide];
#pragma GCC unroll 4
        for (int n = 0; n < kWide; ++n) w[n] = weights.weight(quarter, g, v, s, n);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const auto xr = Isa::spread(x + r);
#pragma GCC unroll 4
          for (int n = 0; n < kWide; ++n) p[r][n] = Isa::dot(p[r][n], xr, w[n]);
        }
        x += kRows;
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < kWide; ++n) {
      const V power = weights.power(g, n);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float* a = acc + r * kAccColumns + n * 16;
        Isa::store(a, Isa::fma(p[r][n], power, Isa::load(a)));
      }
    }
  }
}

// The same sums where a scale is extreme: partial * 2^(row scale + weight scale) is formed by two
// exact multiplications (either may overflow or flush only if the product does), NaN for byte 255.
// One output vector at a time; `row_scales` is null for a scaled tile, whose rows hold their scales
// already.
template <class Isa>
void tile_careful(const uint8_t* codes, const uint8_t* scales, int64_t groups, int rows,
                  const uint8_t* const* row_scales, const typename Isa::Element* x, float* acc) {
  for (int r = 0; r < rows; ++r) {
    float* a = acc + r * kAccColumns;
    for (int64_t g = 0; g < groups; ++g) {
      typename Isa::V p = Isa::zero();
      for (int v = 0; v < 4; ++v) {
        const auto c = Isa::codes(codes + g * kCodeBlock + v * 64);
#pragma GCC unroll 8
        for (int s = 0; s < Isa::kSteps / 4; ++s) {
          const int64_t step = g * Isa::kSteps + v * (Isa::kSteps / 4) + s;
          p = Isa::dot(p, Isa::spread(x + step * rows + r), Isa::decode(c, s));
        }
      }
      float partial[16];
      Isa::store(partial, p);
      const int row_scale = row_scales == nullptr ? 127 : row_scales[r][g];
      for (int i = 0; i < 16; ++i) {
        const int weight_scale = scales[g * kScaleBlock + i];
        const int e = row_scale + weight_scale - 254, half = e >> 1;
        const bool nan = row_scale == 255 || weight_scale == 255;
        const float one = float_of(static_cast<uint32_t>(half + 127) << 23);
        const float two = float_of(static_cast<uint32_t>(e - half + 127) << 23);
        a[i] += nan ? float_of(kNanBits) : (partial[i] * one) * two;
      }
    }
  }
}

template <class Isa, int kWide, class Weights, int kRows = Isa::kTileRows>
void tile_of(int rows, const Weights& weights, int64_t first, int64_t last, const Address* ahead,
             const typename Isa::Element* x, float* acc) {
  if constexpr (kRows > 0) {
    if (rows == kRows) {
      tile<Isa, kRows, kWide>(weights, first, last, ahead, x, acc);
    } else {
      tile_of<Isa, kWide, Weights, kRows - 1>(rows, weights, first, last, ahead, x, acc);
    }
  }
}

inline bool within_weight_bounds(const uint8_t* scales, int64_t groups) {
  uint8_t low = 255, high = 0;
  for (int64_t i = 0; i < groups * kScaleBlock; ++i) {
    low = scales[i] < low ? scales[i] : low;
    high = scales[i] > high ? scales[i] : high;
  }
  return low >= kWeightScaleMin && high <= kWeightScaleMax;
}

template <class Isa>
inline const typename Isa::Element* tile_start(const RowBlock& rows, const Tile& t,
                                               int64_t groups) {
  return reinterpret_cast<const typename Isa::Element*>(rows.packed) +
         static_cast<int64_t>(t.first) * groups * Isa::kSteps;
}

// Memory-bound: stream the codes once, asking for those some groups on; near the end for those that
// this thread is likely to want next.
template <class Isa, int kWide>
void multiply_in_place(const Panels& w, int panel, const InPlace<Isa, kWide>& weights,
                       const Tile& t, const typename Isa::Element* x, int64_t groups, float* acc) {
  const int64_t turn = groups > kAhead ? groups - kAhead : 0;
  Address ahead[kWide];
  for (int n = 0; n < kWide; ++n) ahead[n] = address_of(weights.codes[n], kAhead * kCodeBlock);
  tile_of<Isa, kWide>(t.rows, weights, 0, turn, ahead, x, acc);
  for (int n = 0; n < kWide; ++n) ahead[n] = address_of(w.ahead[panel + n], -turn * kCodeBlock);
  tile_of<Isa, kWide>(t.rows, weights, turn, groups, ahead, x + turn * Isa::kSteps * t.rows, acc);
}

// Compute-bound: decode some groups into the first-level cache, multiply every tile by them, go on.
template <class Isa, int kWide>
void multiply_buffered(const InPlace<Isa, kWide>& direct, const RowBlock& rows, int64_t groups,
                       float* acc) {
  constexpr int64_t kBufferGroups = (16 << 10) / (Isa::kSteps * kWide * 64);
  alignas(64) float weights[kBufferGroups * Isa::kSteps * kWide * 16];
  alignas(64) float powers[kBufferGroups * kWide * 16];
  for (int64_t first = 0; first < groups; first += kBufferGroups) {
    const int64_t count = groups - first < kBufferGroups ? groups - first : kBufferGroups;
    float *w = weights, *f = powers;
    for (int64_t g = first; g < first + count; ++g) {
      for (int v = 0; v < 4; ++v) {
        const auto quarter = direct.quarter(g, v);
#pragma GCC unroll 8
        for (int s = 0; s < Isa::kSteps / 4; ++s) {
#pragma GCC unroll 4
          for (int n = 0; n < kWide; ++n, w += 16) Isa::store(w, Isa::decode(quarter.c[n], s));
        }
      }
      for (int n = 0; n < kWide; ++n, f += 16) {
        Isa::store(f, direct.power(g, n));
        prefetch_group(address_of(direct.codes[n], (g + kBufferGroups) * kCodeBlock));
      }
    }
    const Buffered<Isa, kWide> buffered{weights, powers};
    for (int32_t i = 0; i < rows.tile_count; ++i) {
      const Tile& t = rows.tiles[i];
      if (!t.scaled) continue;
      tile_of<Isa, kWide>(t.rows, buffered, 0, count, nullptr,
                          tile_start<Isa>(rows, t, groups) + first * Isa::kSteps * t.rows,
                          acc + t.first * kAccColumns);
    }
  }
}

// Panels panel .. panel + kWide - 1.
template <class Isa, int kWide>
void multiply_panels(const Panels& w, int panel, const RowBlock& rows, int64_t groups, float* acc) {
  InPlace<Isa, kWide> direct;
  bool plain = true;
  for (int n = 0; n < kWide; ++n) {
    direct.codes[n] = w.codes[panel + n];
    direct.scales[n] = w.scales[panel + n];
    plain = plain && within_weight_bounds(direct.scales[n], groups);
  }
  acc += panel * 16;
  bool any = false;
  for (int32_t i = 0; i < rows.tile_count; ++i) {
    const Tile& t = rows.tiles[i];
    if (plain && t.scaled) {
      any = true;
      continue;
    }
    for (int n = 0; n < kWide; ++n) {
      tile_careful<Isa>(direct.codes[n], direct.scales[n], groups, t.rows,
                        t.scaled ? nullptr : rows.scales + t.first,
                        tile_start<Isa>(rows, t, groups), acc + t.first * kAccColumns + n * 16);
    }
  }
  if (!any) return;
  if (rows.tile_count == 1 && rows.rows <= Isa::kInPlace) {
    multiply_in_place<Isa, kWide>(w, panel, direct, rows.tiles[0],
                                  tile_start<Isa>(rows, rows.tiles[0], groups), groups, acc);
  } else {
    multiply_buffered<Isa, kWide>(direct, rows, groups, acc);
  }
}

template <class Isa>
void multiply(const Panels& w, const RowBlock& rows, int64_t groups, float* acc) {
  memset(acc, 0, sizeof(float) * kAccColumns * static_cast<size_t>(rows.rows));
  if constexpr (Isa::kWide == 4) {
    if (w.count == 4) return multiply_panels<Isa, 4>(w, 0, rows, groups, acc);
    return multiply_panels<Isa, 2>(w, 0, rows, groups, acc);
  } else {
    for (int panel = 0; panel < w.count; ++panel)
      multiply_panels<Isa, 1>(w, panel, rows, groups, acc);
  }
}

}  // namespace
}  // namespace megamoe::cpu
