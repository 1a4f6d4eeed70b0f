// Turns quantised rows into the tiles that the products read: values spread out, rows interleaved.
//
// A row whose scales all lie in kRowScale is multiplied by them here, which is exact and saves the
// products a step per group; the bounds leave room so that neither a code times its scale, a
// partial sum nor its product with a weight scale inside kWeightScale can leave the normal float32
// range.
#pragma once

#include "formats.inl"
#include "path.h"

namespace megamoe::cpu {
namespace {

// A nonzero partial sum of 32 unscaled products lies in 2^-10 .. 2^17. With both scales in bounds
// every scaled one lies in 2^(-10-60-56) = 2^-126 .. 2^(17+60+49) = 2^126.
constexpr uint8_t kRowScaleMin = 127 - 60, kRowScaleMax = 127 + 60;
constexpr uint8_t kWeightScaleMin = 127 - 56, kWeightScaleMax = 127 + 49;

bool scalable(const uint8_t* codes, const uint8_t* scales, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t s = scales[g];
    if ((s >= kRowScaleMin && s <= kRowScaleMax) || s == 255) continue;
    uint8_t any = 0;  // a group of zeros needs no scale
    for (int i = 0; i < 32; ++i) any |= codes[g * 32 + i] & 0x7fu;
    if (any != 0) return false;
  }
  return true;
}

// The factor of a group in a scaled tile; NaN for byte 255, so that every product is NaN.
inline float row_factor(uint8_t s) {
  if (s == 255) return float_of(kNanBits);
  return s >= kRowScaleMin && s <= kRowScaleMax ? float_of(static_cast<uint32_t>(s) << 23) : 1.0f;
}

inline void spread_group(const uint8_t* codes, uint8_t scale, bool scaled, float* v) {
  const float factor = scaled ? row_factor(scale) : 1.0f;
  for (int i = 0; i < 32; ++i) v[i] = from_e4m3(codes[i]) * factor;
}

// [k][rows] float32. Group by group for all rows, so that a tile's lines are written while in the
// cache.
[[maybe_unused]] void pack_tile_float32(const uint8_t* const* codes, const uint8_t* const* scales,
                                        int64_t groups, bool scaled, int32_t rows, uint8_t* out) {
  float* tile = reinterpret_cast<float*>(out);
  for (int64_t g = 0; g < groups; ++g, tile += 32 * rows) {
    if (rows == 1) {
      spread_group(codes[0] + g * 32, scales[0][g], scaled, tile);
      continue;
    }
    for (int32_t r = 0; r < rows; ++r) {
      float v[32];
      spread_group(codes[r] + g * 32, scales[r][g], scaled, v);
      for (int i = 0; i < 32; ++i) tile[i * rows + r] = v[i];
    }
  }
}

// [k/2][rows] pairs of bfloat16, the even k in the low half. Every value is exact: a code has four
// significant bits, and the bounds above keep it normal.
[[maybe_unused]] void pack_tile_bfloat16(const uint8_t* const* codes, const uint8_t* const* scales,
                                         int64_t groups, bool scaled, int32_t rows, uint8_t* out) {
  uint32_t* tile = reinterpret_cast<uint32_t*>(out);
  for (int64_t g = 0; g < groups; ++g, tile += 16 * rows) {
    for (int32_t r = 0; r < rows; ++r) {
      float v[32];
      uint32_t pair[16];
      spread_group(codes[r] + g * 32, scales[r][g], scaled, v);
      for (int i = 0; i < 16; ++i) {
        pair[i] = (bits_of(v[2 * i]) >> 16) | (bits_of(v[2 * i + 1]) & 0xffff0000u);
      }
      for (int i = 0; i < 16; ++i) tile[i * rows + r] = pair[i];
    }
  }
}

}  // namespace
}  // namespace megamoe::cpu
