// See mbarrier_ops.h. PTX ISA "mbarrier": a phase completes when no arrival is pending and the
// tx-count is zero; then the next one begins with the expected count. The tx-count may be negative
// meanwhile: bytes may land before they are announced.

#include "async/mbarrier_ops.h"
#include "checks/race.h"

namespace sm100sim {

Mbarrier& live_mbarrier(Cta& cta, uint32_t offset, int lane) {
  if (cta.finished) {
    throw Fault(
        "exited-cta",
        format("the mbarrier at 0x%x belongs to CTA %u, which has ended", offset, cta.linear), lane,
        offset);
  }
  const auto it = cta.mbarriers.find(offset);
  if (it == cta.mbarriers.end()) {
    throw Fault("mbarrier",
                format("there is no initialised mbarrier at 0x%x of CTA %u", offset, cta.linear),
                lane, offset);
  }
  return it->second;
}

void apply(World& world, Cta& cta, uint32_t offset, int64_t expect, int64_t complete,
           int32_t arrivals, bool drop, int lane) {
  Mbarrier& m = live_mbarrier(cta, offset, lane);
  const int64_t tx = m.tx + expect - complete;
  if (m.tx + expect > kMbarrierLimit || tx > kMbarrierLimit || tx < -kMbarrierLimit) {
    throw Fault(
        "mbarrier",
        format(
            "the tx-count of the mbarrier at 0x%x leaves its range: %d + %lld - %lld, at most %d",
            offset, m.tx, static_cast<long long>(expect), static_cast<long long>(complete),
            kMbarrierLimit),
        lane, offset);
  }
  m.tx = static_cast<int32_t>(tx);
  if (arrivals > m.pending) {
    throw Fault("mbarrier",
                format("%d arrivals at the mbarrier at 0x%x, which waits for %d more of %d in "
                       "phase %u: too many arrivals",
                       arrivals, offset, m.pending, m.expected, m.phase),
                lane, offset);
  }
  m.pending -= arrivals;
  if (drop) {
    m.expected -= arrivals;
  }
  m.touched = world.step;
  event(world);
  if (m.pending == 0 && m.tx == 0) {
    ++m.phase;
    m.pending = m.expected;
    race_barrier_complete(world, m.released, m.completed, m.proxied, m.completed_proxied);
    wake_mbarrier(world, cta, offset);
  }
}

}  // namespace sm100sim
