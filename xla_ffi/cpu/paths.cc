// Processor features are asked for here and nowhere else; the table of a path that the machine
// lacks is never touched, let alone its code. GCC's and Clang's __builtin_cpu_supports also asks
// whether the operating system saves the wide registers.
#include "paths.h"

#include <stdlib.h>

namespace megamoe::cpu {

extern const Path kPathPortable;
#if defined(__x86_64__)
extern const Path kPathAvx2;
extern const Path kPathAvx512;
extern const Path kPathAvx512Bf16;
#endif

const std::vector<const Path*>& available_paths() {
  static const std::vector<const Path*>* paths = [] {
    auto* list = new std::vector<const Path*>;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) list->push_back(&kPathAvx512Bf16);
    if (avx512) list->push_back(&kPathAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
      list->push_back(&kPathAvx2);
#endif
    list->push_back(&kPathPortable);
    return list;
  }();
  return *paths;
}

const PathChoice& chosen_path() {
  static const PathChoice* choice = [] {
    const auto& paths = available_paths();
    const char* name = getenv("JAX_MEGAMOE_CPU_PATH");
    if (name == nullptr || *name == '\0') return new PathChoice{paths.front(), ""};
    std::string accepted;
    for (const Path* path : paths) {
      if (std::string(name) == path->name) return new PathChoice{path, ""};
      accepted += std::string(accepted.empty() ? "" : ", ") + path->name;
    }
    return new PathChoice{nullptr, "environment variable JAX_MEGAMOE_CPU_PATH: found \"" +
                                       std::string(name) + "\", but this machine accepts: " +
                                       accepted + ". Unset it to use the fastest of them"};
  }();
  return *choice;
}

}  // namespace megamoe::cpu
