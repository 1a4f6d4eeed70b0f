// The hostile scheduler. Each decision, drawn from the seed, either runs one fragment for a random
// number of statements, lets one asynchronous task happen, or starts a cluster. Policies differ in
// when tasks happen (options.h). A machine in which nothing but polling happens is idle: then time
// jumps, joins are released, and after a bounded number of such rounds a deadlock is reported.

#include <algorithm>
#include <chrono>

#include "checks/race.h"
#include "machine/engine.h"
#include "machine/exec.h"

namespace sm100sim {
namespace {

bool can_run(const Fragment& f) { return f.wait.kind == WaitKind::kNone; }

void unready(World& world, Warp& warp) {
  if (warp.ready_index < 0) return;
  Warp* last = world.ready.back();
  world.ready[static_cast<size_t>(warp.ready_index)] = last;
  last->ready_index = warp.ready_index;
  world.ready.pop_back();
  warp.ready_index = -1;
}

Report report_of(const Grid& grid, const Program* program, int statement, const Fault& fault) {
  Report r;
  r.kind = fault.kind;
  r.message = fault.what();
  r.kernel = grid.program->name;
  r.device = grid.device;
  r.lane = fault.lane;
  r.address = fault.address;
  if (statement >= 0 && program != nullptr &&
      statement < static_cast<int>(program->source->body.size())) {
    const Statement& s = program->source->body[static_cast<size_t>(statement)];
    r.ptx_line = s.where.ptx;
    r.ptx_text = s.text;
    r.source = program->module->place(*program, statement);
  }
  return r;
}

void run_warp(World& world, Warp& warp, int quantum) {
  Cta& cta = *warp.cta;
  Grid& grid = *cta.grid;
  size_t pick = warp.fragments.size() > 1 ? world.rng() % warp.fragments.size() : 0;
  size_t tried = 0;
  while (tried < warp.fragments.size() && !can_run(*warp.fragments[pick])) {
    pick = (pick + 1) % warp.fragments.size();
    ++tried;
  }
  if (tried == warp.fragments.size()) return unready(world, warp);
  Fragment* f = warp.fragments[pick].get();
  Exec e{world,
         grid,
         cta,
         warp,
         f,
         f->frame.get(),
         f->frame->regs.get(),
         f->frame->preds.get(),
         f->frame->program};
  const Instr* code = e.program->code.data();
  uint64_t threads = 0, warps = 0;
  world.polled = false;
  try {
    while (quantum-- > 0) {
      if (f->pc == f->join_pc) {
        arrive_at_join(e);
        if (e.frag == nullptr) break;
      }
      const Instr& i = code[f->pc];
      uint32_t mask = f->mask;
      if (i.guard >= 0) {
        const Pred& p = e.preds[i.guard];
        if (p.p & mask) {
          e.instr = &i;
          throw Fault("poison", "the guard of this instruction comes from undefined data",
                      first_lane(p.p & mask));
        }
        mask &= i.guard_negated ? ~p.v : p.v;
        if (mask == 0) {
          ++f->pc;
          continue;
        }
      }
      e.mask = mask;
      e.instr = &i;
      const Flow flow = i.fn(e, i);
      if (flow == Flow::kNext) {
        ++f->pc;
        threads += static_cast<unsigned>(__builtin_popcount(e.mask));
        ++warps;
        ++grid.stats.instructions[static_cast<int>(i.cls)];
        if (world.polled) break;
      } else if (flow == Flow::kJump) {
        threads += static_cast<unsigned>(__builtin_popcount(mask));
        ++warps;
        ++grid.stats.instructions[static_cast<int>(i.cls)];
        if (e.frag == nullptr) break;
        if (e.frame != f->frame.get()) {
          e.frame = f->frame.get();
          e.regs = e.frame->regs.get();
          e.preds = e.frame->preds.get();
          e.program = e.frame->program;
          code = e.program->code.data();
        }
      } else {
        if (f->wait.until != 0) ++world.sleepers;
        break;
      }
    }
  } catch (const Fault& fault) {
    Report r = report_of(grid, e.program, e.instr != nullptr ? e.instr->statement : -1, fault);
    r.cta = static_cast<int>(cta.linear);
    r.warp = warp.index;
    fail_grid(world, grid, std::move(r));
    return;
  }
  grid.stats.thread_instructions += threads;
  grid.stats.warp_instructions += warps;
  warp.steps += warps;
  world.step += warps;
  world.time_ns += warps;
  if (warp.live == 0) {
    unready(world, warp);
    finish_threads(world, warp);
    return;
  }
  for (const auto& other : warp.fragments) {
    if (can_run(*other)) return;
  }
  unready(world, warp);
}

void run_task(World& world, size_t index) {
  const TaskRef task = world.tasks[index];
  Grid& grid = *task->grid;
  try {
    task->steps[task->next_step]();
    ++task->next_step;
    if (task->next_step < task->steps.size()) {
      event(world);
      wake_kind(world, WaitKind::kBulkGroup);
      task->due = world.step + world.rng() % 200;
      return;
    }
  } catch (const Fault& fault) {
    Report r = report_of(grid, task->program, task->statement, fault);
    r.cta = static_cast<int>(task->cta_linear);
    r.warp = task->warp;
    r.message = std::string("when this ") + task->what + " happened: " + r.message;
    fail_grid(world, grid, std::move(r));
    return;
  }
  task->done = true;
  race_task_end(world, *task);
  for (const Hold& h : task->holds) {
    if (!h.write) h.block->add_readers(h.offset, h.bytes, -1);
  }
  task->holds.clear();
  task->after.clear();
  task->steps.clear();
  // The index may have moved: a step can add tasks, never remove them.
  const auto at = std::find(world.tasks.begin(), world.tasks.end(), task);
  if (at != world.tasks.end()) {
    *at = world.tasks.back();
    world.tasks.pop_back();
  }
  ++grid.stats.tasks;
  event(world);
  wake_kind(world, WaitKind::kBulkGroup);
  wake_kind(world, WaitKind::kTmemWait);
  if (task->cluster != nullptr && --task->cluster->open_tasks == 0)
    reap_cluster(world, *task->cluster);
}

bool run_any_task(World& world) {
  const size_t n = world.tasks.size();
  if (n == 0) return false;
  const size_t start = world.rng() % n;
  for (size_t k = 0; k < n; ++k) {
    const size_t i = (start + k) % n;
    if (world.tasks[i]->ready()) {
      run_task(world, i);
      return true;
    }
  }
  return false;
}

bool wake_sleepers(World& world, bool all_timed) {
  bool any = false;
  for (auto& grid : world.grids) {
    for (auto& cluster : grid->running) {
      for (auto& cta : cluster->ctas) {
        for (auto& warp : cta->warps) {
          for (auto& f : warp->fragments) {
            if (f->wait.until == 0 || (!all_timed && f->wait.until > world.time_ns)) continue;
            const bool timed_out = f->wait.kind != WaitKind::kSleep;
            const uint64_t until = f->wait.until;
            clear_wait(world, *warp, *f);
            f->wait.timed_out = timed_out;
            world.time_ns = std::max(world.time_ns, std::min(until, world.time_ns + 20'000'000));
            any = true;
          }
        }
      }
    }
  }
  return any;
}

/// Nothing but polling happens. False: nothing is left to try.
bool idle(World& world, bool* stuck) {
  world.consecutive_polls = 0;
  if (run_any_task(world)) return true;
  if (start_clusters(world, true)) return true;
  if (world.grids.empty()) return false;
  int limit = 0;
  for (const auto& g : world.grids) limit = std::max(limit, g->options.idle_limit);
  if (++world.idle_rounds > limit) {
    world.idle_rounds = 0;
    if (world.host_may_help && world.host_may_help()) {
      *stuck = true;
      return true;
    }
    bool waiting_only = true;
    const auto grids = world.grids;
    for (const auto& g : grids) {
      if (!g->started) continue;
      waiting_only = false;
      fail_grid(world, *g, deadlock_report(world, *g, "nothing can move any more"));
    }
    if (waiting_only) {
      for (const auto& g : grids)
        fail_grid(world, *g, deadlock_report(world, *g, "the grid never started"));
    }
    return true;
  }
  world.time_ns += 1000ull << std::min(world.idle_rounds, 28);
  bool moved = wake_sleepers(world, true);
  // Lanes at a join go on alone only as a last resort, when minutes have passed: the rest of their
  // warp may be in a bounded wait, and hardware keeps a join closed that long.
  if (world.idle_rounds >= 32 && world.idle_rounds % 8 == 4) {
    for (auto& grid : world.grids) {
      for (auto& cluster : grid->running) {
        for (auto& cta : cluster->ctas) {
          for (auto& warp : cta->warps) moved |= release_joins(*warp);
        }
      }
    }
  }
  (void)moved;
  return true;
}

int quantum(World& world) {
  const uint64_t r = world.rng();
  switch (r & 7) {
    case 0:
      return 1 + static_cast<int>((r >> 8) % 4);
    case 1:
    case 2:
      return 1 + static_cast<int>((r >> 8) % 16);
    case 7:
      return 64 + static_cast<int>((r >> 8) % 512);
    default:
      return 1 + static_cast<int>((r >> 8) % 96);
  }
}

}  // namespace

void add_task(World& world, const TaskRef& task) {
  task->id = ++world.task_ids;
  for (const Hold& h : task->holds) {
    if (!h.write) h.block->add_readers(h.offset, h.bytes, +1);
  }
  static constexpr uint64_t kDelays[] = {0, 8, 60, 500, 4000, 20000};
  task->due = world.step + (task->grid->options.policy == Policy::kRandom
                                ? world.rng() % (1 + kDelays[world.rng() % 6])
                                : 0);
  if (task->cluster != nullptr) ++task->cluster->open_tasks;
  world.tasks.push_back(task);
}

void fail_grid(World& world, Grid& grid, Report report) {
  if (grid.done) return;
  grid.reports.push_back(std::move(report));
  grid.failed = grid.done = true;
  for (auto& cluster : grid.running) {
    for (auto& cta : cluster->ctas) {
      for (auto& warp : cta->warps) {
        for (auto& f : warp->fragments) {
          if (f->wait.until != 0) --world.sleepers;
        }
        unready(world, *warp);
      }
      release_cta(*cta);
    }
  }
  std::erase_if(world.tasks, [&](const TaskRef& t) {
    if (t->grid != &grid) return false;
    for (const Hold& h : t->holds) {
      if (!h.write) h.block->add_readers(h.offset, h.bytes, -1);
    }
    t->done = true;
    return true;
  });
  grid.running.clear();
  const auto at = std::find_if(world.grids.begin(), world.grids.end(),
                               [&](const auto& g) { return g.get() == &grid; });
  if (at != world.grids.end()) {
    const std::shared_ptr<Grid> keep = *at;
    world.grids.erase(at);
    if (keep->on_done) keep->on_done(*keep);
  }
  event(world);
}

bool run_some(World& world, int slices, bool* stuck) {
  *stuck = false;
  for (int s = 0; s < slices && !*stuck; ++s) {
    if (world.grids.empty() && world.tasks.empty()) return false;
    const bool eager =
        !world.tasks.empty() && world.tasks.back()->grid->options.policy == Policy::kEager;
    if (eager && run_any_task(world)) continue;
    if (!world.tasks.empty()) {
      const size_t i = world.rng() % world.tasks.size();
      const Task& t = *world.tasks[i];
      if (t.grid->options.policy == Policy::kRandom && t.due <= world.step && t.ready()) {
        run_task(world, i);
        continue;
      }
    }
    if ((world.rng() & 3) == 0) start_clusters(world, false);
    if (world.sleepers > 0 && (s & 63) == 0) wake_sleepers(world, false);
    if (world.ready.empty() || world.consecutive_polls > 3 * world.ready.size() + 8) {
      if (!idle(world, stuck)) return false;
      continue;
    }
    Warp& warp = *world.ready[world.rng() % world.ready.size()];
    const uint64_t before = world.step;
    const int q = quantum(world);
    Grid* grid = warp.cta->grid;
    run_warp(world, warp, q);
    if (world.polled) {
      ++world.consecutive_polls;
    } else if (world.step - before >= 48) {
      world.consecutive_polls = 0;
    }
    if (world.step - world.last_event > grid->options.step_limit && !grid->done) {
      world.last_event = world.step;
      fail_grid(
          world, *grid,
          deadlock_report(world, *grid,
                          format("%llu warp instructions without any store, barrier or completion",
                                 static_cast<unsigned long long>(grid->options.step_limit))));
    }
  }
  return true;
}

bool run(World& world, const Grid* grid) {
  const auto begin = std::chrono::steady_clock::now();
  bool stuck = false;
  while (grid != nullptr ? !grid->done : !(world.grids.empty() && world.tasks.empty())) {
    if (!run_some(world, 4096, &stuck)) break;
    if (stuck) return false;
  }
  if (grid != nullptr)
    const_cast<Grid*>(grid)->stats.seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return true;
}

}  // namespace sm100sim
