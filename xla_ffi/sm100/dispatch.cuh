// Dispatch (warps 4-6): this rank's expert ids to every rank, then each token's row, cast to FP8 on
// the way, once to every rank that owns one of its experts. One-way: nothing here waits for a peer.
// Whoever arrives last on a local counter raises the flags at all ranks, since many CTAs store for
// one flag.
#pragma once

#include "quantise.cuh"
#include "waits.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kDispatchWarps = 3, kFirstDispatchWarp = 4;
inline constexpr uint32_t kItemChannels = 1024;  // of one token: 32 lanes x a group of 32

// The CTAs 0 .. participants - 1 have stored; the last of them calls `raise` by a whole warp, with
// everything they stored ordered before what it stores.
template <class Raise>
MOE_DEVICE void arrive_and_raise(const Context& c, uint32_t* counter, uint32_t participants,
                                 const Raise& raise) {
  ptx::named_barrier(kBarDispatch, 32 * kDispatchWarps);
  if (c.warp != kFirstDispatchWarp) return;
  uint32_t last = 1;
  if (participants > 1 && c.lane == 0)
    last = ptx::increment_wrapping(counter, participants - 1) == participants - 1;
  if (__shfl_sync(~0u, last, 0) == 0 || poisoned(c)) return;
  __syncwarp();  // lane 0 has acquired what the others are about to release
  ptx::fence_system();
  for (uint32_t r = c.lane; r < c.p.ranks; r += 32) raise(r);
}

MOE_DEVICE void dispatch_metadata(const Context& c) {
  const Params& p = c.p;
  const uint32_t ids = p.tokens * p.slots, items = ceil_div(ids, 32 * kIdsPerLoad);
  const uint32_t participants = items == 0 ? 1 : items < c.ctas ? items : c.ctas;
  if (c.cta >= participants) return;
  const uint32_t experts = p.ranks * p.local_experts;
  for (uint32_t item = c.cta + c.ctas * (c.warp - kFirstDispatchWarp); item < items;
       item += c.ctas * kDispatchWarps) {
    const uint32_t first = (item * 32 + c.lane) * kIdsPerLoad;
    if (first >= ids) continue;
    uint32_t packed[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      packed[i] = 0;
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t at = first + 2 * i + half;
        const uint32_t id = at < ids ? travelling_id(p.topk_idx[at], experts) : kSkipped;
        packed[i] |= id << 16 * half;
      }
    }
    const uint64_t to = p.layout.meta + p.rank * p.layout.meta_pitch + 2 * uint64_t{first};
    for (uint32_t r = 0; r < p.ranks; ++r)
      *c.peer<uint4>(r, to) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
  arrive_and_raise(c, c.at<uint32_t>(p.layout.meta_arr), participants, [&](uint32_t r) {
    const uint64_t flag = p.layout.meta_flag + p.rank * kLine;
    ptx::store_relaxed_system(c.peer<uint64_t>(r, flag),
                              meta_flag_word(c.epoch, p.row_groups, p.tokens, p.call_site));
  });
}

// Step 1 of the contract for a lane's group of 32 channels.
struct QuantisedGroup {
  ptx::Words8 codes;
  uint32_t scale;
};
MOE_DEVICE QuantisedGroup quantise_token(const Params& p, uint32_t token, uint32_t channel) {
  QuantisedGroup q;
  if (channel >= p.hidden) {  // padding
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) q.codes.w[i] = 0;
    q.scale = kScaleOne;
    return q;
  }
  const uint4* from = reinterpret_cast<const uint4*>(
      static_cast<const uint16_t*>(p.x) + static_cast<uint64_t>(token) * p.hidden + channel);
  uint32_t x[16];  // pairs of bf16
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint4 v = __ldg(from + i);
    x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
  }
  // As integers, magnitudes of bf16 have the order of their values, Inf and NaN above all.
  uint32_t most = 0;
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) most = ptx::max_u16x2(most, x[i] & 0x7FFF7FFFu);
  uint32_t largest = (most & 0xFFFFu) > most >> 16 ? most << 16 : most & 0xFFFF0000u;
  const uint32_t floor = __float_as_uint(1e-4f);
  largest = largest < floor ? floor : largest;
  const GroupScale scale = group_scale(largest);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t a = x[2 * i], b = x[2 * i + 1];
    q.codes.w[i] =
        pack4(ptx::low_bf16(a), ptx::high_bf16(a), ptx::low_bf16(b), ptx::high_bf16(b), scale);
  }
  q.scale = scale.byte;
  return q;
}

MOE_DEVICE void dispatch_rows(const Context& c) {
  const Params& p = c.p;
  const uint32_t width = c.padded_hidden(), chunks = ceil_div(width, kItemChannels);
  const uint32_t items = p.tokens * chunks;
  const uint32_t participants = items == 0 ? 1 : items < c.ctas ? items : c.ctas;
  if (c.cta >= participants) return;
  const uint32_t experts = p.ranks * p.local_experts;
  for (uint32_t group = 0; group < p.row_groups; ++group) {
    for (uint32_t item = c.cta + c.ctas * (c.warp - kFirstDispatchWarp); item < items;
         item += c.ctas * kDispatchWarps) {
      const uint32_t token = item / chunks, chunk = item % chunks;
      // Lane k looks at slot k. A rank gets the row once, in the group of the first of the token's
      // experts there.
      uint32_t rank = kMaxRanks, of_group = kRowGroups;
      if (c.lane < p.slots) {
        const uint32_t id = p.topk_idx[token * p.slots + c.lane];
        if (id < experts) {
          rank = id / p.local_experts;
          of_group = row_group(id % p.local_experts, p.local_experts, p.row_groups);
        }
      }
      const uint32_t same = __match_any_sync(~0u, rank);
      uint32_t todo = __ballot_sync(~0u, rank < kMaxRanks && c.lane == __ffs(same) - 1);
      QuantisedGroup q;
      bool ready = false;
      const uint32_t channel = chunk * kItemChannels + 32 * c.lane;
      for (; todo != 0; todo &= todo - 1) {
        const uint32_t to = __shfl_sync(~0u, rank, __ffs(todo) - 1);
        if (p.row_groups > 1) {
          const uint32_t first = __reduce_min_sync(~0u, rank == to ? of_group : kRowGroups);
          if (first != group) continue;
        }
        if (!ready) q = quantise_token(p, token, channel);
        ready = true;
        uint8_t* row = c.peer<uint8_t>(
            to, p.layout.rows +
                    (static_cast<uint64_t>(p.rank) * p.max_tokens + token) * p.layout.row_pitch);
        if (channel < width) {
          ptx::store_global8(row + channel, q.codes);
          row[scales_offset(p.hidden) + channel / 32] = static_cast<uint8_t>(q.scale);
        }
        if (chunk == 0 && c.lane < p.slots)
          reinterpret_cast<float*>(row + routing_offset(p.hidden))[c.lane] =
              p.topk_weights[token * p.slots + c.lane];
      }
    }
    arrive_and_raise(c, c.at<uint32_t>(p.layout.row_arr + group * kLine), participants,
                     [&](uint32_t r) {
                       // The last group's flag stands for those that this call does not use, too:
                       // no flag is ever older than the call before.
                       const uint32_t end = group + 1 == p.row_groups ? kRowGroups : group + 1;
                       for (uint32_t g = group; g < end; ++g) {
                         const uint64_t flag = p.layout.row_flag + (g * p.ranks + p.rank) * kLine;
                         ptx::store_relaxed_system(c.peer<uint32_t>(r, flag), c.epoch);
                       }
                     });
  }
}

MOE_DEVICE void dispatch_role(const Context& c) {
  if (dead(c)) return;
  dispatch_metadata(c);
  dispatch_rows(c);
}

}  // namespace megamoe::sm100
