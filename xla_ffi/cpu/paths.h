// Which instruction-set path this process uses: the fastest that the machine runs, or the one that
// JAX_MEGAMOE_CPU_PATH names (for debugging and tests; read once).
#pragma once

#include <string>
#include <vector>

#include "path.h"

namespace megamoe::cpu {

// The paths that this machine can run, fastest first; "portable" is always the last.
const std::vector<const Path*>& available_paths();

struct PathChoice {
  const Path* path;   // null if the environment names none of the above
  std::string error;  // then: what was found, what is accepted
};
const PathChoice& chosen_path();

}  // namespace megamoe::cpu
