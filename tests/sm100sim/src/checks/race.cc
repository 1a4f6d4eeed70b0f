// See race.h. Granules of 4 bytes with a byte mask; per granule the last write and the last reads
// of up to kReaders agents (older reads of the same agent are replaced; when the list is full the
// oldest goes, which can only miss a race, never invent one).

#include "checks/race.h"

#include <algorithm>
#include <array>
#include <deque>
#include <unordered_map>

#include "instructions/order.h"
#include "machine/exec.h"
#include "machine/link.h"
#include "memory/access.h"

namespace sm100sim {

namespace {

constexpr size_t kReaders = 6;

struct Access {
  uint32_t agent = 0, time = 0;  // time 0: none
  uint8_t bytes = 0;
  bool strong = false;
  int32_t line = 0;
};
struct Granule {
  Access write;
  std::array<Access, kReaders> reads{};
};
/// What release operations on a location have published, and with which scope.
struct Location {
  Clock clock;
  uint8_t scope = 0;
  int device = 0;
  const Cluster* cluster = nullptr;
  const Cta* cta = nullptr;
};

}  // namespace

struct RaceState {
  std::vector<Clock> clocks;  // per agent
  std::vector<Clock> fenced;  // per agent: its clock at its last release fence
  std::vector<uint8_t> fence_scope;
  std::vector<Clock>
      pending;  // per agent: what relaxed reads saw published, taken over by an acquire fence
  std::unordered_map<const Block*, std::unordered_map<uint64_t, Granule>> shadow;
  std::unordered_map<const Block*, std::unordered_map<uint64_t, Location>> locations;
  std::deque<int>
      free_agents;  // oldest first: a recycled agent hides its former accesses from nobody recent
  Clock base;       // what every new agent knows: grids that have ended

  int fresh() {
    if (!free_agents.empty()) {
      const int a = free_agents.front();
      free_agents.pop_front();
      fenced[static_cast<size_t>(a)].clear();
      pending[static_cast<size_t>(a)].clear();
      return a;
    }
    clocks.emplace_back();
    fenced.emplace_back();
    fence_scope.push_back(0);
    pending.emplace_back();
    return static_cast<int>(clocks.size()) - 1;
  }
};

namespace {

void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t k = 0; k < from.size(); ++k) into[k] = std::max(into[k], from[k]);
}
uint32_t at(const Clock& c, size_t k) { return k < c.size() ? c[k] : 0; }
void tick(Clock& c, size_t k) {
  if (c.size() <= k) c.resize(k + 1);
  ++c[k];
}

int32_t line_of(const Exec& e) {
  return e.instr != nullptr && e.instr->statement >= 0
             ? e.program->source->body[static_cast<size_t>(e.instr->statement)].where.ptx
             : 0;
}

void check(const Access& other, const Clock& mine, uint32_t me, uint8_t bytes, bool strong,
           const char* what, int lane, uint64_t address) {
  if (other.time == 0 || other.agent == me || !(other.bytes & bytes)) return;
  if (other.time <= at(mine, other.agent)) return;
  if (strong && other.strong) return;
  throw Fault("race",
              format("%s that is not ordered after the conflicting access of PTX line %d by "
                     "another warp or asynchronous operation",
                     what, other.line),
              lane, address);
}

void record(RaceState& r, const Clock& mine, uint32_t me, const Block* block, uint64_t offset,
            uint64_t bytes, bool write, bool strong, int32_t line, int lane) {
  auto& map = r.shadow[block];
  const uint64_t end = offset + bytes;
  for (uint64_t w = offset / 4; w * 4 < end; ++w) {
    uint8_t touched = 0;
    for (uint64_t k = 0; k < 4; ++k) {
      if (w * 4 + k >= offset && w * 4 + k < end) touched = static_cast<uint8_t>(touched | 1 << k);
    }
    Granule& g = map[w];
    const uint64_t address = block->base + w * 4;
    check(g.write, mine, me, touched, strong, write ? "a write" : "a read", lane, address);
    const Access now{me, at(mine, me), touched, strong, line};
    if (write) {
      for (const Access& read : g.reads)
        check(read, mine, me, touched, strong, "a write", lane, address);
      g.write = now;
      g.reads.fill({});
      continue;
    }
    Access* slot = nullptr;
    for (Access& read : g.reads) {
      if (read.time != 0 && read.agent == me) slot = &read;
    }
    for (Access& read : g.reads) {
      if (slot == nullptr && (read.time == 0 || read.time <= at(mine, read.agent))) slot = &read;
    }
    if (slot == nullptr) slot = &g.reads[w % kReaders];
    *slot = now;
  }
}

bool reaches(const Exec& e, const Location& l, uint8_t my_scope) {
  const uint8_t both = std::min(my_scope, l.scope);
  switch (both) {
    case kScopeCta:
      return l.cta == &e.cta;
    case kScopeCluster:
      return l.cluster == e.cta.cluster;
    case kScopeGpu:
      return l.device == e.grid.device;
    case kScopeSys:
      return true;
    default:
      return false;
  }
}

}  // namespace

void race_warp_start(World& world, Warp& warp) {
  if (!world.races) return;
  RaceState& r = *world.races;
  warp.agent = r.fresh();
  Clock& c = r.clocks[static_cast<size_t>(warp.agent)];
  join(c, r.base);
  tick(c, static_cast<size_t>(warp.agent));
  warp.cta->grid->agents.push_back(warp.agent);
}
void race_enable(World& world) {
  if (!world.races) world.races = std::make_shared<RaceState>();
}
void race_forget(World& world, const Block* block) {
  if (!world.races) return;
  world.races->shadow.erase(block);
  world.races->locations.erase(block);
}

void race_access(Exec& e, const Place& p, uint32_t bytes, int lane, RaceKind kind, uint8_t order,
                 uint8_t scope) {
  RaceState& r = *e.world.races;
  if (p.block == e.cta.local.get() || p.block == e.grid.param_block.get()) return;
  const size_t me = static_cast<size_t>(e.warp.agent);
  Clock& mine = r.clocks[me];
  const bool strong = kind == RaceKind::kStrongRead || kind == RaceKind::kStrongWrite;
  const bool write = kind == RaceKind::kWrite || kind == RaceKind::kStrongWrite;
  const bool atomic = e.instr->cls == Class::kAtomic;
  if (strong && (!write || atomic)) {
    const auto block = r.locations.find(p.block);
    if (block != r.locations.end()) {
      const auto l = block->second.find(p.offset / 4);
      if (l != block->second.end() &&
          reaches(e, l->second, scope == kScopeNone ? static_cast<uint8_t>(kScopeSys) : scope)) {
        if (order == kAcquire || order == kAcqRel)
          join(mine, l->second.clock);
        else
          join(r.pending[me], l->second.clock);
      }
    }
  }
  record(r, mine, static_cast<uint32_t>(me), p.block, p.offset, bytes, write, strong, line_of(e),
         lane);
  if (strong && write) {
    const bool releases = order == kRelease || order == kAcqRel;
    const Clock* published = releases ? &mine : &r.fenced[me];
    if (!published->empty()) {
      Location& l = r.locations[p.block][p.offset / 4];
      if (!atomic) l.clock.clear();  // a plain store ends the release sequence; an RMW continues it
      join(l.clock, *published);
      l.scope = releases ? (scope == kScopeNone ? static_cast<uint8_t>(kScopeGpu) : scope)
                         : std::min(r.fence_scope[me],
                                    scope == kScopeNone ? static_cast<uint8_t>(kScopeSys) : scope);
      l.device = e.grid.device;
      l.cluster = e.cta.cluster;
      l.cta = &e.cta;
    } else if (!atomic) {
      const auto block = r.locations.find(p.block);
      if (block != r.locations.end()) block->second.erase(p.offset / 4);
    }
    tick(mine, me);
  }
}

void race_release_prepare(Exec&, uint8_t) {}
void race_warp_sync(Exec&, uint32_t) {}

void race_fence(Exec& e, uint8_t order, uint8_t scope) {
  if (!e.world.races) return;
  RaceState& r = *e.world.races;
  const size_t me = static_cast<size_t>(e.warp.agent);
  if (order != kRelease) {
    join(r.clocks[me], r.pending[me]);
    r.pending[me].clear();
  }
  if (order != kAcquire) {
    r.fenced[me] = r.clocks[me];
    r.fence_scope[me] = scope;
    tick(r.clocks[me], me);
  }
}

void race_barrier_arrive(Exec& e, Clock& released, Clock&) {
  if (!e.world.races) return;
  const size_t me = static_cast<size_t>(e.warp.agent);
  join(released, e.world.races->clocks[me]);
  tick(e.world.races->clocks[me], me);
}
void race_release_into(Exec& e, Clock& released, Clock& proxied) {
  race_barrier_arrive(e, released, proxied);
}

void race_barrier_complete(World& world, Clock& released, Clock& completed, Clock&, Clock&) {
  if (!world.races) return;
  completed = std::move(released);
  released = {};
}
void race_acquire(Exec& e, const Clock& completed, const Clock&) {
  if (!e.world.races) return;
  join(e.world.races->clocks[static_cast<size_t>(e.warp.agent)], completed);
}

void race_task_start(Exec& e, Task& task) {
  if (!e.world.races) return;
  RaceState& r = *e.world.races;
  task.agent = r.fresh();
  e.grid.agents.push_back(task.agent);
  const size_t agent = static_cast<size_t>(task.agent), me = static_cast<size_t>(e.warp.agent);
  task.clock = r.clocks[me];
  if (task.clock.size() <= agent) task.clock.resize(agent + 1);
  // A recycled agent goes on counting, so that old observers know nothing of the new task.
  tick(r.clocks[agent], agent);
  task.clock[agent] = at(r.clocks[agent], agent);
  tick(r.clocks[me], me);
}

void race_async(Exec& e, Task& task, const Place& p, uint64_t bytes, bool write, int lane,
                bool reduction) {
  RaceState& r = *e.world.races;
  const int agent = write && task.write_agent >= 0 ? task.write_agent : task.agent;
  record(r, task.clock, static_cast<uint32_t>(agent), p.block, p.offset, bytes, write, reduction,
         line_of(e), lane);
}
void race_task_release(World& world, const Task& task, Clock& released, Clock&, bool full) {
  if (!world.races || task.agent < 0) return;
  if (full) return join(released, task.clock);
  Clock own(static_cast<size_t>(task.agent) + 1);
  own[static_cast<size_t>(task.agent)] = at(task.clock, static_cast<size_t>(task.agent));
  join(released, own);
}
void race_task_end(World& world, const Task& task) {
  if (world.races && task.agent >= 0) {
    world.races->free_agents.push_back(task.agent);
    if (task.write_agent >= 0) world.races->free_agents.push_back(task.write_agent);
  }
}
void race_tensor_issue(Exec& e, int lane, int group, const Task& task) {
  if (e.world.races) join(e.warp.tensor_clock[{lane, group}], task.clock);
}
void race_commit(Exec& e, int lane, int group, Task& task) {
  if (e.world.races) join(task.clock, e.warp.tensor_clock[{lane, group}]);
}
void race_task_join(Exec& e, const Task& task, bool reads_only) {
  if (!e.world.races) return;
  Clock known = task.clock;
  if (reads_only && task.write_agent >= 0) known[static_cast<size_t>(task.write_agent)] = 0;
  join(e.world.races->clocks[static_cast<size_t>(e.warp.agent)], known);
}
void race_split(Exec& e, Task& task) {
  if (!e.world.races) return;
  RaceState& r = *e.world.races;
  task.write_agent = r.fresh();
  e.grid.agents.push_back(task.write_agent);
  const size_t agent = static_cast<size_t>(task.write_agent);
  if (task.clock.size() <= agent) task.clock.resize(agent + 1);
  tick(r.clocks[agent], agent);
  task.clock[agent] = at(r.clocks[agent], agent);
}

void race_grid_end(World& world, Grid& grid) {
  if (!world.races) return;
  RaceState& r = *world.races;
  for (int agent : grid.agents) {
    const size_t k = static_cast<size_t>(agent);
    join(r.base, r.clocks[k]);
  }
}

}  // namespace sm100sim
