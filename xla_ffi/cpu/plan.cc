// Block heights, task sizes and the order of the stream.
//
// Heights: all tiles of a block are packed once and read once per panel, so a block is as tall as
// fits a core's second-level cache. Task sizes: by estimated time, since decode is bound by bytes
// and prefill by multiply-adds; short enough that the last tasks end together, long enough that a
// claim costs nothing.
#include "plan.h"

#include <algorithm>

#include "layout.h"

namespace megamoe::cpu {
namespace {

constexpr int64_t kPackedBytes = 1600 << 10;
constexpr double kBytesPerNanosecond = 12.0;  // a thread's share of memory bandwidth
constexpr double kMacsPerNanosecond = 40.0;
constexpr double kTaskNanoseconds = 40e3;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Time of four panels with k summed values for a block of `rows`.
double unit_time(int64_t rows, int64_t k) {
  const double bytes = 4.0 * static_cast<double>(k / kGroup) * (kCodeBytes + kScaleBytes);
  const double macs = static_cast<double>(rows) * kAccColumns * static_cast<double>(k);
  return std::max(bytes / kBytesPerNanosecond, macs / kMacsPerNanosecond);
}

void cut_blocks(const SortedSlots& slots, int64_t k_max, const Path& path, Plan& plan) {
  const int64_t tile_bytes = path.tile_rows * k_max * path.element_bytes;
  const int64_t limit =
      std::clamp<int64_t>(kPackedBytes / tile_bytes, 2, kMaxBlockRows / path.tile_rows) *
      path.tile_rows;
  for (size_t e = 0; e + 1 < slots.first.size(); ++e) {
    const int64_t count = slots.first[e + 1] - slots.first[e];
    const int64_t blocks = ceil_div(count, limit);
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t first = count * b / blocks, end = count * (b + 1) / blocks;
      const int64_t rows = end - first, tiles = ceil_div(rows, path.tile_rows);
      plan.blocks.push_back({static_cast<int32_t>(e), static_cast<int32_t>(slots.first[e] + first),
                             static_cast<int32_t>(rows), static_cast<int32_t>(plan.tiles.size()),
                             static_cast<int32_t>(tiles)});
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t begin = rows * t / tiles;
        plan.tiles.push_back({static_cast<int32_t>(begin),
                              static_cast<int32_t>(rows * (t + 1) / tiles - begin), true});
      }
      plan.max_rows = std::max(plan.max_rows, static_cast<int32_t>(rows));
    }
  }
}

// Cuts `units` that take `time` each into tasks.
void push_tasks(Step step, int32_t block, int64_t units, double time, double task_time,
                Plan& plan) {
  const int64_t each = std::clamp<int64_t>(static_cast<int64_t>(task_time / time), 1, units);
  for (int64_t begin = 0; begin < units; begin += each) {
    plan.tasks.push_back({step, block, static_cast<int32_t>(begin),
                          static_cast<int32_t>(std::min(begin + each, units))});
  }
}

}  // namespace

void make_plan(const SortedSlots& slots, const PlanShape& shape, const Path& path, Plan& plan) {
  plan.blocks.clear();
  plan.tiles.clear();
  plan.tasks.clear();
  plan.max_rows = 0;
  cut_blocks(slots, std::max(shape.hidden, shape.intermediate), path, plan);

  const int64_t gate_up_units = gate_up_units_of(shape.intermediate);
  const int64_t down_units = down_units_of(shape.hidden);
  plan.nanoseconds = 0.0;
  for (const Block& block : plan.blocks) {
    plan.nanoseconds += static_cast<double>(gate_up_units) * unit_time(block.rows, shape.hidden) +
                        static_cast<double>(down_units) * unit_time(block.rows, shape.intermediate);
  }
  const double task_time =
      std::min(kTaskNanoseconds, plan.nanoseconds / (16.0 * static_cast<double>(shape.threads)));

  const auto count = static_cast<int32_t>(plan.blocks.size());
  const auto pack = [&](int32_t b) {
    if (b < count) plan.tasks.push_back({Step::kPack, b, 0, 0});
  };
  const auto down = [&](int32_t b) {
    if (b < 0) return;
    push_tasks(Step::kDown, b, down_units,
               unit_time(plan.blocks[static_cast<size_t>(b)].rows, shape.intermediate), task_time,
               plan);
  };
  pack(0);
  for (int32_t b = 0; b < count; ++b) {
    pack(b + 1);
    push_tasks(Step::kGateUp, b, gate_up_units,
               unit_time(plan.blocks[static_cast<size_t>(b)].rows, shape.hidden), task_time, plan);
    down(b - 1);
  }
  down(count - 1);
  const double token_time =
      static_cast<double>((shape.topk + 1) * shape.hidden * 2) / kBytesPerNanosecond;
  push_tasks(Step::kCombine, 0, shape.tokens, token_time, kTaskNanoseconds, plan);
}

}  // namespace megamoe::cpu
