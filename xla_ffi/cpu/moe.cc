// Carries out a plan: chunks of tokens, and what each task of a chunk does.
//
// Memory of a call, besides the plan's few bytes per slot: kRing blocks of activations, and for the
// whole layer the bfloat16 rows of one chunk (at most kChunkBytes, or one token's). Activations of
// a block are reused as soon as the block kRing places before has been finished by tasks earlier in
// the stream.
#include "moe.h"

#include <string.h>

#include <algorithm>

#include "layout.h"

namespace megamoe::cpu {
namespace {

constexpr int64_t kChunkBytes = int64_t{192} << 20;  // with the ring below kIdleBytes: kept
constexpr int64_t kChunkSlots = int64_t{1} << 20;
constexpr double kHelperNanoseconds = 10e3;  // a helper is asked for this much work, and not below

int64_t align64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// One of the two activations that a block multiplies: x of width H, then a of width I.
struct Operand {
  uint8_t *codes, *scales, *packed;
  const uint8_t** scale_rows;

  static int64_t bytes(int64_t rows, int64_t k, const Path& path) {
    return align64(rows * k) + align64(rows * (k / kGroup)) +
           align64(rows * k * path.element_bytes) +
           align64(rows * static_cast<int64_t>(sizeof(uint8_t*)));
  }
  static Operand at(uint8_t* p, int64_t rows, int64_t k, const Path& path) {
    Operand o;
    o.codes = p;
    o.scales = o.codes + align64(rows * k);
    o.packed = o.scales + align64(rows * (k / kGroup));
    o.scale_rows =
        reinterpret_cast<const uint8_t**>(o.packed + align64(rows * k * path.element_bytes));
    return o;
  }
};

class Chunk {
 public:
  Chunk(const Problem& problem, const Path& path, int64_t first_token, int64_t tokens,
        Executor& executor, Scratch& scratch)
      : p_(problem),
        path_(path),
        first_(first_token),
        tokens_(tokens),
        plan_(scratch.plan),
        order_(scratch.slots.order),
        gate_up_{problem.experts, 2 * problem.intermediate, problem.hidden},
        down_{problem.experts, problem.hidden, problem.intermediate} {
    sort_slots(ids(0), tokens * p_.topk, p_.experts, scratch.slots);
    threads_ = std::max<int64_t>(executor.threads(), 1);
    make_plan(scratch.slots, {tokens, p_.topk, p_.hidden, p_.intermediate, threads_}, path,
              scratch.plan);
    a_tiles_ = plan_.tiles;
    sync_ = scratch.sync(static_cast<int64_t>(plan_.blocks.size()));

    x_bytes_ = Operand::bytes(plan_.max_rows, p_.hidden, path);
    a_bytes_ = Operand::bytes(plan_.max_rows, p_.intermediate, path);
    const int64_t ring = kRing * (x_bytes_ + a_bytes_);
    const bool sums = p_.y != nullptr;
    ring_ = scratch.memory(ring + (sums ? tokens * p_.topk * p_.hidden * 2 : 0));
    rows_ = sums ? reinterpret_cast<uint16_t*>(ring_ + ring)
                 : p_.rows + first_token * p_.topk * p_.hidden;
  }

  void run(Executor& executor) {
    const auto useful = static_cast<int64_t>(plan_.nanoseconds / kHelperNanoseconds);
    const auto total = static_cast<int64_t>(plan_.tasks.size());
    const int64_t helpers = std::min({threads_ - 1, useful, total - 1});
    run_tasks(executor, total, helpers,
              [this](int64_t i) { work(plan_.tasks[static_cast<size_t>(i)]); });
  }

 private:
  const int32_t* ids(int64_t slot) const { return p_.topk_idx + first_ * p_.topk + slot; }
  float routing_weight(int64_t slot) const { return p_.topk_weights[first_ * p_.topk + slot]; }
  int64_t slot_of(const Block& b, int32_t row) const {
    return order_[static_cast<size_t>(b.first + row)];
  }
  uint16_t* row_of(int64_t slot) const { return rows_ + slot * p_.hidden; }
  Operand x_of(int32_t block) const {
    return Operand::at(ring_ + (block % kRing) * (x_bytes_ + a_bytes_), plan_.max_rows, p_.hidden,
                       path_);
  }
  Operand a_of(int32_t block) const {
    return Operand::at(ring_ + (block % kRing) * (x_bytes_ + a_bytes_) + x_bytes_, plan_.max_rows,
                       p_.intermediate, path_);
  }

  void work(const Task& task) {
    switch (task.step) {
      case Step::kPack:
        return pack(task.block);
      case Step::kGateUp:
        return gate_up(task);
      case Step::kDown:
        return down(task);
      case Step::kCombine:
        return p_.y != nullptr ? combine(task) : clear_skipped(task);
    }
  }

  // Spreads quantised rows into tiles; codes[r] and operand.scale_rows[r] are given.
  void fill(const Block& b, std::vector<Tile>& tiles, const uint8_t* const* codes,
            const Operand& operand, int64_t k) {
    const int64_t groups = k / kGroup;
    for (int32_t i = 0; i < b.tile_count; ++i) {
      Tile& t = tiles[static_cast<size_t>(b.first_tile + i)];
      t.scaled = true;
      for (int32_t r = t.first; r < t.first + t.rows; ++r) {
        t.scaled = t.scaled && path_.scalable(codes[r], operand.scale_rows[r], groups);
      }
      path_.pack_tile(codes + t.first, operand.scale_rows + t.first, groups, t.scaled, t.rows,
                      operand.packed + t.first * k * path_.element_bytes);
    }
  }

  void pack(int32_t index) {
    if (index >= kRing) {
      wait_until(sync_[index - kRing].down_done, static_cast<int32_t>(down_units_of(p_.hidden)));
    }
    const Block& b = plan_.blocks[static_cast<size_t>(index)];
    const Operand x = x_of(index);
    const int64_t groups = p_.hidden / kGroup;
    const uint8_t* codes[kMaxBlockRows];
    for (int32_t r = 0; r < b.rows; ++r) {
      const int64_t token = first_ + slot_of(b, r) / p_.topk;
      if (p_.x != nullptr) {
        path_.quantize_row(p_.x + token * p_.hidden, groups, x.codes + r * p_.hidden,
                           x.scales + r * groups);
        codes[r] = x.codes + r * p_.hidden;
        x.scale_rows[r] = x.scales + r * groups;
      } else {
        codes[r] = p_.q + token * p_.hidden;
        x.scale_rows[r] = p_.q_scale + token * groups;
      }
    }
    fill(b, plan_.tiles, codes, x, p_.hidden);
    sync_[index].packed.store(1, std::memory_order_release);
  }

  // Panel n of `count` is first[n / 2] + n % 2; `next` likewise names those to prefetch.
  Panels panels(const WeightShape& shape, const uint8_t* codes, const uint8_t* scales,
                int64_t expert, int32_t count, const int64_t (&first)[2],
                const int64_t (&next)[2]) const {
    Panels w;
    w.count = count;
    for (int n = 0; n < count; ++n) {
      w.codes[n] = codes + shape.code_offset(expert, first[n / 2] + n % 2);
      w.scales[n] = scales + shape.scale_offset(expert, first[n / 2] + n % 2);
      w.ahead[n] = codes + shape.code_offset(expert, next[n / 2] + n % 2);
    }
    return w;
  }

  RowBlock block_rows(const Block& b, const std::vector<Tile>& tiles,
                      const Operand& operand) const {
    return {operand.packed, tiles.data() + b.first_tile, b.tile_count, b.rows, operand.scale_rows};
  }

  void gate_up(const Task& task) {
    const Block& b = plan_.blocks[static_cast<size_t>(task.block)];
    BlockSync& sync = sync_[task.block];
    wait_until(sync.packed, 1);
    const Operand a = a_of(task.block);
    const RowBlock x = block_rows(b, plan_.tiles, x_of(task.block));
    const int64_t inter = p_.intermediate, groups = inter / kGroup, up_panel = inter / kPanelRows;
    alignas(64) float acc[kMaxBlockRows * kAccColumns];
    for (int64_t unit = task.begin; unit < task.end; ++unit) {
      const int64_t next = std::min(unit + 1, gate_up_units_of(inter) - 1);
      path_.multiply(panels(gate_up_, p_.gate_up, p_.gate_up_scale, b.expert, 4,
                            {2 * unit, up_panel + 2 * unit}, {2 * next, up_panel + 2 * next}),
                     x, p_.hidden / kGroup, acc);
      const float* bias = nullptr;
      if (p_.gate_up_bias != nullptr) bias = p_.gate_up_bias + b.expert * 2 * inter + unit * 32;
      for (int32_t r = 0; r < b.rows; ++r) {
        const float* row = acc + r * kAccColumns;
        path_.activate(row, row + 32, bias, bias == nullptr ? nullptr : bias + inter, p_.activation,
                       routing_weight(slot_of(b, r)), a.codes + r * inter + unit * 32,
                       a.scales + r * groups + unit);
      }
    }
    const int32_t units = task.end - task.begin;
    if (sync.gate_up_done.fetch_add(units, std::memory_order_acq_rel) + units ==
        gate_up_units_of(inter)) {
      const uint8_t* codes[kMaxBlockRows];
      for (int32_t r = 0; r < b.rows; ++r) {
        codes[r] = a.codes + r * inter;
        a.scale_rows[r] = a.scales + r * groups;
      }
      fill(b, a_tiles_, codes, a, inter);
      sync.ready.store(1, std::memory_order_release);
    }
  }

  void down(const Task& task) {
    const Block& b = plan_.blocks[static_cast<size_t>(task.block)];
    BlockSync& sync = sync_[task.block];
    wait_until(sync.ready, 1);
    const RowBlock a = block_rows(b, a_tiles_, a_of(task.block));
    alignas(64) float acc[kMaxBlockRows * kAccColumns];
    for (int64_t unit = task.begin; unit < task.end; ++unit) {
      const int64_t column = unit * 64, panel = column / kPanelRows;
      const int32_t count = column + 64 <= p_.hidden ? 4 : 2;
      const int64_t next = std::min(panel + 4, down_.panels() - count);
      path_.multiply(panels(down_, p_.down, p_.down_scale, b.expert, count, {panel, panel + 2},
                            {next, next + 2}),
                     a, p_.intermediate / kGroup, acc);
      const float* bias =
          p_.down_bias == nullptr ? nullptr : p_.down_bias + b.expert * p_.hidden + column;
      for (int32_t r = 0; r < b.rows; ++r) {
        const int64_t slot = slot_of(b, r);
        for (int half = 0; half < count * 16; half += 32) {
          path_.finish(acc + r * kAccColumns + half, bias == nullptr ? nullptr : bias + half,
                       routing_weight(slot), row_of(slot) + column + half);
        }
      }
    }
    sync.down_done.fetch_add(task.end - task.begin, std::memory_order_acq_rel);
  }

  void combine(const Task& task) {
    wait_for_rows();
    for (int64_t t = task.begin; t < task.end; ++t) {
      const uint16_t* rows[kMaxTopK];
      int32_t count = 0;
      for (int64_t slot = t * p_.topk; slot < (t + 1) * p_.topk; ++slot) {
        if (valid(*ids(slot))) rows[count++] = row_of(slot);
      }
      path_.combine(rows, count, p_.hidden, p_.y + (first_ + t) * p_.hidden);
    }
  }

  void clear_skipped(const Task& task) {
    for (int64_t slot = task.begin * p_.topk; slot < task.end * p_.topk; ++slot) {
      if (!valid(*ids(slot))) memset(row_of(slot), 0, static_cast<size_t>(p_.hidden) * 2);
    }
  }

  bool valid(int32_t id) const { return id >= 0 && id < p_.experts; }

  void wait_for_rows() const {
    for (size_t b = 0; b < plan_.blocks.size(); ++b) {
      wait_until(sync_[b].down_done, static_cast<int32_t>(down_units_of(p_.hidden)));
    }
  }

  const Problem& p_;
  const Path& path_;
  const int64_t first_, tokens_;
  Plan& plan_;
  const std::vector<int32_t>& order_;
  const WeightShape gate_up_, down_;
  int64_t threads_ = 1;
  std::vector<Tile> a_tiles_;
  BlockSync* sync_ = nullptr;
  int64_t x_bytes_ = 0, a_bytes_ = 0;
  uint8_t* ring_ = nullptr;
  uint16_t* rows_ = nullptr;
};

}  // namespace

void run(const Problem& problem, const Path& path, Executor& executor, Scratch& scratch) {
  const int64_t row_bytes = problem.topk * problem.hidden * 2;
  const int64_t most =
      std::max<int64_t>(1, std::min(kChunkBytes / row_bytes, kChunkSlots / problem.topk));
  for (int64_t first = 0; first < problem.tokens; first += most) {
    const int64_t tokens = std::min(most, problem.tokens - first);
    Chunk(problem, path, first, tokens, executor, scratch).run(executor);
  }
}

}  // namespace megamoe::cpu
