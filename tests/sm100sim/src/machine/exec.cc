// The services of exec.h: special registers, agreement of lanes, poison decisions, warp-wide
// gathering, waiting and waking.

#include "machine/exec.h"

#include <algorithm>

#include "machine/link.h"

namespace sm100sim {

const char* wait_name(WaitKind kind) {
  static const char* const kNames[] = {
      "nothing",       "bar/barrier", "barrier.cluster", "mbarrier",  "other lanes of its warp",
      "tcgen05.alloc", "bulk group",  "tcgen05.wait",    "nanosleep", "griddepcontrol.wait",
      "setmaxnreg",    "poll"};
  return kNames[static_cast<int>(kind)];
}

const char* class_name(Class c) {
  static const char* const kNames[] = {
      "integer", "float",  "convert",       "move",        "control", "warp",
      "shared",  "global", "local",         "atomic",      "barrier", "mbarrier",
      "fence",   "bulk",   "tensor_memory", "tensor_core", "other"};
  return kNames[static_cast<int>(c)];
}

const Reg& Exec::special(int index) const {
  Reg& r = warp.specials[static_cast<size_t>(index)];
  if (index >= kFirstDynamicSpecial) {
    // 1 ns and 2 clocks per warp instruction: monotone, nothing more.
    const uint64_t ns = world.time_ns, clock = 2 * world.time_ns + warp.steps % 2;
    uint64_t v = 0;
    switch (static_cast<Special>(index)) {
      case Special::kClock:
        v = clock & 0xffffffff;
        break;
      case Special::kClock64:
        v = clock;
        break;
      case Special::kClockHi:
        v = clock >> 32;
        break;
      case Special::kGlobaltimer:
        v = ns;
        break;
      case Special::kGlobaltimerLo:
        v = ns & 0xffffffff;
        break;
      default:
        v = ns >> 32;
        break;
    }
    world.polled = true;  // reading a clock in a loop is waiting
    for (uint64_t& lane : r.v) lane = v;
  }
  return r;
}

void Exec::poisoned_predicate(uint32_t lanes) const {
  throw Fault("poison", "a predicate that decides something comes from undefined data",
              first_lane(lanes));
}

void Exec::check_poison(const Reg& r, const char* what, int bytes) const {
  const uint8_t relevant = static_cast<uint8_t>(bytes >= 8 ? 0xff : (1u << bytes) - 1);
  for_lanes(r.pl & mask, [&](int lane) {
    if (r.p[lane] & relevant)
      throw Fault("poison", std::string(what) + " comes from undefined data", lane);
  });
}

uint64_t Exec::uniform(const Ref& ref, const char* what, int bytes) const {
  const Reg& r = src(ref);
  need(r, what, bytes);
  const uint64_t keep = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
  const int first = first_lane(mask);
  const uint64_t v = r.v[first] & keep;
  for_lanes(mask, [&](int lane) {
    if ((r.v[lane] & keep) != v) {
      throw Fault("divergent-operand",
                  format("%s must be the same in all lanes: lane %d has 0x%llx, lane %d has 0x%llx",
                         what, first, static_cast<unsigned long long>(v), lane,
                         static_cast<unsigned long long>(r.v[lane] & keep)),
                  lane);
    }
  });
  return v;
}

uint64_t Exec::scalar(const Ref& ref, const char* what, int bytes) const {
  const Reg& r = src(ref);
  need(r, what, bytes);
  const uint64_t keep = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
  return r.v[first_lane(mask)] & keep;
}

void Exec::require_aligned() const {
  if (mask != warp.live) {
    throw Fault("divergent-aligned",
                format("an .aligned instruction is executed by lanes 0x%08x while lanes 0x%08x of "
                       "the warp live: all of them must execute it together",
                       mask, warp.live),
                first_lane(mask));
  }
}

Flow Exec::wait(WaitKind kind, Cta* whose, uint64_t key, uint64_t generation) const {
  frag->wait.kind = kind;
  frag->wait.cta = whose;
  frag->wait.key = key;
  frag->wait.generation = generation;
  return Flow::kWait;
}

bool Exec::gather(uint32_t members, bool any_place) {
  members &= warp.live | mask;
  if ((members & ~mask) == 0) return true;
  Gather* g = nullptr;
  for (auto& candidate : warp.gathers) {
    if ((any_place ? candidate->instr == nullptr : candidate->instr == instr) &&
        (candidate->members & members))
      g = candidate.get();
  }
  if (g == nullptr) {
    warp.gathers.push_back(std::make_unique<Gather>());
    g = warp.gathers.back().get();
    g->instr = any_place ? nullptr : instr;
  }
  g->members |= members;
  g->arrived |= mask;
  if (std::find(g->fragments.begin(), g->fragments.end(), frag) == g->fragments.end())
    g->fragments.push_back(frag);
  if ((g->members & warp.live & ~g->arrived) != 0) {
    wait(WaitKind::kCollective, &cta, g->members, g->arrived);
    return false;
  }
  mask = g->arrived;
  for (Fragment* other : g->fragments) {
    if (other == frag) continue;
    ++other->pc;
    clear_wait(world, warp, *other);
  }
  warp.gathers.erase(std::find_if(warp.gathers.begin(), warp.gathers.end(),
                                  [&](const auto& p) { return p.get() == g; }));
  return true;
}

void Exec::warn(const char* rule, const std::string& message, int lane, uint64_t address) const {
  if (options().rules == Rules::kStrict) {
    Fault fault("strict", message + " [rule " + rule + "]", lane, address);
    throw fault;
  }
  for (const Report& r : grid.reports) {
    if (r.warning && r.rule == rule && instr != nullptr &&
        r.ptx_line == program->source->body[static_cast<size_t>(instr->statement)].where.ptx)
      return;
  }
  Report r;
  r.kind = "rule";
  r.rule = rule;
  r.warning = true;
  r.message = message;
  r.kernel = grid.program->name;
  r.device = grid.device;
  r.cta = static_cast<int>(cta.linear);
  r.warp = warp.index;
  r.lane = lane;
  r.address = address;
  if (instr != nullptr && instr->statement >= 0) {
    const Statement& s = program->source->body[static_cast<size_t>(instr->statement)];
    r.ptx_line = s.where.ptx;
    r.ptx_text = s.text;
    r.source = program->module->place(*program, instr->statement);
  }
  grid.reports.push_back(std::move(r));
}

void event(World& world) {
  world.last_event = world.step;
  world.idle_rounds = 0;
  world.consecutive_polls = 0;
}

namespace {
template <class Match>
void wake_in(Cta& cta, Match&& match) {
  for (auto& warp : cta.warps) {
    for (auto& f : warp->fragments) {
      if (f->wait.kind != WaitKind::kNone && match(f->wait))
        clear_wait(*cta.grid->world, *warp, *f);
    }
  }
}
}  // namespace

void wake_barrier(Cta& cta, uint64_t id) {
  event(*cta.grid->world);
  wake_in(cta, [&](const Wait& w) { return w.kind == WaitKind::kBarrier && w.key == id; });
}

void wake_mbarrier(World& world, Cta& cta, uint32_t offset) {
  event(world);
  wake_in(cta, [&](const Wait& w) { return w.kind == WaitKind::kMbarrier && w.key == offset; });
}

void wake_cluster(Cluster& cluster) {
  event(*cluster.grid->world);
  for (auto& cta : cluster.ctas)
    wake_in(*cta, [](const Wait& w) { return w.kind == WaitKind::kCluster; });
}

void wake_cta_kind(Cta& cta, WaitKind kind) {
  wake_in(cta, [&](const Wait& w) { return w.kind == kind; });
}

void wake_kind(World& world, WaitKind kind) {
  for (auto& grid : world.grids) {
    for (auto& cluster : grid->running) {
      for (auto& cta : cluster->ctas) wake_cta_kind(*cta, kind);
    }
  }
}

}  // namespace sm100sim
