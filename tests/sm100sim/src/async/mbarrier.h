// The mbarrier object: phases, pending arrivals and transaction counts (PTX ISA, "Asynchronous
// Warpgroup ... mbarrier"). Kept beside the shared memory it names, not in it: its bytes are opaque
// to programs, and any ordinary access to them is an error.
#pragma once

#include <cstdint>
#include <vector>

namespace sm100sim {

inline constexpr int32_t kMbarrierLimit = (1 << 20) - 1;

using Clock = std::vector<uint32_t>;

struct Mbarrier {
  uint32_t phase = 0;
  int32_t expected = 0, pending = 0;
  int32_t tx = 0;
  uint64_t touched = 0;  // scheduler step of the last change, for reports
  Clock released;        // what arrivals of the current phase publish
  Clock completed;       // what a waiter of the last completed phase acquires
  Clock proxied, completed_proxied;
};

}  // namespace sm100sim
