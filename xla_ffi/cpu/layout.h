// Where every byte of the prepared expert weights lies ("cpu" layout, version 1).
//
// Only offsets and sizes: what a byte means is jax_megamoe/layouts/cpu.py's to document and
// README.md's to explain; reading them is the micro-kernels' business. Everything is 64-bit because
// a layer of 896 experts with 2I = 6144 and H = 7168 holds 19.7e9 code bytes.
#pragma once

#include <stdint.h>

namespace megamoe::cpu {

inline constexpr int32_t kLayoutVersion = 1;
inline constexpr int64_t kPanelRows = 16;   // rows of a weight matrix that share a panel
inline constexpr int64_t kGroup = 32;       // values of k that share a UE8M0 scale
inline constexpr int64_t kCodeBytes = 256;  // one panel x one group: 16 * 32 codes of 4 bits
inline constexpr int64_t kScaleBytes = 16;  // one panel x one group: a scale byte for each row

// The [experts][n/16][k/32] blocks of one weight array; n is its output rows, k the summed
// dimension.
struct WeightShape {
  int64_t experts, n, k;

  int64_t panels() const { return n / kPanelRows; }
  int64_t groups() const { return k / kGroup; }
  // Index of the block of `expert`, `panel`, group 0; the groups of a panel follow one another.
  int64_t block(int64_t expert, int64_t panel) const {
    return (expert * panels() + panel) * groups();
  }
  int64_t code_offset(int64_t expert, int64_t panel) const {
    return block(expert, panel) * kCodeBytes;
  }
  int64_t scale_offset(int64_t expert, int64_t panel) const {
    return block(expert, panel) * kScaleBytes;
  }
  int64_t code_bytes() const { return block(experts, 0) * kCodeBytes; }
  int64_t scale_bytes() const { return block(experts, 0) * kScaleBytes; }
};

}  // namespace megamoe::cpu
