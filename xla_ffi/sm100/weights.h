// The layout of prepared expert weights, "sm100" version 1, byte by byte. Decides which checkpoint
// row lies where; jax_megamoe/layouts/sm100.py writes it, the loaders and epilogue 1 rely on it.
// Shaped by the tensor core: a task is 256 weight rows by a pair of CTAs, rows are lanes of tensor
// memory, and one epilogue thread must find gate and up of a channel without another one's help.
//
// Letters: E_l local experts, I and H as in the contract, Ip and Hp rounded up to 128, Mp = Hp
// rounded up to 256. Padding: codes 0, scale byte 127.
//
// gate_up codes   int8  [E_l, 2 Ip, Hp/2]         two E2M1 a byte, even k in the low nibble
// gate_up scales  uint8 [E_l, 2 Ip/128, Hp/128, 512]
// down codes      int8  [E_l, Mp, Ip/2]
// down scales     uint8 [E_l, Mp/128, Ip/128, 512]
// biases          float32 [E_l, 2 I] and [E_l, H], in checkpoint order, unpadded; or none
//
// Rows of gate_up. Prepared row p: tile j = p / 256 holds the channels 128 j .. 128 j + 127; half
// c = p % 256 / 128 is CTA c's and holds the channels 128 j + 64 c .. + 63; in it, quadrant
// q = p % 128 / 32 is the 32 lanes of warp q; its lanes 0-15 are gate, 16-31 up, of the channels
// 128 j + 64 c + 16 q + 0 .. 15. With tcgen05.ld.16x256b at lane 0 and at lane 16 a thread receives
// gate and up of the same channels in the same registers.
// Rows of down: checkpoint order.
//
// Scales: for each 128 rows and each 128 of k the 512 bytes in the order of tcgen05.cp.32x128b:
// row m (0-127), group j of 32 (0-3) is byte 4 ((m % 32) 4 + m / 32) + j.
#pragma once

#include "common.h"

namespace megamoe::sm100 {

inline constexpr uint32_t kWeightsVersion = 1;

struct GateUpRow {
  bool up;           // false: gate
  uint32_t channel;  // of the Ip padded intermediate channels
};

MOE_BOTH GateUpRow gate_up_row(uint32_t prepared) {
  const uint32_t lane = prepared % 32, quadrant = prepared % 128 / 32;
  return {lane >= 16, prepared / 128 * 64 + 16 * quadrant + lane % 16};
}

MOE_BOTH uint32_t prepared_row(bool up, uint32_t channel) {
  return channel / 64 * 128 + channel % 64 / 16 * 32 + (up ? 16 : 0) + channel % 16;
}

// Byte of the scale of row m, group j in its 512-byte block.
MOE_BOTH uint32_t scale_byte(uint32_t m, uint32_t j) { return 4 * (m % 32 * 4 + m / 32) + j; }

// Sizes in bytes of one device's arrays.
struct WeightBytes {
  uint64_t gate_up, gate_up_scales, down, down_scales;
};
MOE_BOTH WeightBytes weight_bytes(uint32_t experts, uint32_t hidden, uint32_t intermediate) {
  const uint64_t h = round_up(hidden, 128), i = round_up(intermediate, 128), m = round_up(h, 256);
  return {experts * 2 * i * h / 2, experts * 2 * i * h / 32, experts * m * i / 2,
          experts * m * i / 32};
}

}  // namespace megamoe::sm100
