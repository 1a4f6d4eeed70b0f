// clusterlaunchcontrol: work stealing from the queue of clusters. The answer arrives like a copy
// does.

#include "async/copy.h"
#include "async/mbarrier_ops.h"
#include "checks/race.h"
#include "instructions/lanes.h"

namespace sm100sim {
namespace {

uint64_t shared_address(const Reg& r, int64_t offset, int lane) {
  return (r.v[lane] + static_cast<uint64_t>(offset)) & 0xffffffff;
}

Place shared_place(Exec& e, uint64_t address, uint32_t bytes, int lane, uint32_t align) {
  return resolve(e, Space::kShared, address, bytes, lane, align);
}

// try_cancel: takes a cluster that has not started from the grid's queue. The 16 bytes of the
// answer are opaque; ours: first CTA's coordinates, then 1 or 0.
Flow try_cancel(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg &a = e.src(i.a), &bar = e.src(i.e);
  e.need(a, "an address", 4);
  e.need(bar, "an mbarrier", 4);
  for_lanes(e.mask, [&](int l) {
    const Place to = shared_place(e, shared_address(a, x.imm[0], l), 16, l, 16);
    const Place signal = shared_place(e, shared_address(bar, x.imm[1], l), 8, l, 8);
    const TaskRef task = make_task(e, "clusterlaunchcontrol.try_cancel", l);
    std::vector<Segment> targets;
    std::vector<Cta*> ctas;
    for (auto& cta : e.cta.cluster->ctas) {
      if (!(i.flags & 1) && cta.get() != &e.cta) continue;
      live_mbarrier(*cta, static_cast<uint32_t>(signal.offset), l);
      targets.push_back({Segment::kCopy, {}, {cta->shared.get(), to.offset, cta.get()}, 16});
      ctas.push_back(cta.get());
    }
    mark_destination(e, l, "clusterlaunchcontrol.try_cancel", targets, *task);
    World* world = &e.world;
    Grid* grid = &e.grid;
    Task* raw = task.get();
    const uint32_t offset = static_cast<uint32_t>(signal.offset);
    task->steps.push_back([=] {
      uint32_t answer[4] = {};
      if (!grid->queue.empty()) {
        const uint32_t id = grid->queue.front();
        grid->queue.erase(grid->queue.begin());
        ++grid->clusters_done;
        const LaunchConfig& c = grid->config;
        const uint32_t nx = c.grid[0] / c.cluster[0], ny = c.grid[1] / c.cluster[1];
        answer[0] = id % nx * c.cluster[0];
        answer[1] = id / nx % ny * c.cluster[1];
        answer[2] = id / (nx * ny) * c.cluster[2];
        answer[3] = 1;
      }
      for (size_t k = 0; k < targets.size(); ++k) {
        std::memcpy(targets[k].to.data(), answer, 16);
        std::memset(targets[k].to.shadow(), 0, 16);
        Mbarrier& m = live_mbarrier(*ctas[k], offset);
        race_task_release(*world, *raw, m.released, m.proxied);
        apply(*world, *ctas[k], offset, 0, 16, 0, false);
      }
    });
    add_task(e.world, task);
  });
  return Flow::kNext;
}
void build_try_cancel(Build& b) {
  b.out.fn = try_cancel;
  b.out.flags = b.has("multicast::cluster::all") ? 1 : 0;
  int64_t offsets[2] = {};
  b.out.a = b.address(0, &offsets[0]);
  b.out.e = b.address(1, &offsets[1]);
  std::copy(offsets, offsets + 2, b.extra().imm);
}
Flow query_cancel(Exec& e, const Instr& i) {
  const Reg &low = e.regs[i.a.index], &high = e.regs[i.a.index + 1];
  const uint32_t bad = poisoned(low, e.mask, 8) | poisoned(high, e.mask, 8);
  if (i.flags == 0) {
    uint32_t r = 0;
    for_lanes(e.mask, [&](int l) { r |= static_cast<uint32_t>(high.v[l] >> 32 & 1) << l; });
    e.set_pred(i.d, e.mask, r, bad);
    return Flow::kNext;
  }
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  for (size_t k = 0; k < x.list.size(); ++k) {
    if (!x.list[k]) continue;
    const uint32_t part = i.flags == 1 ? static_cast<uint32_t>(k) : i.flags - 2u;
    Reg& d = e.dst(x.list[k]);
    uint32_t undefined = bad;
    uint64_t values[kLanes];
    for_lanes(e.mask, [&](int l) {
      values[l] = part == 0   ? low.v[l] & 0xffffffff
                  : part == 1 ? low.v[l] >> 32
                  : part == 2 ? high.v[l] & 0xffffffff
                              : 0;
      if (!(high.v[l] >> 32 & 1)) undefined |= 1u << l;  // the coordinates of a refusal
    });
    for_lanes(e.mask, [&](int l) { d.v[l] = values[l]; });
    mark(d, e.mask, undefined);
  }
  return Flow::kNext;
}
void build_query(Build& b) {
  b.out.fn = query_cancel;
  const std::string what = b.get("what");
  b.out.flags = what == "is_canceled"          ? 0
                : what == "get_first_ctaid"    ? 1
                : what == "get_first_ctaid::x" ? 2
                : what == "get_first_ctaid::y" ? 3
                                               : 4;
  if (b.out.flags == 0)
    b.out.d = b.pred_dest(b.op(0));
  else
    b.extra().list = b.list(b.op(0), "b32", true);
  b.out.a = b.value(1, "b128");
}

#define TX "<mbarrier::complete_tx::bytes> "
constexpr Form kForms[] = {
    {"clusterlaunchcontrol <try_cancel> <async> {space:shared::cta} " TX
     "{multicast::cluster::all} <type:b128>",
     2, 2, Class::kBulk, build_try_cancel},
    {"clusterlaunchcontrol <query_cancel> <what:is_canceled> <pred> <type:b128>", 2, 2,
     Class::kBulk, build_query},
    {"clusterlaunchcontrol <query_cancel> <what:get_first_ctaid> <vec:v4> <dtype:b32> <type:b128>",
     2, 2, Class::kBulk, build_query},
    {"clusterlaunchcontrol <query_cancel> "
     "<what:get_first_ctaid::x,get_first_ctaid::y,get_first_ctaid::z> <dtype:b32> <type:b128>",
     2, 2, Class::kBulk, build_query},
};
#undef TX

}  // namespace

void forms_launch_control(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
