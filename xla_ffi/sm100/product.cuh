// MMA issue (warp 0 of the leader, one thread): for each task one accumulator, for each block of k
// the two scale copies and four instructions of k = 32, in ascending order in every configuration,
// so that a result never depends on tiles. Decides descriptors; the loaders decide what they point
// at.
#pragma once

#include "context.cuh"

namespace megamoe::sm100 {

// Rows of 128 bytes with the 128-byte swizzle, eight rows are 1024 bytes.
MOE_DEVICE uint64_t operand_descriptor(uint32_t address) {
  return (address & 0x3FFFFu) >> 4 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 46 |
         uint64_t{2} << 61;
}
// Contiguous 512 bytes, no swizzle.
MOE_DEVICE uint64_t scales_descriptor(uint32_t address) {
  return (address & 0x3FFFFu) >> 4 | uint64_t{128 >> 4} << 32 | uint64_t{1} << 46;
}

// kind::mxf8f6f4: A E2M1, B E4M3, M = 256, UE8M0 scales; byte `group` of both scale words.
MOE_BOTH uint32_t instruction_descriptor(uint32_t columns, uint32_t group) {
  return group << 4 | 5u << 7 | columns >> 3 << 17 | 1u << 23 | (kTileM >> 4) << 24 | group << 29;
}

template <uint32_t N>
MOE_DEVICE void product_role(const Context& c) {
  using Shared = SharedMap<N>;
  Tasks<N> tasks(c);
  StageCursor at;
  for (uint32_t i = 0; tasks.next(); ++i) {
    const uint32_t accumulator = i % 2, column = N * accumulator;
    const uint32_t columns = round_up(tasks.unit.rows, 16);
    ptx::mbarrier_wait(c.word(kTmemEmpty) + 8 * accumulator, (i / 2 & 1) ^ 1);
    const uint32_t blocks = tasks.blocks();
    for (uint32_t k = 0; k < blocks; ++k, at.advance(c.p.stages)) {
      ptx::mbarrier_wait(c.word(kFull) + 8 * at.stage, at.phase);
      ptx::tmem_fence_after();  // behind the scale words, and behind the accumulator's readers
      const uint32_t base = at.base<N>(c);
      const uint32_t sfa = Shared::kFirstScaleColumn + at.stage * Shared::kScaleColumns;
      const uint32_t sfb = sfa + 4;
      ptx::copy_scales(sfa, scales_descriptor(base + Shared::kScales));
      ptx::copy_scales(sfb, scales_descriptor(base + Shared::kTokenScales));
      if (N > 128 && columns > 128)
        ptx::copy_scales(sfb + 4, scales_descriptor(base + Shared::kTokenScales + 512));
      const uint64_t a = operand_descriptor(base + Shared::kWeights);
      const uint64_t b = operand_descriptor(base + Shared::kTokens);
#pragma unroll
      for (uint32_t g = 0; g < 4; ++g) {  // 32 bytes are 2 units of a descriptor's address
        ptx::mma_scaled(column, a + 2 * g, b + 2 * g, instruction_descriptor(columns, g), sfa, sfb,
                        k != 0 || g != 0);
      }
      ptx::commit_to_pair(c.word(kEmpty) + 8 * at.stage);
    }
    ptx::commit_to_pair(c.word(kTmemFull) + 8 * accumulator);
  }
}

}  // namespace megamoe::sm100
