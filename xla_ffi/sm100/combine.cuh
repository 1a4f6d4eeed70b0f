// The end of a call (warps 8-15): this rank's done flags, the wait for all ranks', step 7 of the
// contract, and the call's number. Every rank waits for every rank, also without a token: this wait
// is what allows the next call to overwrite receive rows and slots anywhere.
#pragma once

#include "waits.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kCombineWarps = 8, kFirstCombineWarp = 8;
inline constexpr uint32_t kCombineChannels = 256;  // of one token: 32 lanes x 8

// One warp of each CTA, after the join of all its roles.
MOE_DEVICE void raise_done(const Context& c) {
  if (poisoned(c)) return;
  uint32_t last = 0;
  if (c.lane == 0)
    last = ptx::increment_wrapping(c.at<uint32_t>(c.p.layout.done_arr), c.ctas - 1) == c.ctas - 1;
  if (__shfl_sync(~0u, last, 0) == 0) return;
  __syncwarp();  // lane 0 has acquired what the others are about to release
  ptx::fence_system();
  for (uint32_t r = c.lane; r < c.p.ranks; r += 32)
    ptx::store_relaxed_system(c.peer<uint32_t>(r, c.p.layout.done_flag + c.p.rank * kLine),
                              c.epoch);
}

MOE_DEVICE void wait_done(const Context& c) {
  for (uint32_t d = c.lane; d < c.p.ranks; d += 32) {
    const uint32_t* flag = c.at<uint32_t>(c.p.layout.done_flag + d * kLine);
    wait_until(c, Wait::kDone, d, 0, [&] { return ptx::load_acquire_system(flag) == c.epoch; });
  }
  __syncwarp();
}

MOE_DEVICE void combine_item(const Context& c, uint32_t token, uint32_t channel, bool bad) {
  const Params& p = c.p;
  uint16_t* to = static_cast<uint16_t*>(p.y) + static_cast<uint64_t>(token) * p.hidden + channel;
  const bool inside = channel < p.hidden;
  const int32_t id = c.lane < p.slots ? p.topk_idx[token * p.slots + c.lane] : -1;
  uint32_t valid = __ballot_sync(~0u, static_cast<uint32_t>(id) < p.ranks * p.local_experts);
  if (!inside) return;
  if (bad) {
    *reinterpret_cast<uint4*>(to) = make_uint4(0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u, 0x7FC07FC0u);
    return;
  }
  float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  const uint64_t pitch = 2 * uint64_t{c.padded_hidden()};
  const uint8_t* from =
      c.at<uint8_t>(p.layout.slots) + static_cast<uint64_t>(token) * p.slots * pitch + 2 * channel;
  for (; valid != 0; valid &= valid - 1) {
    const uint4 v = *reinterpret_cast<const uint4*>(from + (__ffs(valid) - 1) * pitch);
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      sum[2 * i] = __fadd_rn(sum[2 * i], ptx::low_bf16(pairs[i]));
      sum[2 * i + 1] = __fadd_rn(sum[2 * i + 1], ptx::high_bf16(pairs[i]));
    }
  }
  *reinterpret_cast<uint4*>(to) =
      make_uint4(ptx::pack_bf16(sum[0], sum[1]), ptx::pack_bf16(sum[2], sum[3]),
                 ptx::pack_bf16(sum[4], sum[5]), ptx::pack_bf16(sum[6], sum[7]));
}

MOE_DEVICE void combine_role(const Context& c) {
  const Params& p = c.p;
  if (c.warp == kFirstCombineWarp) raise_done(c);
  const uint32_t chunks = ceil_div(p.hidden, kCombineChannels), items = p.tokens * chunks;
  const uint32_t first = c.cta + c.ctas * (c.warp - kFirstCombineWarp);
  const bool ends_call = c.cta == 0 && c.warp == kFirstCombineWarp;
  if (first >= items && !ends_call) return;
  wait_done(c);
  const bool bad = __any_sync(~0u, poisoned(c)) != 0;
  for (uint32_t item = first; item < items; item += c.ctas * kCombineWarps)
    combine_item(c, item / chunks, item % chunks * kCombineChannels + 8 * c.lane, bad);
  if (ends_call && c.lane == 0 && !bad) *c.at<uint32_t>(p.layout.epoch) = c.epoch;
}

}  // namespace megamoe::sm100
