// Steps 1, 3, 4, 5 and 7 of the contract and the roundings of step 6: everything but the products.
//
// Included by every path file and vectorised there by the compiler. The order of roundings is the
// contract's; the exponential is this file's own and bounded in README.md.
#pragma once

#include "formats.inl"
#include "path.h"

namespace megamoe::cpu {
namespace {

// Step 1. The floor of 1e-4 on the largest magnitude keeps the scale of a row of zeros finite.
void quantize_row(const uint16_t* x, int64_t groups, uint8_t* codes, uint8_t* scales) {
  const uint32_t floor_bits = bits_of(1e-4f);
  for (int64_t g = 0; g < groups; ++g) {
    float v[32];
    for (int i = 0; i < 32; ++i) v[i] = from_bfloat16(x[g * 32 + i]);
    uint32_t amax = largest_magnitude(v);
    amax = amax > floor_bits ? amax : floor_bits;
    scales[g] = encode_group(v, amax, e4m3_scale_exponent(amax), codes + g * 32);
  }
}

// exp(z): z = n ln 2 + r with |r| <= ln 2 / 2, exp(r) = 1 + r + r^2 q(r) with q minimax of
// degree 4. exp(0) is 1 exactly. The power 2^n goes in as two factors, since n reaches 128 and
// falls below -126. NaN stays NaN: it passes the clamps, and r is then NaN whatever n's bits say.
inline float exponential(float z) {
  z = z > 89.0f ? 89.0f : z;
  z = z < -104.0f ? -104.0f : z;
  const float shifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float t = z * 1.44269504f + shifter;
  const int32_t n = static_cast<int32_t>(bits_of(t) - bits_of(shifter));
  const float whole = t - shifter;
  const float r = (z - whole * 0.693359375f) - whole * -0.000212194442f;
  float q = 0.00138145406f;
  q = q * r + 0.00836874545f;
  q = q * r + 0.041668389f;
  q = q * r + 0.166665211f;
  q = q * r + 0.49999994f;
  const float p = 1.0f + (r + (r * r) * q);
  const int32_t half = n >> 1;
  const float first = float_of(static_cast<uint32_t>(half + 127) << 23);
  const float second = float_of(static_cast<uint32_t>(n - half + 127) << 23);
  return (p * first) * second;
}

// Steps 2 (bias) to 5 for 32 columns. A comparison with NaN is false, so the clamps hand NaN on.
void activate(const float* gate, const float* up, const float* gate_bias, const float* up_bias,
              const Activation& activation, float weight, uint8_t* codes, uint8_t* scale) {
  const float limit = activation.limit, alpha = activation.alpha, beta = activation.beta;
  float g[32], u[32], a[32];
  for (int i = 0; i < 32; ++i) g[i] = gate[i];
  for (int i = 0; i < 32; ++i) u[i] = up[i];
  if (gate_bias != nullptr) {
    for (int i = 0; i < 32; ++i) g[i] += gate_bias[i];
    for (int i = 0; i < 32; ++i) u[i] += up_bias[i];
  }
  for (int i = 0; i < 32; ++i) {
    float x = round_bfloat16(g[i]);
    float y = round_bfloat16(u[i]);
    x = x > limit ? limit : x;
    y = y > limit ? limit : y;
    y = y < -limit ? -limit : y;
    const float sigmoid = 1.0f / (1.0f + exponential(-(alpha * x)));
    a[i] = ((x * sigmoid) * (y + beta)) * weight;
  }
  const uint32_t amax = largest_magnitude(a);
  const int32_t exponent = e4m3_scale_exponent(amax);
  *scale = encode_group(a, amax, exponent < -126 ? -126 : exponent, codes);
}

void finish(const float* acc, const float* bias, float weight, uint16_t* out) {
  if (bias == nullptr) {
    for (int i = 0; i < 32; ++i) out[i] = to_bfloat16(acc[i]);
  } else {
    for (int i = 0; i < 32; ++i) out[i] = to_bfloat16(acc[i] + weight * bias[i]);
  }
}

// Step 7. Starting from +0 makes a lone -0 come out as +0.
void combine(const uint16_t* const* rows, int32_t count, int64_t n, uint16_t* y) {
  for (int64_t h = 0; h < n; h += 32) {
    float sum[32];
    for (int i = 0; i < 32; ++i) sum[i] = 0.0f;
    for (int32_t j = 0; j < count; ++j) {
      const uint16_t* row = rows[j] + h;
      for (int i = 0; i < 32; ++i) sum[i] += from_bfloat16(row[i]);
    }
    for (int i = 0; i < 32; ++i) y[h + i] = to_bfloat16(sum[i]);
  }
}

}  // namespace
}  // namespace megamoe::cpu
