// List building (warps 8-15, before their epilogues): for each local expert that this CTA builds,
// the rows routed to it, in the order (source, token, slot), by a counting sort of one key; then
// the expert's tag, which tells all CTAs of this rank. Also clears the counters that the next call
// uses.
#pragma once

#include "waits.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kBuilders = 256, kFirstBuilderWarp = 8;

MOE_DEVICE void clear_next_counters(const Context& c, uint32_t thread) {
  const uint64_t next = c.parity() ^ 1;
  const uint32_t units = c.p.layout.max_units;
  uint32_t* count = c.at<uint32_t>(c.p.layout.tile_count) + next * units;
  uint32_t* read = c.at<uint32_t>(c.p.layout.unit_read) + next * units;
  for (uint32_t i = c.cta * kBuilders + thread; i < units; i += c.ctas * kBuilders) {
    count[i] = 0;
    read[i] = 0;
  }
  if (c.cta == 0 && thread == 0) *c.at<uint32_t>(c.p.layout.list_alloc + next * kLine) = 0;
}

// All warps wait for all sources' metadata. False if that failed.
MOE_DEVICE bool wait_metadata(const Context& c) {
  bool ok = true;
  for (uint32_t s = c.lane; s < c.p.ranks; s += 32) {
    const uint64_t* flag = c.at<uint64_t>(c.p.layout.meta_flag + s * kLine);
    uint64_t word = 0;
    ok &= wait_until(c, Wait::kMetadata, s, 0, [&] {
      word = ptx::load_acquire_system(flag);
      return flag_epoch(word) == c.epoch;
    });
    if (ok &&
        (flag_call_site(word) != (c.p.call_site & 255) || flag_tokens(word) > c.p.max_tokens)) {
      fail(c, Wait::kMismatch, s, 0);
      ok = false;
    }
  }
  return __all_sync(~0u, ok) != 0;
}

MOE_DEVICE uint32_t source_ids(const Context& c, uint32_t s) {
  const uint64_t flag = ptx::load_relaxed_system(c.at<uint64_t>(c.p.layout.meta_flag + s * kLine));
  return flag_tokens(flag) * c.p.slots;
}

MOE_DEVICE uint32_t match_ids(const uint16_t* ids, uint32_t expert) {
  const uint4 v = *reinterpret_cast<const uint4*>(ids);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  return matches(words, expert);
}

// The sum over warps before this one and over all, of a value that is equal in a warp's lanes.
// `turn` chooses one of two scratch rows, so that one barrier a step is enough.
struct WarpSums {
  uint32_t before, all;
};
MOE_DEVICE WarpSums sum_warps(const Context& c, uint32_t value, uint32_t turn) {
  const uint32_t scratch = c.word(kScan) + 32 * (turn & 1);
  if (c.lane == 0) ptx::store_shared(scratch + 4 * (c.warp - kFirstBuilderWarp), value);
  ptx::named_barrier(kBarEpilogues, kBuilders);
  WarpSums sums{0, 0};
#pragma unroll
  for (uint32_t w = 0; w < kBuilders / 32; ++w) {
    const uint32_t v = ptx::load_shared(scratch + 4 * w);
    sums.all += v;
    if (w < c.warp - kFirstBuilderWarp) sums.before += v;
  }
  return sums;
}

MOE_DEVICE void build_list(const Context& c, uint32_t x, uint32_t thread, uint32_t& turn) {
  const uint32_t expert = c.p.rank * c.p.local_experts + x;
  const uint32_t step = kBuilders * kIdsPerLoad;
  uint32_t mine = 0;
  for (uint32_t s = 0; s < c.p.ranks; ++s) {
    const uint16_t* ids = c.at<uint16_t>(c.p.layout.meta + s * c.p.layout.meta_pitch);
    const uint32_t count = source_ids(c, s);
    for (uint32_t i = thread * kIdsPerLoad; i < count; i += step)
      mine += __popc(match_ids(ids + i, expert));
  }
  const uint32_t n = sum_warps(c, __reduce_add_sync(~0u, mine), turn++).all;
  if (thread == 0) {
    uint32_t* alloc = c.at<uint32_t>(c.p.layout.list_alloc + c.parity() * kLine);
    ptx::store_shared(c.word(kListBase), atomicAdd(alloc, round_up(n, 16)));
  }
  ptx::named_barrier(kBarEpilogues, kBuilders);
  const uint32_t base = ptx::load_shared(c.word(kListBase));

  uint32_t* list = c.at<uint32_t>(c.p.layout.lists) + base;
  uint32_t done = 0;
  for (uint32_t s = 0; s < c.p.ranks && n != 0; ++s) {
    const uint16_t* ids = c.at<uint16_t>(c.p.layout.meta + s * c.p.layout.meta_pitch);
    const uint32_t count = source_ids(c, s);
    for (uint32_t first = 0; first < count; first += step) {
      const uint32_t i = first + thread * kIdsPerLoad;
      uint32_t bits = i < count ? match_ids(ids + i, expert) : 0;
      uint32_t sum = __popc(bits);  // inclusive scan over the warp
      const uint32_t own = sum;
#pragma unroll
      for (uint32_t d = 1; d < 32; d *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, sum, d);
        if (c.lane >= d) sum += other;
      }
      const WarpSums sums = sum_warps(c, __shfl_sync(~0u, sum, 31), turn++);
      uint32_t at = done + sums.before + sum - own;
      for (; bits != 0; bits &= bits - 1) {
        const uint32_t id = i + __ffs(bits) - 1;
        list[at++] = list_entry(s * c.p.max_tokens + id / c.p.slots, id % c.p.slots);
      }
      done += sums.all;
    }
  }
  ptx::named_barrier(kBarEpilogues, kBuilders);
  if (thread == 0) {
    c.at<uint32_t>(c.p.layout.expert_base)[x] = base;
    ptx::store_release_gpu(c.at<uint64_t>(c.p.layout.expert_tag) + x,
                           c.epoch | static_cast<uint64_t>(n) << 32);
  }
}

MOE_DEVICE void build_lists_role(const Context& c) {
  const uint32_t thread = threadIdx.x - 32 * kFirstBuilderWarp;
  clear_next_counters(c, thread);
  if (c.cta >= c.p.local_experts || dead(c)) return;
  uint32_t turn = 0;
  // All warps come to the same answer: one that built while another left would wait for it forever.
  if (sum_warps(c, wait_metadata(c) ? 0 : 1, turn++).all != 0) return;
  for (uint32_t x = c.cta; x < c.p.local_experts; x += c.ctas) build_list(c, x, thread, turn);
}

}  // namespace megamoe::sm100
