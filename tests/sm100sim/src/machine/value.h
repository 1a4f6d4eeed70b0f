// Registers. A register holds 32 lanes of 64 bits, zero-extended from its type, and says per lane
// which of the eight bytes are poison: values that the rules leave undefined (uninitialised, or the
// destination of an asynchronous operation). Poison travels with values; using it for a decision is
// the error. `pl` is the summary that keeps the common case (no poison) free of work.
#pragma once

#include <cstdint>

namespace sm100sim {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

struct alignas(64) Reg {
  uint64_t v[kLanes];
  uint8_t p[kLanes];  // bit i: byte i is poison; meaningful only where pl has the lane's bit
  uint32_t pl;

  uint8_t poison(int lane) const { return (pl >> lane & 1) ? p[lane] : 0; }
  void set_poison(int lane, uint8_t bytes) {
    p[lane] = bytes;
    pl = bytes ? pl | (1u << lane) : pl & ~(1u << lane);
  }
  void clean(uint32_t mask) { pl &= ~mask; }
  void set(int lane, uint64_t value) { v[lane] = value; }
};

/// A predicate register: one bit per lane, and one poison bit per lane.
struct Pred {
  uint32_t v = 0;
  uint32_t p = kAllLanes;
};

/// Calls f(lane) for every set bit.
template <class F>
inline void for_lanes(uint32_t mask, F&& f) {
  if (mask == kAllLanes) {
    for (int lane = 0; lane < kLanes; ++lane) f(lane);
    return;
  }
  while (mask != 0) {
    const int lane = __builtin_ctz(mask);
    mask &= mask - 1;
    f(lane);
  }
}

inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

}  // namespace sm100sim
