// What a test chooses per launch: seed, policy of the scheduler, rule set, checks, arithmetic of
// the tensor core.
#pragma once

#include <cstdint>

namespace sm100sim {

enum class Policy : uint8_t {
  kRandom,  // every task happens at a random later time
  kEager,   // at once
  kLatest,  // only when no warp can do anything but poll
};
enum class Rules : uint8_t { kHardware, kStrict };

struct Options {
  uint64_t seed = 0;
  Policy policy = Policy::kRandom;
  Rules rules = Rules::kHardware;
  bool races = false;      // vector clocks
  bool exact_mma = false;  // float64 sums instead of the bit-level model
  uint64_t step_limit =
      4'000'000;        // warp instructions without an event before a deadlock is reported
  int idle_limit = 64;  // rounds in which only time passes before a deadlock is reported
};

}  // namespace sm100sim
