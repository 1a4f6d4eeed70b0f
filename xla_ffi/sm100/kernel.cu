// The kernel: sets a CTA up, gives each warp its role, joins the roles, ends the call. One launch
// is one call of the layer on one rank. Decides warps and registers; every role is in its own file
// (README.md has the picture).
#include <stddef.h>

#include "build_lists.cuh"
#include "combine.cuh"
#include "dispatch.cuh"
#include "epilogue1.cuh"
#include "epilogue2.cuh"
#include "loaders.cuh"
#include "product.cuh"
#include "schedule_role.cuh"

namespace megamoe::sm100 {

// 128 x (56 + 112) + 256 x 168 = 64512 of 65536 registers.
inline constexpr uint32_t kLoaderRegisters = 56, kDispatchRegisters = 112, kEpilogueRegisters = 168;

MOE_DEVICE void set_up(const Context& c) {
  if (c.warp == 0) ptx::tmem_alloc(c.word(kTmemAddress), kTmemColumns);
  if (c.warp == 1 && ptx::elect_one()) {
    for (uint32_t s = 0; s < kMaxStages; ++s) {
      ptx::mbarrier_init(c.word(kFull) + 8 * s, kFullArrivals);
      ptx::mbarrier_init(c.word(kEmpty) + 8 * s, 1);
    }
    for (uint32_t a = 0; a < 2; ++a) {
      ptx::mbarrier_init(c.word(kTmemFull) + 8 * a, 1);
      ptx::mbarrier_init(c.word(kTmemEmpty) + 8 * a, kTmemEmptyArrivals);
    }
    ptx::mbarrier_init(c.word(kScheduleReady), 1);
    const uint32_t dead = rank_poisoned(c) ? 1 : 0;
    ptx::store_shared(c.word(kDead), dead);
    ptx::store_shared(c.word(kPoisoned), dead);
    ptx::fence_mbarrier_init();
  }
  if (c.warp == 2) {
    static_assert(offsetof(Params, rows) == 0 && offsetof(Params, x) == 6 * sizeof(Map));
    if (c.lane < 6) ptx::prefetch_map(&c.p.rows + c.lane);
  }
  ptx::tmem_fence_before();
  __syncthreads();
  ptx::cluster_barrier();  // the other CTA's barriers are ready, too
  ptx::tmem_fence_after();
}

template <uint32_t N>
MOE_DEVICE void epilogue_role(const Context& c) {
  const Epilogue e(c, SharedMap<N>::kStaging, SharedMap<N>::kStagingBytes, SharedMap<N>::kRows,
                   SharedMap<N>::kRowsBytes);
  Tasks<N> tasks(c);
  uint32_t ready = 0;  // rows of the experts below are here
  for (uint32_t i = 0; tasks.next(); ++i) {
    if (i % 2 != e.group) continue;
    // Both read routing weights from the rows; a group's first task may be of the second product.
    if (tasks.unit.expert >= ready) ready = wait_rows(c, tasks.unit.expert);
    if (tasks.task.second) {
      epilogue2(c, e, tasks, i / 2 & 1);
    } else {
      epilogue1(c, e, tasks, i / 2 & 1);
    }
  }
}

template <uint32_t N>
MOE_DEVICE void run(const Params& p) {
  extern __shared__ uint8_t dynamic[];
  ptx::wait_for_previous_grid();
  uint8_t* self = p.workspace[p.rank];
  const Context c{p,
                  self,
                  *reinterpret_cast<const uint32_t*>(self + p.layout.epoch) + 1,
                  round_up(ptx::shared_address(dynamic), 1024),
                  blockIdx.x,
                  gridDim.x,
                  ptx::cluster_rank(),
                  threadIdx.x / 32,
                  threadIdx.x % 32};
  set_up(c);

  if (c.warp < 4) {
    ptx::give_registers<kLoaderRegisters>();
    wait_schedule(c);
    if (c.warp == 0) {
      if (c.leader() && ptx::elect_one()) product_role<N>(c);
    } else if (c.warp == 1) {
      if (ptx::elect_one()) load_weights_role<N>(c);
    } else {
      load_tokens_role<N>(c, c.warp - 2);
    }
  } else if (c.warp < 8) {
    ptx::give_registers<kDispatchRegisters>();
    if (c.warp < 7) {
      dispatch_role(c);
    } else {
      if (c.leader()) schedule_role<N>(c);
      wait_schedule(c);
      load_scales_role<N>(c);
    }
  } else {
    ptx::take_registers<kEpilogueRegisters>();
    build_lists_role(c);
    wait_schedule(c);
    epilogue_role<N>(c);
  }
  __syncwarp();
  __syncthreads();  // the join: all roles of this CTA have ended
  if (c.warp >= kFirstCombineWarp) combine_role(c);

  // Tensor memory is freed when both CTAs are done with it, and no CTA ends while the other may
  // still arrive at its barriers.
  ptx::tmem_fence_before();
  __syncwarp();
  ptx::cluster_barrier();
  ptx::tmem_fence_after();
  if (c.warp == 0) ptx::tmem_free(0, kTmemColumns);
}

}  // namespace megamoe::sm100

using megamoe::sm100::kThreads;
using megamoe::sm100::Params;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    megamoe_n128(const __grid_constant__ Params params) {
  megamoe::sm100::run<128>(params);
}
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    megamoe_n192(const __grid_constant__ Params params) {
  megamoe::sm100::run<192>(params);
}
