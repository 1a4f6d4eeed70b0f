// See tmem_work.h.

#include "async/tmem_work.h"

#include <algorithm>
#include <cstring>

#include "memory/access.h"

namespace sm100sim {

Group group_of(const Exec& e, int cta_group, int lane) {
  Group g;
  if (cta_group == 1) {
    g.ctas[0] = &e.cta;
    return g;
  }
  const uint32_t even = e.cta.rank & ~1u;
  g.size = 2;
  g.ctas[0] = even == e.cta.rank ? &e.cta : &cta_of_rank(e, even, lane, 0);
  g.ctas[1] = (even | 1) == e.cta.rank ? &e.cta : &cta_of_rank(e, even | 1, lane, 0);
  return g;
}

uint16_t MachineShared::read(int cta, uint32_t address, void* out, int bytes) {
  Block& b = *group_.ctas[cta]->shared;
  if (group_.ctas[cta]->finished)
    throw Fault("exited-cta", "the tensor core reads shared memory of a CTA that has ended", -1,
                address);
  if (!b.contains(address, static_cast<uint64_t>(bytes))) {
    throw Fault("out-of-bounds",
                format("the tensor core reads shared memory at 0x%x, CTA %u has %llu bytes",
                       address, group_.ctas[cta]->linear, static_cast<unsigned long long>(b.size)),
                -1, address);
  }
  std::memcpy(out, b.data + address, static_cast<size_t>(bytes));
  uint16_t poison = 0;
  for (int k = 0; k < bytes; ++k) {
    const uint8_t bits = b.shadow[address + static_cast<uint32_t>(k)];
    if (bits & kInFlight)
      throw Fault(
          "in-flight",
          "the tensor core reads shared memory that an asynchronous operation is still writing", -1,
          address);
    poison = static_cast<uint16_t>(poison | (bits & kPoison) << k);
  }
  return poison;
}

tensorcore::Tmem& MachineTmem::memory(int cta, int lane, int column, int columns) const {
  Cta& c = *group_.ctas[cta];
  const int owner = tmem_owner(c);
  if (lane < 0 || lane >= tensorcore::kTmemLanes || column < 0 ||
      column + columns > tensorcore::kTmemColumns) {
    throw Fault("out-of-bounds", format("tensor memory lane %d, columns %d to %d", lane, column,
                                        column + columns - 1));
  }
  for (int k = 0; k < columns; ++k) {
    if (c.sm->tmem == nullptr || c.sm->tmem->owner(column + k) != owner)
      throw Fault("out-of-bounds", format("tensor memory column %d is not allocated to CTA %u",
                                          column + k, c.linear));
  }
  return *c.sm->tmem;
}

void MachineTmem::read(int cta, int lane, int column, int columns, uint32_t* words,
                       uint8_t* poison) {
  tensorcore::Tmem& m = memory(cta, lane, column, columns);
  std::copy_n(m.words(lane) + column, columns, words);
  std::copy_n(m.poison(lane) + column, columns, poison);
}
void MachineTmem::write(int cta, int lane, int column, int columns, const uint32_t* words,
                        const uint8_t* poison) {
  tensorcore::Tmem& m = memory(cta, lane, column, columns);
  std::copy_n(words, columns, m.words(lane) + column);
  std::copy_n(poison, columns, m.poison(lane) + column);
}

namespace {

bool overlap(const Sm::TmemWork& w, const tensorcore::TmemRect& r) {
  return w.lane < r.lane + r.lanes && r.lane < w.lane + w.lanes &&
         w.column < r.column + r.columns && r.column < w.column + w.columns;
}

[[noreturn]] void refuse(const Sm::TmemWork& w, const tensorcore::TmemRect& r, int lane) {
  const std::string what = w.task->what;
  const std::string place =
      format("tensor memory columns %d to %d", r.column, r.column + r.columns - 1);
  if (what == "tcgen05.ld")
    throw Fault("tmem-in-flight",
                place +
                    " are overwritten while a tcgen05.ld of them has not been waited for "
                    "(tcgen05.wait::ld)",
                lane);
  if (what == "tcgen05.st")
    throw Fault(
        "tmem-in-flight",
        place + " are used while a tcgen05.st to them has not been waited for (tcgen05.wait::st)",
        lane);
  throw Fault("tmem-in-flight",
              place + " are used while a " + what +
                  " on them is in flight: its commit has not been waited for",
              lane);
}

void check_fences(Exec& e, int lane, TmemActor actor, const Sm::TmemUse& use, int column) {
  if (use.event == 0 || use.warp == nullptr) return;
  const bool own = use.warp == &e.warp && (actor == TmemActor::kLoad ||
                                           actor == TmemActor::kStore || use.issuer_lane == lane);
  if (own) return;
  if (!use.committed && use.warp->before_fence[0] <= use.event) {
    e.warn("tcgen05-thread-fence",
           format("tensor memory column %d was accessed by warp %d, which executed no "
                  "tcgen05.fence::before_thread_sync since",
                  column, use.warp->index),
           lane);
    return;
  }
  if (e.warp.after_fence[static_cast<size_t>(lane)] <= use.event) {
    e.warn("tcgen05-thread-fence",
           format("tensor memory column %d was accessed by another thread, and no "
                  "tcgen05.fence::after_thread_sync stands between",
                  column),
           lane);
  }
}

}  // namespace

void enter_tmem(Exec& e, int lane, TmemActor actor, const Group& group,
                const std::vector<tensorcore::TmemRect>& rects, const TaskRef& task) {
  for (const tensorcore::TmemRect& r : rects) {
    Cta& cta = *group.ctas[r.cta];
    Sm& sm = *cta.sm;
    if (sm.tmem_uses.empty()) sm.tmem_uses.resize(4 * tensorcore::kTmemColumns);
    std::erase_if(sm.tmem_work, [](const Sm::TmemWork& w) { return w.task->done; });
    for (const Sm::TmemWork& w : sm.tmem_work) {
      if (!(w.write || r.write) || !overlap(w, r)) continue;
      if (w.task == task) continue;
      const std::string what = w.task->what;
      const bool tensor_core = what != "tcgen05.ld" && what != "tcgen05.st";
      const bool same_pipe = tensor_core &&
                             (actor == TmemActor::kMma || actor == TmemActor::kCopy) &&
                             w.warp == &e.warp && w.issuer_lane == lane;
      if (same_pipe) {
        if (actor == TmemActor::kCopy && what == "tcgen05.mma")
          e.warn("mma-cp-order",
                 "a tcgen05.cp overwrites tensor memory that an earlier tcgen05.mma of the thread "
                 "may still read; the text orders cp -> mma but not mma -> cp",
                 lane);
        continue;
      }
      refuse(w, r, lane);
    }
    for (int q = r.lane / 32; q <= (r.lane + r.lanes - 1) / 32; ++q) {
      for (int k = 0; k < r.columns && r.column + k < tensorcore::kTmemColumns; ++k) {
        const Sm::TmemUse& use = sm.tmem_uses[static_cast<size_t>(4 * (r.column + k) + q)];
        if (use.write || r.write) check_fences(e, lane, actor, use, r.column + k);
      }
    }
  }
  for (const tensorcore::TmemRect& r : rects) {
    group.ctas[r.cta]->sm->tmem_work.push_back(
        {task, &e.warp, lane, r.lane, r.lanes, r.column, r.columns, r.write});
  }
}

void leave_tmem(World& world, const Group& group, const std::vector<tensorcore::TmemRect>& rects,
                Warp* warp, int lane, const Task* task) {
  const std::string what = task->what;
  const bool committed = what != "tcgen05.ld" && what != "tcgen05.st";
  const uint32_t now = ++world.event;
  for (const tensorcore::TmemRect& r : rects) {
    for (int q = r.lane / 32; q <= (r.lane + r.lanes - 1) / 32; ++q) {
      for (int k = 0; k < r.columns && r.column + k < tensorcore::kTmemColumns; ++k) {
        group.ctas[r.cta]->sm->tmem_uses[static_cast<size_t>(4 * (r.column + k) + q)] = {
            warp->uid, now, lane, warp, committed, r.write};
      }
    }
  }
}

}  // namespace sm100sim
