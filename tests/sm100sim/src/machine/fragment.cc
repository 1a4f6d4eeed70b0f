// Divergence and reconvergence. A divergent branch notes a Join at its immediate postdominator; the
// pieces stop there until all lanes of the join that still live have come. Lanes that wait at a
// join are released on their own when nothing else in the machine can move (independent thread
// scheduling promises progress, not convergence).

#include <algorithm>

#include "machine/exec.h"

namespace sm100sim {
namespace {

void set_join(Fragment& f, std::shared_ptr<Join> join) {
  f.join = std::move(join);
  f.join_pc = f.join && f.join->frame == f.frame ? f.join->pc : -1;
}

void forget(Warp& warp, const std::shared_ptr<Join>& join) {
  warp.joins.erase(std::remove(warp.joins.begin(), warp.joins.end(), join), warp.joins.end());
}

void remove_fragment(Warp& warp, Fragment* f) {
  for (size_t i = 0; i < warp.fragments.size(); ++i) {
    if (warp.fragments[i].get() == f) {
      warp.fragments.erase(warp.fragments.begin() + static_cast<long>(i));
      return;
    }
  }
}

}  // namespace

std::shared_ptr<Frame> make_frame(const Program* program, std::shared_ptr<Frame> caller,
                                  uint32_t local_base) {
  auto frame = std::make_shared<Frame>();
  frame->program = program;
  const size_t n = static_cast<size_t>(std::max(1, program->reg_count));
  frame->regs.reset(new Reg[n]);
  for (size_t i = 0; i < n; ++i) {
    frame->regs[i].pl = kAllLanes;  // nothing is defined yet
    for (int lane = 0; lane < kLanes; ++lane) {
      frame->regs[i].v[lane] = 0xDEADBEEFCAFEF00Dull;
      frame->regs[i].p[lane] = 0xff;
    }
  }
  frame->preds = std::make_unique<Pred[]>(static_cast<size_t>(std::max(1, program->pred_count)));
  frame->caller = std::move(caller);
  frame->local_base = local_base;
  return frame;
}

void make_ready(Warp& warp) {
  World& world = *warp.cta->grid->world;
  if (warp.ready_index >= 0) return;
  warp.ready_index = static_cast<int>(world.ready.size());
  world.ready.push_back(&warp);
}

void clear_wait(World& world, Warp& warp, Fragment& f) {
  if (f.wait.until != 0) --world.sleepers;
  f.wait = {};
  make_ready(warp);
}

Fragment* spawn(Warp& warp, uint32_t mask, int pc, std::shared_ptr<Frame> frame,
                std::shared_ptr<Join> join) {
  auto f = std::make_unique<Fragment>();
  f->mask = mask;
  f->pc = pc;
  f->frame = std::move(frame);
  set_join(*f, std::move(join));
  warp.fragments.push_back(std::move(f));
  make_ready(warp);
  return warp.fragments.back().get();
}

void branch(Exec& e, uint32_t taken, int target, int reconverge) {
  Fragment& f = *e.frag;
  if (taken == f.mask) {
    f.pc = target;
    return;
  }
  if (taken == 0) {
    ++f.pc;
    return;
  }
  std::shared_ptr<Join> join = f.join;
  if (!(join && join->pc == reconverge && join->frame == f.frame)) {
    join = std::make_shared<Join>();
    join->pc = reconverge;
    join->frame = f.frame;
    join->expected = f.mask;
    join->parent = f.join;
  }
  spawn(e.warp, taken, target, f.frame, join);
  f.mask &= ~taken;
  ++f.pc;
  set_join(f, join);
}

void arrive_at_join(Exec& e) {
  Fragment& f = *e.frag;
  while (f.join && f.pc == f.join_pc) {
    std::shared_ptr<Join> join = f.join;
    join->arrived |= f.mask;
    if (join->arrived != join->expected) {
      if (std::find(e.warp.joins.begin(), e.warp.joins.end(), join) == e.warp.joins.end()) {
        join->since = e.warp.steps;
        e.warp.joins.push_back(join);
      }
      remove_fragment(e.warp, e.frag);
      e.frag = nullptr;
      return;
    }
    f.mask = join->expected;
    forget(e.warp, join);
    set_join(f, join->parent);
  }
}

void exit_lanes(Exec& e, uint32_t lanes) {
  Fragment& f = *e.frag;
  Warp& warp = e.warp;
  f.mask &= ~lanes;
  warp.live &= ~lanes;
  const uint32_t count = static_cast<uint32_t>(__builtin_popcount(lanes));
  warp.cta->live_threads -= count;
  warp.cta->cluster->live_threads -= count;
  for (std::shared_ptr<Join> j = f.join; j; j = j->parent) {
    j->expected &= ~lanes;
    if (j->arrived != 0 && j->arrived == j->expected) {
      forget(warp, j);
      spawn(warp, j->expected, j->pc, j->frame, j->parent);
      j->arrived = 0;
    }
  }
  if (f.mask == 0) {
    remove_fragment(warp, e.frag);
    e.frag = nullptr;
  }
  for (auto& other : warp.fragments) {
    if (other->wait.kind == WaitKind::kCollective) clear_wait(e.world, warp, *other);
  }
}

bool release_joins(Warp& warp) {
  bool any = false;
  const auto joins = warp.joins;
  warp.joins.clear();
  for (const auto& j : joins) {
    if (j->arrived == 0) continue;
    const uint32_t lanes = j->arrived;
    j->arrived = 0;
    j->expected &= ~lanes;
    spawn(warp, lanes, j->pc, j->frame, j->parent);
    any = true;
  }
  return any;
}

}  // namespace sm100sim
