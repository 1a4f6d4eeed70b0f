// What bounds a path on this machine, measured with the path's own instructions: dots on registers
// alone, and reads of memory. For benchmarks, which time these next to the layer; the layer itself
// uses neither.
#pragma once

#include <stdint.h>

#include "product.inl"

namespace megamoe::cpu {
namespace {

// Values that the compiler cannot know, and a place that keeps results alive.
volatile float probe_source[16] = {};
volatile float probe_sink = 0.0f;

// The dots of the tallest tile, `rounds` times, on sums and weights that stay in registers; only
// the activations are read, from a few bytes. Returns the multiply-adds done.
template <class Isa>
int64_t probe_dots(int64_t rounds) {
  constexpr int kRows = Isa::kTileRows, kWide = Isa::kWide, kElements = 8;
  float values[16];
  const auto unknown = [&values] {
    for (int i = 0; i < 16; ++i) values[i] = probe_source[i];
    return Isa::load(values);
  };
  typename Isa::V sums[kRows][kWide], w[kWide];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kWide; ++n) sums[r][n] = unknown();
  }
#pragma GCC unroll 4
  for (int n = 0; n < kWide; ++n) w[n] = unknown();
  typename Isa::Element x[kElements + kRows];
  for (int i = 0; i < kElements + kRows; ++i) memcpy(x + i, values + i % 16, sizeof(x[i]));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const auto xr = Isa::spread(x + round % kElements + r);
#pragma GCC unroll 4
      for (int n = 0; n < kWide; ++n) sums[r][n] = Isa::dot(sums[r][n], xr, w[n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kWide; ++n) {
      Isa::store(values, sums[r][n]);
      for (int i = 0; i < 16; ++i) probe_sink = values[i];
    }
  }
  return rounds * kRows * kWide * 16 * (32 / Isa::kSteps);
}

// Reads `bytes` (whole kilobytes of them) once, in order, as decode reads codes. Returns the bytes
// read.
template <class Isa>
int64_t probe_read(const uint8_t* p, int64_t bytes) {
  uint64_t sum = 0;
  const int64_t end = bytes / 1024 * 1024;
  for (int64_t i = 0; i < end; i += 1024) {
#pragma GCC unroll 16
    for (int64_t j = i; j < i + 1024; j += 64) {
      __builtin_prefetch(p + j + kAhead * kCodeBlock);
      const auto codes = Isa::codes(p + j);
      uint64_t word;
      memcpy(&word, &codes, sizeof(word));
      sum += word;
    }
  }
  probe_sink = static_cast<float>(sum);
  return end;
}

}  // namespace
}  // namespace megamoe::cpu
