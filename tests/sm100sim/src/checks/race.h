// Data races by vector clocks (switchable: Options::races). Agents are warps and asynchronous
// tasks; every byte granule of shared and global memory remembers its last writer and readers. The
// happens-before edges are exactly those that were executed: barriers, mbarriers, scoped
// release/acquire, fences, bulk completion, launch and grid end.
#pragma once

#include <cstdint>

#include "async/mbarrier.h"

namespace sm100sim {

struct Exec;
struct Place;
struct World;

enum class RaceKind : uint8_t { kRead, kWrite, kStrongRead, kStrongWrite };

struct RaceState {};

inline void race_access(Exec&, const Place&, uint32_t, int, RaceKind, uint8_t, uint8_t) {}
inline void race_release_prepare(Exec&, uint8_t) {}
inline void race_warp_sync(Exec&, uint32_t) {}
inline void race_fence(Exec&, uint8_t, uint8_t) {}
inline void race_barrier_arrive(Exec&, Clock&, Clock&) {}
inline void race_barrier_complete(World&, Clock&, Clock&, Clock&, Clock&) {}
inline void race_acquire(Exec&, const Clock&, const Clock&) {}

}  // namespace sm100sim
