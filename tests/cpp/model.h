// Scalar models of the products' definition, and data to try them on.
//
// The model of a sum is written from the rule that all paths share (product.inl): groups ascending,
// steps ascending within a group, one rounding per step. It shares no code with the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "path.h"

namespace model {

inline constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float e4m3(uint8_t code) {
  const int e = (code >> 3) & 15, m = code & 7;
  if (e == 15 && m == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = e == 0 ? std::ldexp(static_cast<float>(m), -9)
                                 : std::ldexp(static_cast<float>(8 + m), e - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The FP4 code of row n, summed index k of a prepared panel (the layout's definition).
inline int code_at(const std::vector<uint8_t>& codes, int64_t panel_offset, int n, int64_t k) {
  const int64_t byte = panel_offset + (k / 32) * 256 + (k % 32) / 8 * 64 + n * 4;
  const int j = static_cast<int>(k % 8), nibble = (j % 2) * 4 + j / 2;
  return (codes[static_cast<size_t>(byte + nibble / 2)] >> (nibble % 2 * 4)) & 15;
}

struct Row {
  std::vector<uint8_t> codes, scales;
};

// `pairs`: the order of a bfloat16 dot, odd k of a pair first.
inline float dot(const Row& row, const std::vector<uint8_t>& codes,
                 const std::vector<uint8_t>& scales, int64_t panel, int n, int64_t groups,
                 bool pairs) {
  float acc = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    float partial = 0.0f;
    for (int64_t i = 0; i < 32; ++i) {
      const int64_t k = g * 32 + (pairs ? i ^ 1 : i);
      partial += e4m3(row.codes[static_cast<size_t>(k)]) *
                 kE2M1[code_at(codes, panel * groups * 256, n, k)];
    }
    const int sx = row.scales[static_cast<size_t>(g)];
    const int sw = scales[static_cast<size_t>((panel * groups + g) * 16 + n)];
    // In double the scaled sum is exact; one rounding to float32, denormals flushed.
    const double exact = std::ldexp(static_cast<double>(partial), sx + sw - 254);
    float scaled = static_cast<float>(exact);
    if (std::fabs(exact) < 0x1p-126) scaled = 0.0f;
    if (sx == 255 || sw == 255) scaled = std::numeric_limits<float>::quiet_NaN();
    acc += scaled;
  }
  return acc;
}

inline std::vector<uint8_t> random_bytes(std::mt19937_64& rng, size_t n) {
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng() >> 40);
  return bytes;
}

}  // namespace model
