// The three roles that fill a stage, the same for both products: weights and their scales by plain
// TMA boxes (warp 1), token rows by gather4 (warps 2 and 3, every second group of four rows each),
// token scales as words for the tensor core (warp 7). Only base addresses and pitches differ
// between receive rows and ring rows. Each CTA of the pair loads its own half; bytes count at the
// leader.
#pragma once

#include "waits.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kWeightBytes = 128 * kBlockK / 2, kScaleBytes = 512, kGatherBytes = 512;

// A warp's arrival at the leader's full barrier of a stage, by one thread.
MOE_DEVICE void arrive_full(const Context& c, uint32_t stage, uint32_t bytes_of_both) {
  if (c.leader()) {
    ptx::mbarrier_arrive_expect(c.word(kFull) + 8 * stage, bytes_of_both);
  } else {
    ptx::mbarrier_arrive_cluster(c.leaders(kFull) + 8 * stage);
  }
}
MOE_DEVICE void wait_empty(const Context& c, const StageCursor& at) {
  ptx::mbarrier_wait(c.word(kEmpty) + 8 * at.stage, at.phase ^ 1);
}

// One thread.
template <uint32_t N>
MOE_DEVICE void load_weights_role(const Context& c) {
  const Params& p = c.p;
  Tasks<N> tasks(c);
  StageCursor at;
  while (tasks.next()) {
    const bool second = tasks.task.second;
    const void* map = second ? &p.down : &p.gate_up;
    const void* scales = second ? &p.down_scales : &p.gate_up_scales;
    const uint32_t rows =
        second ? round_up(c.padded_hidden(), kTileM) : 2 * c.padded_intermediate();
    const uint32_t row = tasks.unit.expert * rows + tasks.task.tile * kTileM + 128 * c.pair_rank;
    // Weights that several token tiles read shall stay in the L2 cache meanwhile.
    const uint64_t policy = tasks.unit.alone ? ptx::kEvictFirst : ptx::kEvictNormal;
    const uint32_t blocks = tasks.blocks();
    for (uint32_t k = 0; k < blocks; ++k, at.advance(p.stages)) {
      wait_empty(c, at);
      const uint32_t full = c.word(kFull) + 8 * at.stage;
      arrive_full(c, at.stage, 2 * (kWeightBytes + kScaleBytes));
      ptx::load_box(at.base<N>(c) + SharedMap<N>::kWeights, map, k * kBlockK, row, full, policy);
      ptx::load_box(at.base<N>(c) + SharedMap<N>::kScales, scales, 0, row / 128 * blocks + k, full,
                    policy);
    }
  }
  // Every stage empty once more: no commit may still be on its way to a CTA that has ended.
  for (uint32_t s = 0; s < p.stages; ++s, at.advance(p.stages)) wait_empty(c, at);
}

// Groups of four rows with at least one valid row, in the half of CTA `rank`, of every second one
// from `odd` on.
MOE_BOTH uint32_t gathers(uint32_t rows, uint32_t rank, uint32_t odd) {
  const uint32_t half = round_up(rows, 16) / 2, first = rank * half;
  const uint32_t mine = rows <= first ? 0 : rows - first < half ? rows - first : half;
  return (ceil_div(mine, 4) + 1 - odd) / 2;
}

// One warp; `odd` is 0 or 1.
template <uint32_t N>
MOE_DEVICE void load_tokens_role(const Context& c, uint32_t odd) {
  const Params& p = c.p;
  Tasks<N> tasks(c);
  StageCursor at;
  uint32_t ready = 0;  // rows of the experts below are here
  while (tasks.next()) {
    const Unit unit = tasks.unit;
    const bool second = tasks.task.second;
    const uint32_t mine = gathers(unit.rows, c.pair_rank, odd);
    const uint32_t bytes_of_both =
        kGatherBytes * (gathers(unit.rows, 0, odd) + gathers(unit.rows, 1, odd));
    // Lane i issues this warp's i-th group.
    const uint32_t group = 2 * c.lane + odd;
    uint32_t row[4] = {0, 0, 0, 0};
    if (c.lane < mine) {
      const uint32_t first = c.pair_rank * round_up(unit.rows, 16) / 2 + 4 * group;
      const uint32_t* entries = tasks.entries();
      const uint32_t ring = tasks.ring_row();
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        // The last group repeats the last valid row.
        const uint32_t n = first + i < unit.rows ? first + i : unit.rows - 1;
        row[i] = second ? ring + n : entry_row(entries[n]);
      }
    }
    if (second) {
      wait_tiles(c, tasks.task.unit, tasks.first_tiles());
    } else if (unit.expert >= ready) {
      ready = wait_rows(c, unit.expert);
    }
    if (poisoned(c)) {  // the rows may be in the making: rows outside the map are zeros
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) row[i] = ~0u;
    }
    ptx::fence_async_global();  // generic stores of others, then this thread's gathers
    const void* map = second ? &p.ring : &p.rows;
    const uint32_t blocks = tasks.blocks();
    for (uint32_t k = 0; k < blocks; ++k, at.advance(p.stages)) {
      wait_empty(c, at);
      if (c.lane == 0) arrive_full(c, at.stage, bytes_of_both);
      if (c.lane < mine) {
        ptx::gather4(at.base<N>(c) + SharedMap<N>::kTokens + kGatherBytes * group, map, k * kBlockK,
                     row, c.word(kFull) + 8 * at.stage);
      }
    }
  }
}

// One warp: lane l holds the scales of rows l, l + 32, ..., eight blocks of k at a time.
template <uint32_t N>
MOE_DEVICE void load_scales_role(const Context& c) {
  constexpr uint32_t kRows = N / 32;
  const Params& p = c.p;
  Tasks<N> tasks(c);
  StageCursor at;
  uint32_t ready = 0;  // rows of the experts below are here
  while (tasks.next()) {
    const Unit unit = tasks.unit;
    const bool second = tasks.task.second;
    if (second) {
      wait_tiles(c, tasks.task.unit, tasks.first_tiles());
    } else if (unit.expert >= ready) {
      ready = wait_rows(c, unit.expert);
    }
    const uint64_t pitch = second ? p.layout.ring_pitch : p.layout.row_pitch;
    const uint8_t* scales = second ? c.at<uint8_t>(p.layout.ring) + scales_offset(p.intermediate)
                                   : c.at<uint8_t>(p.layout.rows) + scales_offset(p.hidden);
    const uint32_t* entries = tasks.entries();
    const uint32_t rows = poisoned(c) ? 0 : unit.rows;
    uint32_t row[kRows];
#pragma unroll
    for (uint32_t i = 0; i < kRows; ++i) {
      const uint32_t n = c.lane + 32 * i;
      row[i] = n >= rows ? 0 : second ? tasks.ring_row() + n : entry_row(entries[n]);
    }
    const uint32_t blocks = tasks.blocks();
    for (uint32_t k = 0; k < blocks; k += 8) {
      ptx::Words8 words[kRows];
#pragma unroll
      for (uint32_t i = 0; i < kRows; ++i) {
        if (c.lane + 32 * i < rows) {
          words[i] = ptx::load_global8(scales + row[i] * pitch + 4 * k);
        } else {
#pragma unroll
          for (uint32_t j = 0; j < 8; ++j) words[i].w[j] = 0;
        }
      }
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) {
        if (k + j >= blocks) break;
        wait_empty(c, at);
        const uint32_t to = at.base<N>(c) + SharedMap<N>::kTokenScales + 16 * c.lane;
        ptx::store_shared4(to, words[0].w[j], words[1].w[j], words[2].w[j], words[3].w[j]);
        if constexpr (kRows > 4)
          ptx::store_shared4(to + 512, words[4].w[j], words[kRows - 1].w[j], 0, 0);
        ptx::fence_async_shared();
        __syncwarp();
        if (c.lane == 0) ptx::mbarrier_arrive_cluster(c.leaders(kFull) + 8 * at.stage);
        at.advance(p.stages);
      }
    }
  }
}

}  // namespace megamoe::sm100
