// Epilogue 1: steps 3 to 5 of the contract on a first-product tile, and the result into the ring.
// A thread receives gate and up of the same channels (weights.h), two channels x two tokens x two;
// a group of 32 channels lies in two warps, so the float32 products pass through shared memory
// before they are quantised.
#pragma once

#include "epilogue.cuh"
#include "quantise.cuh"

namespace megamoe::sm100 {

// Steps 3 and 4, every product and sum rounded to float32 on its own.
MOE_DEVICE float gated(const Params& p, float gate, float up, float routing) {
  const uint32_t both = ptx::pack_bf16(gate, up);
  gate = ptx::min_nan(ptx::low_bf16(both), p.limit);
  up = ptx::min_nan(ptx::max_nan(ptx::high_bf16(both), -p.limit), p.limit);
  const float exponent = __fmul_rn(__fmul_rn(-p.alpha, gate), 1.4426950408889634f);
  const float sigmoid = ptx::reciprocal_approx(__fadd_rn(1.0f, ptx::exp2_approx(exponent)));
  return __fmul_rn(__fmul_rn(__fmul_rn(gate, sigmoid), __fadd_rn(up, p.beta)), routing);
}

struct ChannelBias {
  float gate[2], up[2];
};
MOE_DEVICE ChannelBias channel_bias(const Params& p, uint32_t expert, uint32_t channel) {
  ChannelBias b{};
  if (p.gate_up_bias == nullptr) return b;
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t n = channel + 8 * i;
    if (n < p.intermediate) {
      const float* of = p.gate_up_bias + static_cast<uint64_t>(expert) * 2 * p.intermediate + n;
      b.gate[i] = __ldg(of);
      b.up[i] = __ldg(of + p.intermediate);
    }
  }
  return b;
}

// 16 tokens: tensor memory -> activation -> staging, float32 [token][64 channels].
MOE_DEVICE void activate_chunk(const Params& p, const Epilogue& e, uint32_t staged,
                               uint32_t first_token, const ChannelBias& bias,
                               const uint32_t (&gate)[8], const uint32_t (&up)[8]) {
#pragma unroll
  for (uint32_t r = 0; r < 8; ++r) {
    const uint32_t token = 2 * (e.lane % 4) + r % 2 + 8 * (r / 4), c = r / 2 % 2;
    const float routing = __uint_as_float(ptx::load_shared(e.rows + 4 * (first_token + token)));
    const float g = __fadd_rn(__uint_as_float(gate[r]), bias.gate[c]);
    const float u = __fadd_rn(__uint_as_float(up[r]), bias.up[c]);
    const uint32_t channel = 16 * e.quadrant + e.lane / 4 + 8 * c;
    ptx::store_shared(staged + token * kStagingPitch + 4 * channel,
                      __float_as_uint(gated(p, g, u, routing)));
  }
}

// 16 tokens: staging -> FP8 codes and scales -> ring. A thread takes 8 channels of one token.
MOE_DEVICE void store_chunk(const Context& c, const Epilogue& e, uint32_t staged, bool valid,
                            uint8_t* ring_row, uint32_t channel, uint32_t scale_at) {
  const uint32_t part = e.thread % 8, from = staged + e.thread / 8 * kStagingPitch + 32 * part;
  const uint4 a = ptx::load_shared4(from), b = ptx::load_shared4(from + 16);
  const uint32_t v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  uint32_t largest = 0;  // magnitudes as integers: NaN and Inf are above all
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) largest = max(largest, v[i] & 0x7FFFFFFFu);
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  const uint32_t next_largest = __shfl_down_sync(~0u, largest, 4);
  if (!valid) return;
  const GroupScale scale = group_scale(largest);
  uint2 codes;
  codes.x = pack4(__uint_as_float(v[0]), __uint_as_float(v[1]), __uint_as_float(v[2]),
                  __uint_as_float(v[3]), scale);
  codes.y = pack4(__uint_as_float(v[4]), __uint_as_float(v[5]), __uint_as_float(v[6]),
                  __uint_as_float(v[7]), scale);
  *reinterpret_cast<uint2*>(ring_row + channel + 8 * part) = codes;
  if (part == 0)  // both groups of 32 of this CTA's 64 channels
    *reinterpret_cast<uint16_t*>(ring_row + scale_at) =
        static_cast<uint16_t>(scale.byte | group_scale(next_largest).byte << 8);
}

template <uint32_t N>
MOE_DEVICE void epilogue1(const Context& c, const Epilogue& e, const Tasks<N>& tasks,
                          uint32_t phase) {
  const Params& p = c.p;
  const Unit unit = tasks.unit;
  const uint32_t* entries = tasks.entries();
  for (uint32_t n = e.thread; n < round_up(unit.rows, kChunk); n += kGroupThreads) {
    const float routing = n < unit.rows ? routing_weight(c, entries[n]) : 0.0f;
    ptx::store_shared(e.rows + 4 * n, __float_as_uint(routing));
  }
  if (tasks.task.unit >= p.ring_units && e.lane == 0) {
    const uint32_t earlier = tasks.task.unit - p.ring_units;
    const uint32_t* read = c.unit_read(earlier);
    wait_until(c, Wait::kRing, kNobody, earlier,
               [&] { return ptx::load_acquire_gpu(read) == 2 * tasks.second_tiles(); });
  }
  e.sync();
  // Which channels: 64 of tile `tile` (weights.h).
  const uint32_t first = 128 * tasks.task.tile + 64 * c.pair_rank;
  const ChannelBias bias = channel_bias(p, unit.expert, first + 16 * e.quadrant + e.lane / 4);
  uint8_t* ring =
      c.at<uint8_t>(p.layout.ring) + static_cast<uint64_t>(tasks.ring_row()) * p.layout.ring_pitch;

  ptx::mbarrier_wait(c.word(kTmemFull) + 8 * e.group, phase);
  ptx::tmem_fence_after();
  const uint32_t column = N * e.group;
  const uint32_t chunks = ceil_div(unit.rows, kChunk);
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    uint32_t gate[8], up[8];
    ptx::tmem_load_16x16(e.tmem(column + kChunk * chunk, 0), gate);
    ptx::tmem_load_16x16(e.tmem(column + kChunk * chunk, 1), up);
    ptx::tmem_wait_loads(gate, up);
    if (chunk + 1 == chunks) release_accumulator(c, e);
    const uint32_t staged = e.staged(chunk);
    activate_chunk(p, e, staged, kChunk * chunk, bias, gate, up);
    e.sync();
    const uint32_t n = kChunk * chunk + e.thread / 8;
    store_chunk(c, e, staged, n < unit.rows && !poisoned(c),
                ring + static_cast<uint64_t>(n) * p.layout.ring_pitch, first,
                scales_offset(p.intermediate) + first / 32);
  }
  e.sync();
  if (e.thread == 0 && !poisoned(c)) ptx::add_release_gpu(c.tile_count(tasks.task.unit), 1);
}

}  // namespace megamoe::sm100
