// Steps 1, 3 to 5, 7 and the roundings: known values, a scalar model in double, and equality of all
// paths.
#include <cmath>
#include <cstring>
#include <limits>

#include "fp_mode.h"
#include "harness.h"
#include "model.h"
#include "paths_under_test.h"

using namespace megamoe::cpu;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint16_t bf16(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof(b));
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<uint16_t>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
}
float widen(uint16_t x) {
  const uint32_t b = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &b, sizeof(f));
  return f;
}

// Nearest E4M3 code by search over all of them, ties to the even code.
uint8_t nearest_e4m3(double x) {
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double now = std::fabs(std::fabs(x) - model::e4m3(static_cast<uint8_t>(code)));
    const double then = std::fabs(std::fabs(x) - model::e4m3(static_cast<uint8_t>(best)));
    if (now < then || (now == then && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

int ceil_log2(double x) { return static_cast<int>(std::ceil(std::log2(x))); }

}  // namespace

TEST(quantised_rows_equal_the_search) {
  std::mt19937_64 rng(1);
  for (int trial = 0; trial < 60; ++trial) {
    uint16_t x[32];
    const int spread = static_cast<int>(rng() % 40), centre = static_cast<int>(rng() % 100) + 70;
    for (uint16_t& v : x) {
      const int e =
          centre + static_cast<int>(rng() % static_cast<uint64_t>(spread + 1)) - spread / 2;
      v = static_cast<uint16_t>((rng() & 0x807f) | static_cast<uint64_t>(e) << 7);
    }
    double amax = 1e-4f;
    for (const uint16_t v : x) amax = std::fmax(amax, std::fabs(widen(v)));
    const int e = ceil_log2(amax / 448.0);
    for (const Path* path : paths_under_test()) {
      const FlushDenormals mode;
      uint8_t codes[32], scale;
      path->quantize_row(x, 1, codes, &scale);
      CHECK(scale == e + 127, "%s: scale %d, expected %d", path->name, scale, e + 127);
      for (int i = 0; i < 32; ++i) {
        const uint8_t expected = nearest_e4m3(std::ldexp(static_cast<double>(widen(x[i])), -e));
        CHECK(codes[i] == expected, "%s: %a gives %02x, expected %02x", path->name,
              static_cast<double>(widen(x[i])), codes[i], expected);
      }
    }
  }
}

TEST(powers_of_two_times_448_keep_their_scale) {
  for (const Path* path : paths_under_test()) {
    for (int e = -20; e <= 119; ++e) {
      uint16_t x[32] = {};
      x[5] = bf16(std::ldexp(448.0f, e));
      uint8_t codes[32], scale;
      path->quantize_row(x, 1, codes, &scale);
      CHECK(scale == e + 127 && codes[5] == 0x7e, "%s: e %d gives scale %d", path->name, e, scale);
      x[5] = static_cast<uint16_t>(x[5] + 1);
      path->quantize_row(x, 1, codes, &scale);
      CHECK(scale == e + 128, "%s: above, e %d gives scale %d", path->name, e, scale);
    }
  }
}

TEST(nan_and_inf_groups_get_scale_255_and_others_do_not) {
  for (const Path* path : paths_under_test()) {
    for (const uint16_t bad :
         {uint16_t{0x7f80}, uint16_t{0xff80}, uint16_t{0x7fc0}, uint16_t{0x7f81}}) {
      uint16_t x[64] = {};
      x[40] = bad;
      uint8_t codes[64], scales[2];
      path->quantize_row(x, 2, codes, scales);
      CHECK(scales[0] == 105 && scales[1] == 255, "%s: scales %d %d", path->name, scales[0],
            scales[1]);
    }
  }
}

TEST(activation_follows_the_contract) {
  std::mt19937_64 rng(2);
  std::normal_distribution<float> normal;
  const Activation kinds[] = {
      {kInf, 1.0f, 0.0f}, {10.0f, 1.0f, 0.0f}, {7.0f, 1.702f, 1.0f}, {0.0f, 1.0f, 1.0f}};
  for (const Activation& kind : kinds) {
    for (int trial = 0; trial < 40; ++trial) {
      float gate[32], up[32], gate_bias[32], up_bias[32];
      const float size = trial < 20 ? 3.0f : 30.0f;
      for (int i = 0; i < 32; ++i) {
        gate[i] = normal(rng) * size;
        up[i] = normal(rng) * size;
        gate_bias[i] = normal(rng);
        up_bias[i] = normal(rng);
      }
      const float weight = normal(rng);
      double a[32], amax = 0.0;
      for (int i = 0; i < 32; ++i) {
        float g = widen(bf16(gate[i] + gate_bias[i])), u = widen(bf16(up[i] + up_bias[i]));
        g = std::fmin(g, kind.limit);
        u = std::fmax(std::fmin(u, kind.limit), -kind.limit);
        a[i] = static_cast<double>(g) / (1.0 + std::exp(-static_cast<double>(kind.alpha) * g)) *
               (static_cast<double>(u) + kind.beta) * weight;
        amax = std::fmax(amax, std::fabs(a[i]));
      }
      uint8_t first[33];
      for (const Path* path : paths_under_test()) {
        const FlushDenormals mode;
        uint8_t out[33];
        path->activate(gate, up, gate_bias, up_bias, kind, weight, out, out + 32);
        // One code step, at the value's own size, covers the float32 roundings at a tie.
        for (int i = 0; i < 32; ++i) {
          const double found = std::ldexp(static_cast<double>(model::e4m3(out[i])), out[32] - 127);
          const double step =
              std::fmax(std::fabs(a[i]) / 16.0, std::ldexp(1.0, out[32] - 127 - 10));
          CHECK(std::fabs(found - a[i]) <= step * 1.0001, "%s: found %g, expected %g", path->name,
                found, a[i]);
        }
        if (path == paths_under_test().front()) std::memcpy(first, out, 33);
        CHECK(std::memcmp(first, out, 33) == 0, "%s differs from another path", path->name);
      }
    }
  }
}

// One finite value of gate, up = 1: the activation must be silu(gate) to a few float32 roundings.
TEST(sigmoid_is_accurate_over_the_whole_range) {
  for (const Path* path : paths_under_test()) {
    const FlushDenormals mode;
    for (float g = -95.0f; g < 95.0f; g += 0.37f) {
      float gate[32], up[32];
      for (int i = 0; i < 32; ++i) gate[i] = g, up[i] = 1.0f;
      uint8_t codes[32], scale;
      path->activate(gate, up, nullptr, nullptr, {kInf, 1.0f, 0.0f}, 1.0f, codes, &scale);
      const double rounded = widen(bf16(g));
      const double expected = rounded / (1.0 + std::exp(-rounded));
      if (std::fabs(expected) < 0x1p-117) continue;  // below E4M3's grid at the smallest scale
      const double found = std::ldexp(static_cast<double>(model::e4m3(codes[0])), scale - 127);
      CHECK(std::fabs(found / expected - 1.0) < 1.0 / 16, "%s: silu(%g) = %g, expected %g",
            path->name, rounded, found, expected);
    }
  }
}

TEST(special_values_pass_the_activation_as_the_contract_says) {
  struct {
    float gate, up, limit, weight;
    int scale;  // 255: the group is NaN
  } cases[] = {{kNan, 1, 10, 1, 255},   {1, kNan, 10, 1, 255},
               {1, 1, 10, kNan, 255},   {kNan, 1, 10, 0, 255},
               {kInf, 1, kInf, 1, 255}, {1, kInf, kInf, 1, 255},
               {-kInf, 1, 10, 1, 255},  {3e38f, 3e38f, kInf, 1, 255},
               {0, 5, 10, 1, 1},        {5, 0, 10, 1, 1},
               {5, 5, 10, 0, 1},        {5, 5, 0, 1, 1}};
  for (const auto& c : cases) {
    for (const Path* path : paths_under_test()) {
      const FlushDenormals mode;
      float gate[32] = {}, up[32] = {};
      gate[9] = c.gate;
      up[9] = c.up;
      uint8_t codes[32], scale;
      path->activate(gate, up, nullptr, nullptr, {c.limit, 1.0f, 0.0f}, c.weight, codes, &scale);
      CHECK(scale == c.scale, "%s: gate %g up %g limit %g weight %g: scale %d, expected %d",
            path->name, static_cast<double>(c.gate), static_cast<double>(c.up),
            static_cast<double>(c.limit), static_cast<double>(c.weight), scale, c.scale);
    }
  }
  // A limit tames an infinite gate: silu(10) * 2 = 19.999.
  for (const Path* path : paths_under_test()) {
    float gate[32] = {}, up[32] = {};
    gate[0] = kInf;
    up[0] = 2.0f;
    uint8_t codes[32], scale;
    path->activate(gate, up, nullptr, nullptr, {10.0f, 1.0f, 0.0f}, 1.0f, codes, &scale);
    CHECK(std::ldexp(static_cast<double>(model::e4m3(codes[0])), scale - 127) == 20.0, "%s",
          path->name);
  }
}

TEST(gates_of_zero_and_from_32_are_exact) {
  for (const Path* path : paths_under_test()) {
    float gate[32], up[32];
    for (int i = 0; i < 32; ++i)
      gate[i] = i < 16 ? 0.0f : 32.0f * static_cast<float>(i - 15), up[i] = 0.25f;
    uint8_t codes[32], scale;
    path->activate(gate, up, nullptr, nullptr, {kInf, 1.0f, 0.0f}, 1.0f, codes, &scale);
    for (int i = 0; i < 32; ++i) {
      const double expected = i < 16 ? 0.0 : 8.0 * (i - 15);
      const uint8_t code = nearest_e4m3(std::ldexp(expected, 127 - scale));
      CHECK(codes[i] == code, "%s: column %d: %02x, expected %02x", path->name, i, codes[i], code);
    }
  }
}

TEST(rows_are_finished_and_summed_with_contract_roundings) {
  for (const Path* path : paths_under_test()) {
    float acc[32], bias[32];
    uint16_t out[32], y[32];
    for (int i = 0; i < 32; ++i)
      acc[i] = 1.0f + std::ldexp(static_cast<float>(i), -9), bias[i] = 0.5f;
    acc[3] = kNan;
    acc[4] = -kInf;
    path->finish(acc, nullptr, 9.0f, out);
    for (int i = 0; i < 32; ++i) CHECK(out[i] == bf16(acc[i]), "%s: column %d", path->name, i);
    path->finish(acc, bias, 0.25f, out);
    for (int i = 0; i < 32; ++i)
      CHECK(out[i] == bf16(acc[i] + 0.125f), "%s: column %d", path->name, i);

    uint16_t a[32], b[32];
    for (int i = 0; i < 32; ++i)
      a[i] = bf16(std::ldexp(1.0f, i - 16)), b[i] = bf16(static_cast<float>(i));
    a[7] = 0x8000;  // -0
    b[7] = 0x8000;
    a[8] = 0xffff;  // a NaN with a sign
    const uint16_t* rows[] = {a, b};
    path->combine(rows, 2, 32, y);
    for (int i = 0; i < 32; ++i) {
      const uint16_t expected = i == 7 ? 0 : i == 8 ? 0x7fc0 : bf16(widen(a[i]) + widen(b[i]));
      CHECK(y[i] == expected, "%s: column %d: %04x, expected %04x", path->name, i, y[i], expected);
    }
    path->combine(rows, 0, 32, y);
    for (const uint16_t v : y) CHECK(v == 0, "%s", path->name);
  }
}
