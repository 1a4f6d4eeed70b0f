// What both epilogues share (warps 8-11 are group 0 with accumulator 0, warps 12-15 group 1 with
// accumulator 1): the walk over a pair's tasks, every second one each; chunks of 16 tokens through
// tensor memory and a double-buffered staging area; the hand-over of accumulators. What happens to
// the numbers is in epilogue1.cuh and epilogue2.cuh.
#pragma once

#include "waits.cuh"

namespace megamoe::sm100 {

inline constexpr uint32_t kGroupThreads = 128;

struct Epilogue {
  uint32_t group;   // 0 or 1
  uint32_t thread;  // 0 .. 127
  uint32_t quadrant;
  uint32_t lane;
  uint32_t staging, rows;  // shared-memory addresses
  uint32_t bar;

  __device__ Epilogue(const Context& c, uint32_t all_staging, uint32_t staging_bytes,
                      uint32_t all_rows, uint32_t rows_bytes) {
    group = (c.warp - 8) / 4;
    quadrant = c.warp % 4;
    lane = c.lane;
    thread = 32 * quadrant + lane;
    staging = c.shared + all_staging + group * staging_bytes;
    rows = c.shared + all_rows + group * rows_bytes;
    bar = kBarGroup + group;
  }
  __device__ void sync() const { ptx::named_barrier(bar, kGroupThreads); }
  __device__ uint32_t staged(uint32_t chunk) const {
    return staging + chunk % 2 * kChunk * kStagingPitch;
  }
  // Lane field of this warp's first lane, or of its second half.
  __device__ uint32_t tmem(uint32_t column, uint32_t half) const {
    return (32 * quadrant + 16 * half) << 16 | column;
  }
};

// The accumulator's next use may start: every warp has its numbers in registers.
MOE_DEVICE void release_accumulator(const Context& c, const Epilogue& e) {
  ptx::tmem_fence_before();
  __syncwarp();
  if (c.lane == 0) ptx::mbarrier_arrive_cluster(c.leaders(kTmemEmpty) + 8 * e.group);
}

MOE_DEVICE float routing_weight(const Context& c, uint32_t entry) {
  const uint8_t* row = c.at<uint8_t>(c.p.layout.rows) +
                       static_cast<uint64_t>(entry_row(entry)) * c.p.layout.row_pitch;
  return reinterpret_cast<const float*>(row + routing_offset(c.p.hidden))[entry_slot(entry)];
}

}  // namespace megamoe::sm100
