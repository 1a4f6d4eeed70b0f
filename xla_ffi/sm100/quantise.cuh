// Steps 1 and 5 of the contract: a group of 32 values to FP8 E4M3 and a UE8M0 byte. Decides on the
// float32 bits, so that exact powers of two stay exact.
#pragma once

#include "ptx.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kScaleNan = 255, kScaleOne = 127;

struct GroupScale {
  uint32_t byte;  // UE8M0
  float inverse;  // 2^-e, or 0 for a group with NaN or Inf
};

// `largest`: bits of the group's largest magnitude, at least those of any NaN or Inf in it.
MOE_DEVICE GroupScale group_scale(uint32_t largest) {
  if (largest >= 0x7F800000u) return {kScaleNan, 0.0f};
  // 448 = 1.75 x 2^8: the exponent field minus 8, one more if the mantissa exceeds 1.75.
  int byte = static_cast<int>(largest >> 23) - 8 + ((largest & 0x7FFFFFu) > 0x600000u);
  byte = byte < 1 ? 1 : byte;  // e >= -126
  return {static_cast<uint32_t>(byte), __uint_as_float((254u - byte) << 23)};
}

// A value of the group, scaled; zero where the byte already says NaN.
MOE_DEVICE float scaled(float value, const GroupScale& scale) {
  return scale.byte == kScaleNan ? 0.0f : __fmul_rn(value, scale.inverse);
}

MOE_DEVICE uint32_t pack4(float a, float b, float c, float d, const GroupScale& scale) {
  return ptx::pack_e4m3(scaled(a, scale), scaled(b, scale)) |
         ptx::pack_e4m3(scaled(c, scale), scaled(d, scale)) << 16;
}

}  // namespace megamoe::sm100
