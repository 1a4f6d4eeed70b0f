// The schedule (the leader's warp 7, before its loads): waits for the tags of all local experts and
// gives both CTAs of the pair the same table, so that they walk the same tasks even if one of them
// has seen a failure: then the table is empty.
#pragma once

#include "waits.cuh"

namespace megamoe::sm100 {

template <uint32_t N>
MOE_DEVICE void schedule_role(const Context& c) {
  const uint64_t* tags = c.at<uint64_t>(c.p.layout.expert_tag);
  const uint32_t* bases = c.at<uint32_t>(c.p.layout.expert_base);
  // Read after the pair's first barrier: if either CTA was dead at its start, so is the schedule.
  bool ok = !rank_poisoned(c);
  for (uint32_t x = c.lane; x < c.p.local_experts && ok; x += 32) {
    ok = wait_until(c, Wait::kLists, kNobody, x, [&] {
      return static_cast<uint32_t>(ptx::load_acquire_gpu(tags + x)) == c.epoch;
    });
  }
  ok = __all_sync(~0u, ok) != 0;
  uint32_t units = 0;
  for (uint32_t x = c.lane; x < c.p.local_experts; x += 32) {
    const uint32_t n = ok ? static_cast<uint32_t>(ptx::load_acquire_gpu(tags + x) >> 32) : 0;
    const uint32_t base = ok ? bases[x] : 0;
    units += units_of(n, N);
    for (uint32_t rank = 0; rank < 2; ++rank)
      ptx::store_cluster2(ptx::map_to_rank(c.shared + SharedMap<N>::kExperts + 8 * x, rank), n,
                          base);
  }
  units = __reduce_add_sync(~0u, units);
  if (c.lane < 2) ptx::store_cluster(ptx::map_to_rank(c.word(kUnits), c.lane), units);
  __syncwarp();
  if (c.lane < 2) ptx::mbarrier_arrive_cluster(ptx::map_to_rank(c.word(kScheduleReady), c.lane));
}

MOE_DEVICE void wait_schedule(const Context& c) { ptx::mbarrier_wait(c.word(kScheduleReady), 0); }

}  // namespace megamoe::sm100
