// The map of shared memory and of tensor memory: one table each, and the sizes that follow from it.
// Shaped by 227 KiB a CTA: stages are what is left, so their number is a run-time parameter.
//
// Shared memory, from a 1024-byte boundary on (tiles of at most N tokens, S stages):
//
//   part     bytes             what
//   words    256               barriers (barriers.h), tensor-memory address, poison flag, scratch
//   experts  4096              length and base of each local expert's list
//   staging  2 x 8704          per epilogue group: 2 x 16 tokens x 272 bytes
//   rows     2 x N x 16        per epilogue group: where each row of the tile goes, its weight
//   stages   S x stage_bytes   from a 1024-byte boundary; of each stage:
//     weights  16384           128 rows x 128 k of FP4 in 16-byte chunks, half of each unused
//     tokens   N/2 x 128       this CTA's half of the token rows
//     scales   512 + F         weight scales, then token scales (F = 512, or 1024 for N > 128)
//
// Tensor memory, in columns of 512: accumulator 0 at 0, accumulator 1 at N, then per stage 4 for
// the weights' scales and F/128 for the tokens'.
#pragma once

#include "common.h"

namespace megamoe::sm100 {

inline constexpr uint32_t kMaxStages = 8;
inline constexpr uint32_t kSharedLimit = 227 * 1024;
inline constexpr uint32_t kChunk = 16;          // tokens that an epilogue handles at a time
inline constexpr uint32_t kStagingPitch = 272;  // 64 float32 or 128 bf16 channels, no bank twice
inline constexpr uint32_t kTmemColumns = 512;

template <uint32_t N>
struct SharedMap {
  static constexpr uint32_t kWords = 0, kExperts = 256, kStaging = kExperts + 8 * kMaxLocalExperts,
                            kStagingBytes = 2 * kChunk * kStagingPitch,  // of one group
      kRows = kStaging + 2 * kStagingBytes, kRowsBytes = 16 * N,
                            kStages = round_up(kRows + 2 * kRowsBytes, 1024);
  // In a stage.
  static constexpr uint32_t kWeights = 0, kTokens = 128 * kBlockK,
                            kScales = kTokens + N / 2 * kBlockK, kTokenScales = kScales + 512,
                            kStageBytes = round_up(kTokenScales + (N > 128 ? 1024 : 512), 1024);
  // Tensor memory.
  static constexpr uint32_t kScaleColumns = N > 128 ? 12 : 8, kFirstScaleColumn = 2 * N;
};

// Dynamic shared memory of a launch; 1024 for the alignment of its start.
template <uint32_t N>
MOE_BOTH constexpr uint32_t shared_bytes(uint32_t stages) {
  return SharedMap<N>::kStages + stages * SharedMap<N>::kStageBytes + 1024;
}
MOE_BOTH constexpr uint32_t shared_bytes(uint32_t tile, uint32_t stages) {
  return tile == 128 ? shared_bytes<128>(stages) : shared_bytes<192>(stages);
}

// The most stages that shared memory and tensor memory hold.
MOE_BOTH constexpr uint32_t most_stages(uint32_t tile) { return tile == 128 ? 8 : 6; }
static_assert(shared_bytes<128>(8) <= kSharedLimit && shared_bytes<192>(6) <= kSharedLimit,
              "shared memory");
static_assert(SharedMap<128>::kFirstScaleColumn + 8 * SharedMap<128>::kScaleColumns <= kTmemColumns,
              "tensor memory");
static_assert(SharedMap<192>::kFirstScaleColumn + 6 * SharedMap<192>::kScaleColumns <= kTmemColumns,
              "tensor memory");

}  // namespace megamoe::sm100
