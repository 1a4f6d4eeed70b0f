// Epilogue 2: step 6 of the contract on a second-product tile: plus routing weight times bias, to
// bfloat16, and each row's 128 channels of this CTA straight into its token's slot at the owner's
// rank, 256 contiguous bytes by half a warp at a time.
#pragma once

#include "epilogue.cuh"

namespace megamoe::sm100 {

// A row's place in shared memory: {address low, high, routing weight, 0}.
MOE_DEVICE void prepare_row(const Context& c, const Epilogue& e, uint32_t n, uint32_t entry) {
  const Params& p = c.p;
  const uint32_t row = entry_row(entry), source = row / p.max_tokens;
  const uint64_t slot = static_cast<uint64_t>(row % p.max_tokens) * p.slots + entry_slot(entry);
  const uint64_t to = reinterpret_cast<uint64_t>(c.peer<uint8_t>(source, p.layout.slots)) +
                      slot * c.padded_hidden() * 2;
  const float routing = p.down_bias == nullptr ? 0.0f : routing_weight(c, entry);
  ptx::store_shared4(e.rows + 16 * n, static_cast<uint32_t>(to), static_cast<uint32_t>(to >> 32),
                     __float_as_uint(routing), 0);
}

// Bias of the channels `channel` + 0, 8, 16, 24.
struct RowBias {
  float of[4];
};
MOE_DEVICE RowBias row_bias(const Params& p, uint32_t expert, uint32_t channel) {
  RowBias b{};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if (channel + 8 * i < p.hidden)
      b.of[i] = __ldg(p.down_bias + static_cast<uint64_t>(expert) * p.hidden + channel + 8 * i);
  }
  return b;
}

// 16 tokens x 16 channels of a warp: registers -> staging, bf16 [token][128 channels].
MOE_DEVICE void stage_half(const Params& p, const Epilogue& e, uint32_t staged,
                           uint32_t first_token, uint32_t half, const RowBias& bias,
                           uint32_t (&v)[8]) {
  if (p.down_bias != nullptr) {
#pragma unroll
    for (uint32_t r = 0; r < 8; ++r) {
      const uint32_t token = 2 * (e.lane % 4) + r % 2 + 8 * (r / 4);
      const float routing =
          __uint_as_float(ptx::load_shared(e.rows + 16 * (first_token + token) + 8));
      v[r] = __float_as_uint(
          __fadd_rn(__uint_as_float(v[r]), __fmul_rn(routing, bias.of[2 * half + r / 2 % 2])));
    }
  }
  uint32_t pairs[4];  // tokens 2T and 2T + 1: of the channels 0-7, 8-15, then the next 8 tokens
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i)
    pairs[i] = ptx::pack_bf16(__uint_as_float(v[2 * i]), __uint_as_float(v[2 * i + 1]));
  const uint32_t matrix = e.lane / 8, token = 8 * (matrix / 2) + e.lane % 8;
  const uint32_t channel = 32 * e.quadrant + 16 * half + 8 * (matrix % 2);
  ptx::store_matrices(staged + token * kStagingPitch + 2 * channel, pairs[0], pairs[1], pairs[2],
                      pairs[3]);
}

template <uint32_t N>
MOE_DEVICE void epilogue2(const Context& c, const Epilogue& e, const Tasks<N>& tasks,
                          uint32_t phase) {
  const Params& p = c.p;
  const Unit unit = tasks.unit;
  const uint32_t* entries = tasks.entries();
  for (uint32_t n = e.thread; n < unit.rows; n += kGroupThreads) prepare_row(c, e, n, entries[n]);
  for (uint32_t n = unit.rows + e.thread; n < round_up(unit.rows, kChunk); n += kGroupThreads)
    ptx::store_shared4(e.rows + 16 * n, 0, 0, 0, 0);
  e.sync();
  const uint32_t first = kTileM * tasks.task.tile + 128 * c.pair_rank;  // channel
  RowBias bias{};
  if (p.down_bias != nullptr) bias = row_bias(p, unit.expert, first + 32 * e.quadrant + e.lane / 4);

  ptx::mbarrier_wait(c.word(kTmemFull) + 8 * e.group, phase);
  ptx::tmem_fence_after();
  // All loads of this task have been consumed: the ring rows may be overwritten once all tiles say
  // so.
  if (e.thread == 0 && !poisoned(c)) ptx::add_release_gpu(c.unit_read(tasks.task.unit), 1);
  const uint32_t column = N * e.group;
  const uint32_t chunks = ceil_div(unit.rows, kChunk);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    uint32_t low[8], high[8];
    ptx::tmem_load_16x16(e.tmem(column + kChunk * chunk, 0), low);
    ptx::tmem_load_16x16(e.tmem(column + kChunk * chunk, 1), high);
    ptx::tmem_wait_loads(low, high);
    if (chunk + 1 == chunks) release_accumulator(c, e);
    const uint32_t staged = e.staged(chunk);
    stage_half(p, e, staged, kChunk * chunk, 0, bias, low);
    stage_half(p, e, staged, kChunk * chunk, 1, bias, high);
    e.sync();
    const uint32_t n = kChunk * chunk + e.thread / 8, part = e.thread % 8;
    if (n < unit.rows && first < c.padded_hidden() && !poisoned(c)) {
      const uint2 to = ptx::load_shared2(e.rows + 16 * n);
      const uint32_t from = staged + n % kChunk * kStagingPitch + 32 * part;
      const uint4 a = ptx::load_shared4(from), b = ptx::load_shared4(from + 16);
      const ptx::Words8 out{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
      const uint64_t address = to.x | static_cast<uint64_t>(to.y) << 32;
      ptx::store_global8(reinterpret_cast<uint8_t*>(address) + 2 * first + 32 * part, out);
    }
  }
  e.sync();  // before the rows' places are overwritten
}

}  // namespace megamoe::sm100
