// Offers the emulated path where the machine can run it; compiled for the baseline, unlike the path
// itself.
#include <cstring>

#include "paths_under_test.h"

namespace megamoe::cpu {

#if defined(__x86_64__)
extern const Path kPathEmulatedBf16;
#endif

const Path* emulated_bf16_path() {
#if defined(__x86_64__)
  for (const Path* path : available_paths()) {
    if (std::strcmp(path->name, "avx512") == 0) return &kPathEmulatedBf16;
  }
#endif
  return nullptr;
}

}  // namespace megamoe::cpu
