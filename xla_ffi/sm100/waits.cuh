// Waits for other CTAs and other ranks: bounded, poison-aware, by equality. A wait that fails
// records itself once, poisons this rank and all peers, marks both CTAs of the pair, and returns
// false; the caller then goes on as if satisfied, so that no barrier inside the pair can hang, and
// nobody in the pair stores to a peer or counts anywhere again. Waits inside a pair (mbarriers)
// need no bound: both CTAs walk the same tasks.
#pragma once

#include "context.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kPollsBetweenChecks = 64;

MOE_DEVICE bool poisoned(const Context& c) {
  return ptx::load_relaxed_shared(c.word(kPoisoned)) != 0;
}

MOE_DEVICE void mark_poisoned(const Context& c) {
  for (uint32_t rank = 0; rank < 2; ++rank)
    ptx::store_relaxed_cluster(ptx::map_to_rank(c.word(kPoisoned), rank), 1);
}

MOE_DEVICE void fail(const Context& c, Wait kind, uint32_t peer, uint32_t group) {
  const uint64_t what = failure(kind, c.p.rank, peer, group, c.epoch);
  if (ptx::swap_if_zero_system(c.at<uint64_t>(c.p.layout.poison), what) == 0) {
    ptx::store_relaxed_system(c.p.report, what);
    for (uint32_t r = 0; r < c.p.ranks; ++r) {
      if (r != c.p.rank) ptx::store_relaxed_system(c.peer<uint64_t>(r, c.p.layout.poison), what);
    }
  }
  mark_poisoned(c);
}

// Whether this rank has been poisoned; if so its host learns it, also when the failure was a
// peer's.
MOE_DEVICE bool rank_poisoned(const Context& c) {
  const uint64_t what = ptx::load_relaxed_system(c.at<uint64_t>(c.p.layout.poison));
  if (what != 0) ptx::store_relaxed_system(c.p.report, what);
  return what != 0;
}

// Whether it was at the start of the call, the same answer for all warps of the CTA. Such a CTA
// sends nothing and computes nothing: the call's number has not advanced, so its stores would
// overwrite what peers may still be reading in the failed call, and that call's flags would pass
// for this one's.
MOE_DEVICE bool dead(const Context& c) { return ptx::load_shared(c.word(kDead)) != 0; }

// As `peer`: a wait for CTAs of this rank, which may themselves be waiting for a peer. It gets
// twice the limit, so that the first failure names the peer.
inline constexpr uint32_t kNobody = 255;

// Polls `ready` until it holds. Lanes of a warp may wait for different things.
template <class Ready>
MOE_DEVICE bool wait_until(const Context& c, Wait kind, uint32_t peer, uint32_t group,
                           const Ready& ready) {
  if (ready()) return true;
  const uint64_t start = ptx::global_timer();
  const uint64_t limit = peer == kNobody ? 2 * c.p.timeout_ns : c.p.timeout_ns;
  for (uint32_t polls = 1;; ++polls) {
    if (ready()) return true;
    if (polls % kPollsBetweenChecks == 0) {
      if (rank_poisoned(c)) {
        mark_poisoned(c);
        return false;
      }
      if (ptx::global_timer() - start > limit) {
        fail(c, kind, peer, group);
        return false;
      }
    }
  }
}

// W of source s as its metadata says; only after that has been seen.
MOE_DEVICE uint32_t source_groups(const Context& c, uint32_t s) {
  const uint64_t flag = ptx::load_relaxed_system(c.at<uint64_t>(c.p.layout.meta_flag + s * kLine));
  const uint32_t groups = flag_groups(flag);
  return groups < 1 ? 1 : groups > kRowGroups ? kRowGroups : groups;
}

// A warp waits until all sources' rows for a local expert are here. Returns the first expert for
// which that says nothing: the end of the row group, or of all experts.
MOE_DEVICE uint32_t wait_rows(const Context& c, uint32_t expert) {
  uint32_t end = c.p.local_experts;
  for (uint32_t s = c.lane; s < c.p.ranks; s += 32) {
    const uint32_t groups = source_groups(c, s);
    const uint32_t group = row_group(expert, c.p.local_experts, groups);
    const uint32_t* flag = c.at<uint32_t>(c.p.layout.row_flag + (group * c.p.ranks + s) * kLine);
    wait_until(c, Wait::kRows, s, group, [&] { return ptx::load_acquire_system(flag) == c.epoch; });
    end = min(end, row_group_end(group, c.p.local_experts, groups));
  }
  __syncwarp();
  return __reduce_min_sync(~0u, end);
}

// A warp waits until all first-product tiles of a unit are in the ring.
MOE_DEVICE void wait_tiles(const Context& c, uint32_t unit, uint32_t tiles) {
  if (c.lane == 0) {
    const uint32_t* count = c.tile_count(unit);
    wait_until(c, Wait::kTiles, kNobody, unit,
               [&] { return ptx::load_acquire_gpu(count) == 2 * tiles; });
  }
  __syncwarp();
}

}  // namespace megamoe::sm100
