// The kernel's plain C++ headers for the tests, as a C library called through ctypes: workspace
// layout, parameter block, schedule and lists, weight rows. Nothing is decided here.
#include <cstring>
#include <vector>

#include "lists.h"
#include "params.h"
#include "schedule.h"
#include "smem.h"
#include "weights.h"
#include "workspace.h"

using namespace megamoe::sm100;

namespace {
WorkspaceShape shape_of(const uint32_t* s) { return {s[0], s[1], s[2], s[3], s[4], s[5], s[6]}; }
}  // namespace

extern "C" {

uint32_t params_bytes() { return sizeof(Params); }
uint32_t shared_size(uint32_t tile, uint32_t stages) { return shared_bytes(tile, stages); }

// The members of WorkspaceLayout as they stand, the last four widened.
uint32_t layout(const uint32_t* shape, uint64_t* out) {
  const WorkspaceLayout w = workspace_layout(shape_of(shape));
  const uint32_t longs = (sizeof(w) - 4 * sizeof(uint32_t)) / sizeof(uint64_t);
  std::memcpy(out, &w, longs * sizeof(uint64_t));
  const uint32_t rest[] = {w.row_pitch, w.ring_pitch, w.ring_rows, w.max_units};
  for (uint32_t i = 0; i < 4; ++i) out[longs + i] = rest[i];
  return longs + 4;
}

uint32_t default_lag(const uint32_t* shape) {
  const WorkspaceShape s = shape_of(shape);
  return stream_lag(s.clusters, s.intermediate, s.hidden);
}

struct Call {
  uint32_t shape[7];
  uint32_t rank, tokens, row_groups, call_site, stages, lag, ring_units;
  float limit, alpha, beta;
  uint64_t timeout_ns, x, topk_idx, topk_weights, y, gate_up_bias, down_bias, report;
  uint64_t workspace[kMaxRanks];
  uint8_t maps[6][128];
};

void fill_params(const Call* call, void* out) {
  Params p{};
  const WorkspaceShape s = shape_of(call->shape);
  Map* maps[] = {&p.rows, &p.ring, &p.gate_up, &p.down, &p.gate_up_scales, &p.down_scales};
  for (int i = 0; i < 6; ++i) std::memcpy(maps[i], call->maps[i], 128);
  p.x = reinterpret_cast<const void*>(call->x);
  p.topk_idx = reinterpret_cast<const int32_t*>(call->topk_idx);
  p.topk_weights = reinterpret_cast<const float*>(call->topk_weights);
  p.y = reinterpret_cast<void*>(call->y);
  p.gate_up_bias = reinterpret_cast<const float*>(call->gate_up_bias);
  p.down_bias = reinterpret_cast<const float*>(call->down_bias);
  p.tokens = call->tokens;
  p.row_groups = call->row_groups;
  p.call_site = call->call_site;
  p.limit = call->limit, p.alpha = call->alpha, p.beta = call->beta;
  p.ranks = s.ranks, p.rank = call->rank, p.local_experts = s.local_experts, p.slots = s.slots;
  p.hidden = s.hidden, p.intermediate = s.intermediate, p.max_tokens = s.max_tokens;
  p.stages = call->stages, p.lag = call->lag, p.ring_units = call->ring_units;
  p.timeout_ns = call->timeout_ns;
  p.layout = workspace_layout(s);
  p.report = reinterpret_cast<uint64_t*>(call->report);
  for (uint32_t r = 0; r < s.ranks; ++r)
    p.workspace[r] = reinterpret_cast<uint8_t*>(call->workspace[r]);
  std::memcpy(out, &p, sizeof(p));
}

// --- weights.h
uint32_t row_of(uint32_t up, uint32_t channel) { return prepared_row(up != 0, channel); }
uint32_t scale_at(uint32_t m, uint32_t j) { return scale_byte(m, j); }

// --- schedule.h: all tasks in order, three words each
uint32_t stream_tasks(uint32_t units, uint32_t lag, uint32_t m1, uint32_t m2, uint32_t* out) {
  const Stream stream{units, lag, m1, m2};
  for (uint32_t i = 0; i < stream.tasks(); ++i) {
    const Task t = stream.at(i);
    out[3 * i] = t.second, out[3 * i + 1] = t.unit, out[3 * i + 2] = t.tile;
  }
  return stream.tasks();
}

// All units of lists of these lengths, three words each (expert, begin, rows).
uint32_t list_units(const uint32_t* counts, uint32_t experts, uint32_t tile, uint32_t* out) {
  uint32_t units = 0;
  for (uint32_t x = 0; x < experts; ++x) units += units_of(counts[x], tile);
  UnitCursor cursor;
  for (uint32_t u = 0; u < units; ++u) {
    const Unit unit = cursor.find(u, tile, [&](uint32_t x) { return counts[x]; });
    out[3 * u] = unit.expert, out[3 * u + 1] = unit.begin, out[3 * u + 2] = unit.rows;
  }
  return units;
}

uint32_t id_matches(const uint32_t* words, uint32_t expert) {
  const uint32_t w[4] = {words[0], words[1], words[2], words[3]};
  return matches(w, expert);
}
uint32_t id_as_sent(int32_t id, uint32_t experts) { return travelling_id(id, experts); }
uint32_t group_of(uint32_t x, uint32_t experts, uint32_t groups) {
  return row_group(x, experts, groups);
}

}  // extern "C"
