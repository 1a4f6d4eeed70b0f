// What every role knows: the parameters, who it is, the call's number, where things lie; and the
// walk over the CTA's tasks that all roles share. Leaves waiting to waits.cuh.
#pragma once

#include "barriers.h"
#include "lists.h"
#include "params.h"
#include "ptx.cuh"
#include "schedule.h"

namespace megamoe::sm100 {

struct Context {
  const Params& p;
  uint8_t* self;  // this rank's workspace
  uint32_t epoch;
  uint32_t shared;  // the map's start, a shared-window address of this CTA
  uint32_t cta, ctas, pair_rank;
  uint32_t warp, lane;

  __device__ uint32_t word(uint32_t offset) const { return shared + offset; }
  __device__ uint32_t leaders(uint32_t offset) const { return ptx::map_to_rank(word(offset), 0); }
  __device__ uint32_t parity() const { return epoch & 1; }
  __device__ bool leader() const { return pair_rank == 0; }
  template <class T>
  __device__ T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(self + offset);
  }
  template <class T>
  __device__ T* peer(uint32_t rank, uint64_t offset) const {
    return reinterpret_cast<T*>(p.workspace[rank] + offset);
  }
  __device__ uint32_t* tile_count(uint32_t unit) const {
    return at<uint32_t>(p.layout.tile_count) + parity() * p.layout.max_units + unit;
  }
  __device__ uint32_t* unit_read(uint32_t unit) const {
    return at<uint32_t>(p.layout.unit_read) + parity() * p.layout.max_units + unit;
  }
  __device__ uint32_t padded_hidden() const { return round_up(p.hidden, 128); }
  __device__ uint32_t padded_intermediate() const { return round_up(p.intermediate, 128); }
};

// The tasks of this CTA's pair, in order. Only after the schedule's barrier.
template <uint32_t N>
class Tasks {
  using Shared = SharedMap<N>;

 public:
  __device__ explicit Tasks(const Context& c)
      : c_(c),
        schedule_({ptx::load_shared(c.word(kUnits)), c.p.lag, l1_tiles(c.p.intermediate),
                   l2_tiles(c.p.hidden)},
                  c.ctas / 2, c.p.ring_units, c.padded_hidden() / kBlockK,
                  c.padded_intermediate() / kBlockK),
        position_(schedule_.first(c.cta / 2)) {}

  // False at the end; else `task` and `unit` are the next ones.
  __device__ bool next() {
    if (position_ >= schedule_.stream().tasks()) return false;
    task = schedule_.stream().at(position_);
    position_ = schedule_.after(position_, c_.cta / 2);
    const uint32_t table = c_.shared + Shared::kExperts;
    const auto count = [table](uint32_t x) { return ptx::load_shared(table + 8 * x); };
    unit = (task.second ? second_ : first_).find(task.unit, N, count);
    return true;
  }

  // The list of the task's rows.
  __device__ const uint32_t* entries() const {
    const uint32_t base = ptx::load_shared(c_.shared + Shared::kExperts + 8 * unit.expert + 4);
    return c_.at<const uint32_t>(c_.p.layout.lists) + base + unit.begin;
  }
  __device__ uint32_t ring_row() const { return task.unit % c_.p.ring_units * N; }
  // Blocks of 128 along k.
  __device__ uint32_t blocks() const {
    return (task.second ? c_.padded_intermediate() : c_.padded_hidden()) / kBlockK;
  }
  __device__ uint32_t first_tiles() const { return schedule_.stream().m1; }
  __device__ uint32_t second_tiles() const { return schedule_.stream().m2; }

  Task task;
  Unit unit;

 private:
  const Context& c_;
  Schedule schedule_;
  uint32_t position_;
  UnitCursor first_, second_;
};

// Where a role stands in the ring of load stages.
struct StageCursor {
  uint32_t stage = 0, phase = 0;
  template <uint32_t N>
  __device__ uint32_t base(const Context& c) const {
    return c.shared + SharedMap<N>::kStages + stage * SharedMap<N>::kStageBytes;
  }
  __device__ void advance(uint32_t stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace megamoe::sm100
