// The paths that the tests run: those of this machine, and the AVX-512 BF16 kernel on an emulated
// dot where the machine has AVX-512 but not that instruction.
#pragma once

#include <string>
#include <vector>

#include "paths.h"

namespace megamoe::cpu {
extern const Path kPathPortable;
const Path* emulated_bf16_path();  // null without AVX-512
}  // namespace megamoe::cpu

inline std::vector<const megamoe::cpu::Path*> paths_under_test() {
  std::vector<const megamoe::cpu::Path*> paths = megamoe::cpu::available_paths();
  if (const auto* emulated = megamoe::cpu::emulated_bf16_path()) paths.push_back(emulated);
  return paths;
}

// Whether a path sums pairs of k, the odd one first.
inline bool sums_pairs(const megamoe::cpu::Path& path) { return path.element_bytes == 2; }
