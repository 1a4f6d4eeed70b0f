// What a chunk of tokens is cut into: blocks of rows of one expert, and tasks over them.
//
// The stream of tasks is the schedule: threads claim its tasks in order, and a task depends only on
// earlier ones. It interleaves two blocks, so that what a task needs was claimed long before it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

#include "path.h"
#include "sort.h"

namespace megamoe::cpu {

inline constexpr int32_t kRing = 4;  // blocks whose activations are held at once

struct Block {
  int32_t expert;
  int32_t first, rows;             // its slots: SortedSlots::order[first ..]
  int32_t first_tile, tile_count;  // its tiles: Plan::tiles[first_tile ..]
};

// A unit of work is four panels: 32 columns of gate and of up, or 64 columns of H (of which the
// last unit may have 32).
inline int64_t gate_up_units_of(int64_t intermediate) { return intermediate / 32; }
inline int64_t down_units_of(int64_t hidden) { return (hidden + 63) / 64; }

enum class Step : int32_t {
  kPack,     // step 1: quantise and pack the block's rows
  kGateUp,   // steps 2 to 5 for units begin..end-1; the block's last one packs a for kDown
  kDown,     // step 6 for units begin..end-1
  kCombine,  // step 7 for tokens begin..end-1; needs every kDown
};

struct Task {
  Step step;
  int32_t block;
  int32_t begin, end;
};

struct PlanShape {
  int64_t tokens, topk, hidden, intermediate;
  int64_t threads;  // to size tasks by; results do not depend on it
};

struct Plan {
  std::vector<Block> blocks;
  std::vector<Tile> tiles;  // rows counted within their block; `scaled` is set when they are packed
  std::vector<Task> tasks;
  int32_t max_rows = 0;      // of any block
  double nanoseconds = 0.0;  // a rough estimate of all the work on one thread
};

void make_plan(const SortedSlots& slots, const PlanShape& shape, const Path& path, Plan& plan);

}  // namespace megamoe::cpu
