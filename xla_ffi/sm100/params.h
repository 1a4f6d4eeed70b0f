// The kernel's one parameter, field by field: what the host decides for a launch. Nothing in it
// changes from call to call but what XLA hands over (pointers and T), so that a captured launch can
// be replayed: the call's number lives in the workspace.
//
// Launch: kernel `megamoe_n128` or `megamoe_n192`, grid 2 Q (Q clusters, all resident), block 512,
// cluster 2, dynamic shared memory `shared_bytes` (smem.h), one `__grid_constant__` argument.
#pragma once

#include "common.h"
#include "workspace.h"

namespace megamoe::sm100 {

// A CUtensorMap: the driver's table fills it.
struct alignas(128) Map {
  uint64_t opaque[16];
};

// Which wait failed. Also the first byte of the report.
enum class Wait : uint32_t {
  kNone = 0,
  kMetadata = 1,  // a source's expert ids
  kRows = 2,      // a source's token rows of group `group`
  kLists = 3,     // the list of a local expert (group: the expert modulo 256)
  kTiles = 4,     // first-product tiles of a unit, by other CTAs of this rank
  kRing = 5,      // the ring slot's earlier unit
  kDone = 6,      // a rank's end of the call
  kMismatch = 7,  // no time-out: the source enqueued another call (call site or T out of range)
};

// What the first failing wait leaves in the workspace's poison word and in `report`, in 64 bits:
// kind | rank << 8 | peer << 16 | group << 24 | epoch << 32. peer 255: none in particular.
MOE_BOTH constexpr uint64_t failure(Wait kind, uint32_t rank, uint32_t peer, uint32_t group,
                                    uint32_t epoch) {
  return static_cast<uint64_t>(kind) | rank << 8 | peer << 16 | (group & 255u) << 24 |
         static_cast<uint64_t>(epoch) << 32;
}

struct Params {
  // Tensor maps, interleave NONE, element strides 1, fill zero, L2 promotion as the host likes:
  //
  //   map             type             dim                          byte stride  box        swizzle
  //   rows            UINT8            {Hp, R Tm}                   row_pitch    {128, 1}   128B
  //   ring            UINT8            {Ip, ring_rows}              ring_pitch   {128, 1}   128B
  //   gate_up         16U4_ALIGN16B    {Hp, E_l 2 Ip}               Hp / 2       {128, 128} 128B
  //   down            16U4_ALIGN16B    {Ip, E_l Mp}                 Ip / 2       {128, 128} 128B
  //   gate_up_scales  UINT32           {128, E_l 2Ip/128 Hp/128}    512          {128, 1}   none
  //   down_scales     UINT32           {128, E_l Mp/128 Ip/128}     512          {128, 1}   none
  //
  // rows and ring start at the workspace's offsets of the same names on this device.
  Map rows, ring, gate_up, down, gate_up_scales, down_scales;

  // --- the call: buffers of XLA, this device's
  const void* x;              // bf16 [T, H], 16-byte aligned
  const int32_t* topk_idx;    // [T, K], global expert ids; outside 0 .. R E_l - 1: skipped
  const float* topk_weights;  // [T, K]
  void* y;                    // bf16 [T, H], 16-byte aligned
  const float* gate_up_bias;  // [E_l, 2 I] or null
  const float* down_bias;     // [E_l, H] or null
  uint32_t tokens;            // T, at most max_tokens
  uint32_t row_groups;        // W: 1, or up to 8 for long batches (this rank's own choice)
  uint32_t call_site;  // low 8 bits travel: differs between calls of a program; ranks must agree
  float limit, alpha, beta;  // of the gated activation; no limit is +inf

  // --- the shape, as in WorkspaceShape
  uint32_t ranks, rank, local_experts, slots, hidden, intermediate, max_tokens;

  // --- the host's choices
  uint32_t stages;      // of the load pipeline: 2 .. 8, as many as `shared_bytes` allows
  uint32_t lag;         // units by which the second product follows the first: 1 or more
  uint32_t ring_units;  // ring_rows / N of the template; > lag, or no fewer than max_units
  uint64_t timeout_ns;  // of every wait for another rank; twice that for one of this rank

  // --- the workspace
  WorkspaceLayout layout;
  uint64_t* report;               // device address of a host-pinned word, 0 while all is well
  uint8_t* workspace[kMaxRanks];  // base address of every rank's, at this device
};

}  // namespace megamoe::sm100
