// The words of a deadlock: for every warp that still lives, where it is, what it waits for and the
// state of that barrier.

#include "machine/engine.h"
#include "machine/exec.h"

namespace sm100sim {
namespace {

std::string waiting_for(const Fragment& f, const Grid& grid) {
  const Wait& w = f.wait;
  std::string s = wait_name(w.kind);
  switch (w.kind) {
    case WaitKind::kNone:
      return "runs (polls)";
    case WaitKind::kBarrier: {
      const NamedBarrier& b = w.cta->barriers[w.key];
      return s + format(" %d: %d of %d threads have arrived", static_cast<int>(w.key), b.arrived,
                        b.expected);
    }
    case WaitKind::kCluster:
      return s + format(": %u of %u live threads have arrived", w.cta->cluster->arrived,
                        w.cta->cluster->live_threads);
    case WaitKind::kMbarrier: {
      const auto it = w.cta->mbarriers.find(static_cast<uint32_t>(w.key));
      if (it == w.cta->mbarriers.end()) return s + " that is not initialised";
      const Mbarrier& m = it->second;
      return s + format(" at 0x%llx: phase %u, %d of %d arrivals pending, tx-count %d",
                        static_cast<unsigned long long>(w.key), m.phase, m.pending, m.expected,
                        m.tx);
    }
    case WaitKind::kCollective:
      return s + format(" (members 0x%08llx, arrived 0x%08llx)",
                        static_cast<unsigned long long>(w.key),
                        static_cast<unsigned long long>(w.generation));
    default:
      (void)grid;
      return s;
  }
}

}  // namespace

Report deadlock_report(World& world, Grid& grid, const std::string& why) {
  Report r;
  r.kind = "deadlock";
  r.kernel = grid.program->name;
  r.device = grid.device;
  r.message = why;
  if (!grid.queue.empty())
    r.message += format(
        "; %zu clusters of the grid have not started because there is no room for them: a kernel "
        "must not wait for CTAs that are not resident",
        grid.queue.size());
  int lines = 0, hidden = 0;
  for (const auto& cluster : grid.running) {
    for (const auto& cta : cluster->ctas) {
      for (const auto& warp : cta->warps) {
        for (const auto& f : warp->fragments) {
          if (++lines > 40) {
            ++hidden;
            continue;
          }
          const Program& p = *f->frame->program;
          const int at = p.code[static_cast<size_t>(f->pc)].statement;
          const Statement* s = at >= 0 && at < static_cast<int>(p.source->body.size())
                                   ? &p.source->body[static_cast<size_t>(at)]
                                   : nullptr;
          r.message +=
              format("\n    CTA %u warp %d lanes 0x%08x at PTX line %d `%.90s` waits for %s",
                     cta->linear, warp->index, f->mask, s ? s->where.ptx : 0,
                     s ? s->text.c_str() : "", waiting_for(*f, grid).c_str());
          if (r.ptx_line == 0 && s != nullptr) {
            r.ptx_line = s->where.ptx;
            r.ptx_text = s->text;
            r.cta = static_cast<int>(cta->linear);
            r.warp = warp->index;
          }
        }
        for (const auto& j : warp->joins)
          r.message += format(
              "\n    CTA %u warp %d lanes 0x%08x wait at a reconvergence point for lanes 0x%08x",
              cta->linear, warp->index, j->arrived, j->expected & ~j->arrived);
      }
    }
  }
  if (hidden > 0) r.message += format("\n    and %d more", hidden);
  for (const TaskRef& t : world.tasks) {
    if (t->grid == &grid) r.message += std::string("\n    in flight: ") + t->what;
  }
  return r;
}

}  // namespace sm100sim
