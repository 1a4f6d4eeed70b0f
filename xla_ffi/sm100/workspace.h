// The workspace of one rank: which words and buffers it holds, where, and how large it is. Setup
// allocates it, zeroes it ONCE and then synchronises all ranks; afterwards only kernels write it.
// Every rank computes the same offsets from the same shape, so a peer's word is at the peer's base
// plus the own offset. Shaped by the protocol (README.md, "Protocol"): a flag has one writer and
// lies on a line of its own, and nothing is cleared by hand.
#pragma once

#include "common.h"

namespace megamoe::sm100 {

// What fixes a workspace. Equal on all ranks.
struct WorkspaceShape {
  uint32_t ranks;          // R
  uint32_t local_experts;  // E_l
  uint32_t slots;          // K
  uint32_t hidden;         // H
  uint32_t intermediate;   // I
  uint32_t max_tokens;     // Tm: capacity in tokens of each rank
  uint32_t clusters;       // Q of the largest grid that will run: sizes the ring
};

// Bytes of one row. A token's row: codes [Hp], scale bytes [Hp/32] padded to 32, then the K routing
// weights as float32. A ring row has no routing weights. Pitches are multiples of 128.
MOE_BOTH constexpr uint32_t scales_offset(uint32_t width) { return round_up(width, 128); }
MOE_BOTH constexpr uint32_t routing_offset(uint32_t width) {
  return round_up(width, 128) + round_up(round_up(width, 128) / 32, 32);
}
MOE_BOTH constexpr uint32_t row_pitch(uint32_t hidden, uint32_t slots) {
  return round_up(routing_offset(hidden) + 4 * slots, 128);
}
MOE_BOTH constexpr uint32_t ring_pitch(uint32_t intermediate) {
  return round_up(routing_offset(intermediate), 128);
}

// A unit is a token tile of one expert. With tiles of at most `tile` rows (the smallest template's
// 128 is the worst case) no routing makes more units than this.
inline constexpr uint32_t kSmallestTile = 128, kLargestTile = 192;
MOE_BOTH constexpr uint32_t max_units(uint32_t ranks, uint32_t experts, uint32_t slots,
                                      uint32_t max_tokens) {
  return experts +
         static_cast<uint32_t>(static_cast<uint64_t>(ranks) * slots * max_tokens / kSmallestTile);
}

// Tiles of 256 weight rows of the first and of the second product.
MOE_BOTH constexpr uint32_t l1_tiles(uint32_t intermediate) {
  return 2 * round_up(intermediate, 128) / kTileM;
}
MOE_BOTH constexpr uint32_t l2_tiles(uint32_t hidden) {
  return ceil_div(round_up(hidden, 128), kTileM);
}

// By how many units the second product follows the first: three rounds of the grid.
MOE_BOTH constexpr uint32_t stream_lag(uint32_t clusters, uint32_t intermediate, uint32_t hidden) {
  return ceil_div(3 * clusters, l1_tiles(intermediate) + l2_tiles(hidden));
}

// Rows of the ring between the products: three lags and a margin of the largest tiles, but never
// more than all units. It must exceed the lag (README.md, "No deadlock"), which `lag + 1` shows.
MOE_BOTH constexpr uint32_t ring_rows(const WorkspaceShape& s) {
  const uint32_t wanted = 3 * stream_lag(s.clusters, s.intermediate, s.hidden) + 3;
  const uint32_t all = max_units(s.ranks, s.local_experts, s.slots, s.max_tokens);
  return (wanted < all ? wanted : all) * kLargestTile;
}

inline constexpr uint32_t kLine = 128;

// What a source says with its metadata: the call's number, W, T and 8 bits of the call site.
inline constexpr uint32_t kMaxTokens = (1u << 20) - 1;
MOE_BOTH constexpr uint64_t meta_flag_word(uint32_t epoch, uint32_t groups, uint32_t tokens,
                                           uint32_t call_site) {
  return epoch | static_cast<uint64_t>(groups & 15) << 32 | static_cast<uint64_t>(tokens) << 36 |
         static_cast<uint64_t>(call_site & 255) << 56;
}
MOE_BOTH constexpr uint32_t flag_epoch(uint64_t word) { return static_cast<uint32_t>(word); }
MOE_BOTH constexpr uint32_t flag_groups(uint64_t word) { return word >> 32 & 15; }
MOE_BOTH constexpr uint32_t flag_tokens(uint64_t word) { return word >> 36 & kMaxTokens; }
MOE_BOTH constexpr uint32_t flag_call_site(uint64_t word) { return word >> 56 & 255; }

// Byte offsets in a workspace. "[..]" in lines: one per 128-byte line.
struct WorkspaceLayout {
  // --- words, self only
  uint64_t epoch;     // u32: completed calls. Written by CTA 0 at the end of a call.
  uint64_t poison;    // u64 Failure (params.h), 0 = alive. CAS by the first failing wait, stores by
                      // peers' failing waits.
  uint64_t meta_arr;  // u32: CTAs whose metadata is stored; wraps to 0 by itself
  uint64_t done_arr;  // u32: CTAs that have finished; wraps
  uint64_t row_arr;   // u32 [8] lines: CTAs that have pushed row group g; wraps
  uint64_t list_alloc;  // u32 [2] lines, by parity of the epoch: entries given to lists
  // --- flags, written by peers (and self), one writer each
  uint64_t meta_flag;  // [R] lines: u64, meta_flag_word()
  uint64_t row_flag;   // u32 [8][R] lines; the last group of a call raises those behind it, too
  uint64_t done_flag;  // u32 [R] lines
  // --- schedule, self only
  uint64_t expert_tag;   // u64 [E_l]: {epoch | n << 32}
  uint64_t expert_base;  // u32 [E_l]: first entry of the expert's list
  uint64_t tile_count;   // u32 [2][units], by parity: CTAs that have stored an L1 tile of the unit
  uint64_t unit_read;    // u32 [2][units], by parity: CTAs that have read the unit's ring rows
  // --- buffers
  uint64_t meta;   // u16 [R][Tm K, rounded up to 8]: each source's expert ids, 0xFFFF = skipped
  uint64_t lists;  // u32 [R Tm K + 16 E_l]: row << 5 | slot
  uint64_t rows;   // [R Tm] receive rows: token t of source s is row s Tm + t
  uint64_t slots;  // bf16 [Tm][K][Hp]: one row for each (token, slot) of this rank
  uint64_t ring;   // [ring_rows] rows of re-quantised activations
  uint64_t bytes;  // size of the whole, a multiple of 256

  uint64_t meta_pitch;  // bytes of one source's ids
  uint32_t row_pitch, ring_pitch, ring_rows, max_units;
};

MOE_BOTH WorkspaceLayout workspace_layout(const WorkspaceShape& s) {
  WorkspaceLayout w{};
  w.row_pitch = row_pitch(s.hidden, s.slots);
  w.ring_pitch = ring_pitch(s.intermediate);
  w.ring_rows = ring_rows(s);
  w.max_units = max_units(s.ranks, s.local_experts, s.slots, s.max_tokens);
  const uint64_t ids = static_cast<uint64_t>(s.max_tokens) * s.slots;
  w.meta_pitch = round_up64(2 * ids, 16);
  uint64_t at = 0;
  const auto take = [&at](uint64_t bytes, uint64_t align) {
    const uint64_t here = round_up64(at, align);
    at = here + bytes;
    return here;
  };
  w.epoch = take(kLine, kLine);
  w.poison = take(kLine, kLine);
  w.meta_arr = take(kLine, kLine);
  w.done_arr = take(kLine, kLine);
  w.row_arr = take(kRowGroups * kLine, kLine);
  w.list_alloc = take(2 * kLine, kLine);
  w.meta_flag = take(s.ranks * kLine, kLine);
  w.row_flag = take(kRowGroups * s.ranks * kLine, kLine);
  w.done_flag = take(s.ranks * kLine, kLine);
  w.expert_tag = take(8 * s.local_experts, kLine);
  w.expert_base = take(4 * s.local_experts, kLine);
  w.tile_count = take(8 * static_cast<uint64_t>(w.max_units), kLine);
  w.unit_read = take(8 * static_cast<uint64_t>(w.max_units), kLine);
  w.meta = take(s.ranks * w.meta_pitch, kLine);
  w.lists = take(4 * (s.ranks * ids + 16 * s.local_experts), kLine);
  w.rows = take(static_cast<uint64_t>(s.ranks) * s.max_tokens * w.row_pitch, 256);
  w.slots = take(2 * ids * round_up(s.hidden, 128), 256);
  w.ring = take(static_cast<uint64_t>(w.ring_rows) * w.ring_pitch, 256);
  w.bytes = round_up64(at, 256);
  return w;
}

}  // namespace megamoe::sm100
