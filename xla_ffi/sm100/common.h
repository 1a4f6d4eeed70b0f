// What the host and the device share below all other headers: integer helpers and the limits of the
// kernel. Plain C++17, so that nvcc and the host's compiler read the same text.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define MOE_BOTH __host__ __device__ __forceinline__
#else
#define MOE_BOTH inline
#endif

namespace megamoe::sm100 {

inline constexpr uint32_t kMaxRanks = 72;
inline constexpr uint32_t kMaxSlots = 32;          // K: a slot is 5 bits of a list entry
inline constexpr uint32_t kMaxLocalExperts = 512;  // the schedule's table in shared memory
inline constexpr uint32_t kMaxExperts = 65535;     // ids travel as 16 bits, 0xFFFF is "skipped"
inline constexpr uint32_t kRowGroups = 8;          // row flags per source: W is 1 or up to this
inline constexpr uint32_t kThreads = 512;
inline constexpr uint32_t kBlockK = 128;  // of one stage: one 128-byte swizzle line, one scale word
inline constexpr uint32_t kTileM = 256;   // weight rows of a task, 128 for each CTA of the pair

MOE_BOTH constexpr uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
MOE_BOTH constexpr uint32_t round_up(uint32_t a, uint32_t b) { return ceil_div(a, b) * b; }
MOE_BOTH constexpr uint64_t round_up64(uint64_t a, uint64_t b) { return (a + b - 1) / b * b; }

}  // namespace megamoe::sm100
