// The barrier plan: every mbarrier and named barrier of the kernel, who arrives, who waits, in one
// table. "L" means that only the leader's (even CTA's) copy is used, "own" each CTA's own.
//
//   mbarrier       copy  arrivals              arrived by                      waited for by
//   full[s]        L     8 + bytes             of both CTAs: weights warp, two  MMA issuer
//                                              token warps, scale warp; TMA
//   empty[s]       own   1                     commit of the MMA issuer, both   weights warp, token
//                                                                               warps, scale warp
//   tmem_full[a]   own   1                     commit of the MMA issuer, both   epilogue group a
//   tmem_empty[a]  L     8                     of both CTAs: the four warps of  MMA issuer
//                                              epilogue group a
//   schedule       own   1                     the leader's scale warp          all roles, once
//
//   bar.sync       threads  who
//   0              512      the CTA: start, and the join of all roles at the end
//   1, 2           128      epilogue group 0, 1
//   3              256      both epilogue groups (lists, combine)
//   4              96       the three dispatch warps
//
// s: stage of the load pipeline; a: accumulator. An accumulator belongs to one epilogue group: a
// pair's i-th task uses accumulator and group i % 2.
#pragma once

#include "smem.h"

namespace megamoe::sm100 {

// Offsets of the words at the start of shared memory.
inline constexpr uint32_t kFull = 0, kEmpty = 64, kTmemFull = 128, kTmemEmpty = 144,
                          kScheduleReady = 160, kTmemAddress = 168, kPoisoned = 172, kUnits = 176,
                          kListBase = 180, kScan = 184, kDead = 248;  // kScan: 2 x 8 words
static_assert(kEmpty - kFull == 8 * kMaxStages && kScan + 64 <= kDead && kDead < 256,
              "the words do not overlap");

inline constexpr uint32_t kFullArrivals = 8, kTmemEmptyArrivals = 8;
inline constexpr uint32_t kBarAll = 0, kBarGroup = 1, kBarEpilogues = 3, kBarDispatch = 4;

}  // namespace megamoe::sm100
