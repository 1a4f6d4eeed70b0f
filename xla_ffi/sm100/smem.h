// The map of shared memory and of tensor memory: one table each, and the sizes that follow from it.
// Shaped by 227 KiB a CTA: stages are what is left, so their number is a run-time parameter.
//
// Shared memory, from a 1024-byte boundary on (S stages, tokens in tiles of at most N):
//
//   part     bytes            what
//   weights  S x 16384        128 rows x 128 k of FP4 in 16-byte chunks, half of each unused
//   tokens   S x N/2 x 128    this CTA's half of the token rows
//   scales   S x (512 + F)    weight scales, then token scales (F = 512, or 1024 for N > 128)
//   staging  2 x 8704         per epilogue group: 2 x 16 tokens x 272 bytes
//   rows     2 x N x 16       per epilogue group: where each row of the tile goes, and its weight
//   experts  E_l x 8          list length and base of each local expert
//   words    256              barriers (barriers.h), the tensor-memory address, the poison flag
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

struct SharedMap {
  uint32_t weights, tokens, scales, staging, rows, experts, words, bytes;
  uint32_t token_stage, scale_stage, token_scales;  // sizes
};

MOE_BOTH constexpr SharedMap shared_map(uint32_t tile, uint32_t stages, uint32_t local_experts) {
  SharedMap m{};
  m.token_stage = tile / 2 * kBlockK;
  m.token_scales = tile > 128 ? 1024 : 512;
  m.scale_stage = 512 + m.token_scales;
  m.weights = 0;
  m.tokens = m.weights + stages * 128 * kBlockK;
  m.scales = m.tokens + stages * m.token_stage;
  m.staging = m.scales + stages * m.scale_stage;
  m.rows = m.staging + 2 * 2 * kChunk * kStagingPitch;
  m.experts = m.rows + 2 * tile * 16;
  m.words = round_up(m.experts + 8 * local_experts, 16);
  m.bytes = m.words + 256;
  return m;
}

// Dynamic shared memory of a launch; 1024 for the alignment of its start.
MOE_BOTH constexpr uint32_t shared_bytes(uint32_t tile, uint32_t stages, uint32_t local_experts) {
  return shared_map(tile, stages, local_experts).bytes + 1024;
}

MOE_BOTH constexpr uint32_t accumulator_column(uint32_t tile, uint32_t accumulator) {
  return accumulator * tile;
}
MOE_BOTH constexpr uint32_t scale_column(uint32_t tile, uint32_t stage) {
  return 2 * tile + stage * (tile > 128 ? 12 : 8);
}
static_assert(shared_bytes(128, 8, kMaxLocalExperts) <= kSharedLimit, "8 stages of N = 128");
static_assert(shared_bytes(192, 6, kMaxLocalExperts) <= kSharedLimit, "6 stages of N = 192");
static_assert(scale_column(128, 8) <= kTmemColumns && scale_column(192, 6) <= kTmemColumns, "");

}  // namespace megamoe::sm100
