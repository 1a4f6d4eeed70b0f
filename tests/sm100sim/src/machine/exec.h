// What a handler sees: the executing fragment with its registers, and the services it may call.
// Handlers work on all active lanes at once; `mask` is what remains after the guard. A handler that
// must wait sets the fragment's wait and returns Flow::kWait.
#pragma once

#include <string>

#include "machine/machine.h"

namespace sm100sim {

struct ModuleImage;

struct Exec {
  World& world;
  Grid& grid;
  Cta& cta;
  Warp& warp;
  Fragment* frag;
  Frame* frame;
  Reg* regs;
  Pred* preds;
  const Program* program;
  const Instr* instr = nullptr;
  uint32_t mask = 0;

  const Reg& src(const Ref& r) const {
    if (r.kind == Ref::kReg) [[likely]]
      return regs[r.index];
    if (r.kind == Ref::kConst) return program->constants[static_cast<size_t>(r.index)];
    return special(r.index);
  }
  Reg& dst(const Ref& r) const { return regs[r.index]; }
  const Reg& special(int index) const;

  /// A predicate operand as a lane mask; poison among `lanes` is an error when `decides`.
  uint32_t pred(const Ref& r, uint32_t lanes, bool decides) const {
    if (r.kind == Ref::kConst) return r.index ? lanes : 0;
    const Pred& p = preds[r.index];
    if (decides && (p.p & lanes)) poisoned_predicate(p.p & lanes);
    return (r.negated ? ~p.v : p.v) & lanes;
  }
  uint32_t pred_poison(const Ref& r) const { return r.kind == Ref::kPred ? preds[r.index].p : 0; }
  void set_pred(const Ref& r, uint32_t lanes, uint32_t value, uint32_t poison) const {
    if (r.kind != Ref::kPred) return;
    Pred& p = preds[r.index];
    p.v = (p.v & ~lanes) | (value & lanes);
    p.p = (p.p & ~lanes) | (poison & lanes);
  }

  /// Poison in the low `bytes` of an operand that decides something (`what`: "an address", ...) is
  /// an error.
  void need(const Reg& r, const char* what, int bytes = 8) const {
    if (r.pl & mask) check_poison(r, what, bytes);
  }
  /// The value that all active lanes must agree on.
  uint64_t uniform(const Ref& r, const char* what, int bytes = 4) const;
  /// The value of the first active lane, poison checked.
  uint64_t scalar(const Ref& r, const char* what, int bytes = 4) const;

  const Options& options() const { return grid.options; }
  /// True when all live lanes of the warp are here; otherwise an error: `.aligned` demands it.
  void require_aligned() const;
  /// Collects `members` at this statement. False: wait. On true `mask` holds all gathered lanes.
  bool gather(uint32_t members, bool any_place);
  void warn(const char* rule, const std::string& message, int lane = -1,
            uint64_t address = 0) const;
  Flow wait(WaitKind kind, Cta* whose = nullptr, uint64_t key = 0, uint64_t generation = 0) const;
  /// A polling statement (its value may never change while nothing else happens): the scheduler's
  /// measure of idleness.
  void polled() const { world.polled = true; }
  int thread_of(int lane) const { return warp.index * kLanes + lane; }

 private:
  [[noreturn]] void poisoned_predicate(uint32_t lanes) const;
  void check_poison(const Reg& r, const char* what, int bytes) const;
};

/// Something that others may be waiting for has happened: idleness and deadlock counters start
/// anew.
void event(World& world);

void add_task(World& world, const TaskRef& task);

// Waking is by kind and place; woken statements run again and look for themselves.
void wake_barrier(Cta& cta, uint64_t id);
void wake_mbarrier(World& world, Cta& cta, uint32_t offset);
void wake_cluster(Cluster& cluster);
void wake_kind(World& world, WaitKind kind);
void wake_cta_kind(Cta& cta, WaitKind kind);

// Fragments (machine/fragment.cc).
void branch(Exec& e, uint32_t taken, int target, int reconverge);
void exit_lanes(Exec& e, uint32_t lanes);
void arrive_at_join(Exec& e);
bool release_joins(Warp& warp);
Fragment* spawn(Warp& warp, uint32_t mask, int pc, std::shared_ptr<Frame> frame,
                std::shared_ptr<Join> join);
void make_ready(Warp& warp);
void clear_wait(World& world, Warp& warp, Fragment& frag);

// Calls.
std::shared_ptr<Frame> make_frame(const Program* program, std::shared_ptr<Frame> caller,
                                  uint32_t local_base);

// The lane's register bytes of local memory start here.
inline uint64_t local_address(const Exec& e, uint64_t offset) {
  return e.frame->local_base + offset;
}

}  // namespace sm100sim
