// CTA barriers (bar, barrier.cta) and the cluster barrier. Aligned forms count whole warps; the
// others count threads.

#include "checks/race.h"
#include "instructions/lanes.h"
#include "instructions/order.h"
#include "machine/engine.h"

namespace sm100sim {
namespace {

enum Kind : uint8_t { kSync, kArrive, kRedAnd, kRedOr, kRedPopc };

int32_t everybody(const Cta& cta) {
  int32_t n = 0;
  for (const auto& w : cta.warps) n += w->live ? kLanes : 0;
  return n;
}

void complete(Cta& cta, NamedBarrier& b, int id) {
  b.result.all = b.reduce_and;
  b.result.any = b.reduce_or;
  b.result.count = b.reduce_count;
  b.reduce_and = true;
  b.reduce_or = false;
  b.reduce_count = 0;
  b.arrived = 0;
  b.expected = 0;
  ++b.generation;
  race_barrier_complete(*cta.grid->world, b.released, b.completed, b.proxied, b.completed_proxied);
  wake_barrier(cta, static_cast<uint64_t>(id));
}

Flow barrier(Exec& e, const Instr& i) {
  const uint8_t kind = i.flags & 7;
  const bool aligned = i.flags & 8;
  Fragment& f = *e.frag;
  Cta& cta = e.cta;
  const uint32_t id = static_cast<uint32_t>(e.uniform(i.a, "a barrier number"));
  if (id >= cta.barriers.size())
    throw Fault("barrier", format("barrier %u: a CTA has 16", id), first_lane(e.mask));
  NamedBarrier& b = cta.barriers[id];
  const bool reduces = kind >= kRedAnd;
  if (!f.resumed) {
    if (aligned) e.require_aligned();
    int32_t count = 0;
    if (i.b) {
      count = static_cast<int32_t>(e.uniform(i.b, "a barrier's thread count"));
      if (count <= 0 || count % kLanes != 0)
        throw Fault(
            "barrier",
            format("barrier %u: thread count %d, a positive multiple of 32 is accepted", id, count),
            first_lane(e.mask));
      if (count > static_cast<int32_t>(cta.warps.size()) * kLanes)
        throw Fault(
            "barrier",
            format("barrier %u: thread count %d, the CTA has %u threads", id, count, cta.threads),
            first_lane(e.mask));
    }
    const int32_t expected = i.b ? count : everybody(cta);
    if (b.arrived > 0 && b.expected != expected)
      throw Fault("barrier",
                  format("barrier %u: %d threads expected here, %d where the first thread arrived",
                         id, expected, b.expected),
                  first_lane(e.mask));
    b.expected = expected;
    b.everybody = !i.b;
    b.arrived += e.mask == e.warp.live ? kLanes : __builtin_popcount(e.mask);
    if (b.arrived > b.expected)
      throw Fault("barrier",
                  format("barrier %u: more than the %d expected threads arrive", id, b.expected),
                  first_lane(e.mask));
    if (reduces) {
      const uint32_t p = e.pred(i.c, e.mask, true);
      b.reduce_and &= p == e.mask;
      b.reduce_or |= p != 0;
      b.reduce_count += __builtin_popcount(p);
    }
    race_barrier_arrive(e, b.released, b.proxied);
    ++e.grid.stats.barrier_waits;
    const uint64_t token = b.generation;
    if (b.arrived == b.expected)
      complete(cta, b, static_cast<int>(id));
    else
      event(e.world);
    if (kind == kArrive) return Flow::kNext;
    if (b.generation == token) {
      f.resumed = true;
      f.token = token;
      return e.wait(WaitKind::kBarrier, &cta, id, token);
    }
  } else {
    if (b.generation == f.token) return e.wait(WaitKind::kBarrier, &cta, id, f.token);
    f.resumed = false;
  }
  race_acquire(e, b.completed, b.completed_proxied);
  if (kind == kRedPopc) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) { d.v[l] = static_cast<uint64_t>(b.result.count); });
    d.clean(e.mask);
  } else if (reduces) {
    e.set_pred(i.d, e.mask, (kind == kRedAnd ? b.result.all : b.result.any) ? e.mask : 0, 0);
  }
  return Flow::kNext;
}

void build_barrier(Build& b) {
  const std::string kind = b.get("kind");
  b.out.fn = barrier;
  // `bar` is `barrier.aligned`.
  const bool aligned = b.st.base == "bar" || b.has("aligned");
  size_t at = 0;
  uint8_t k = kind == "sync" ? kSync : kArrive;
  if (kind == "red") {
    const std::string op = b.get("op");
    k = op == "and" ? kRedAnd : op == "or" ? kRedOr : kRedPopc;
    b.out.d = k == kRedPopc ? b.dest(at++, "u32") : b.pred_dest(b.op(at++));
  }
  b.out.flags = static_cast<uint8_t>(k | (aligned ? 8 : 0));
  b.out.a = b.value(at++, "u32");
  const size_t last = b.count() - (kind == "red" ? 1 : 0);
  if (at < last) b.out.b = b.value(at++, "u32");
  if (kind == "arrive" && !b.out.b) b.fail("arrive needs a thread count");
  if (kind == "red") b.out.c = b.pred(at);
}

Flow cluster_arrive(Exec& e, const Instr& i) {
  Cluster& c = *e.cta.cluster;
  if (i.flags & 1) e.require_aligned();
  if (e.warp.cluster_pending & e.mask)
    throw Fault("barrier", "barrier.cluster.arrive twice without a wait between",
                first_lane(e.warp.cluster_pending & e.mask));
  e.warp.cluster_pending |= e.mask;
  for_lanes(e.mask, [&](int l) {
    e.warp.cluster_phase[static_cast<size_t>(l)] = static_cast<uint32_t>(c.generation) + 1;
  });
  c.arrived += static_cast<uint32_t>(__builtin_popcount(e.mask));
  if (!(i.flags & 2)) race_barrier_arrive(e, c.released, c.proxied);
  event(e.world);
  if (c.arrived >= c.live_threads) {
    c.arrived = 0;
    ++c.generation;
    race_barrier_complete(e.world, c.released, c.completed, c.proxied, c.completed_proxied);
    wake_cluster(c);
  }
  return Flow::kNext;
}

Flow cluster_wait(Exec& e, const Instr& i) {
  Cluster& c = *e.cta.cluster;
  if (i.flags & 1) e.require_aligned();
  if ((e.warp.cluster_pending & e.mask) != e.mask)
    throw Fault("barrier", "barrier.cluster.wait without an arrive before",
                first_lane(e.mask & ~e.warp.cluster_pending));
  const int l = first_lane(e.mask);
  if (c.generation < e.warp.cluster_phase[static_cast<size_t>(l)])
    return e.wait(WaitKind::kCluster, &e.cta, 0, c.generation);
  e.warp.cluster_pending &= ~e.mask;
  ++e.grid.stats.barrier_waits;
  race_acquire(e, c.completed, c.completed_proxied);
  return Flow::kNext;
}

constexpr Form kForms[] = {
    {"bar {cta} <kind:sync,arrive>", 1, 2, Class::kBarrier, build_barrier},
    {"bar {cta} <kind:red> <op:popc,and,or> <type:u32,pred>", 3, 4, Class::kBarrier, build_barrier},
    {"barrier {cta} <kind:sync,arrive> {aligned}", 1, 2, Class::kBarrier, build_barrier},
    {"barrier {cta} <kind:red> <op:popc,and,or> {aligned} <type:u32,pred>", 3, 4, Class::kBarrier,
     build_barrier},
    {"barrier <cluster> <arrive> {sem:release,relaxed} {aligned}", 0, 0, Class::kBarrier,
     [](Build& b) {
       b.out.fn = cluster_arrive;
       b.out.flags =
           static_cast<uint8_t>((b.has("aligned") ? 1 : 0) | (b.get("sem") == "relaxed" ? 2 : 0));
     }},
    {"barrier <cluster> <wait> {sem:acquire} {aligned}", 0, 0, Class::kBarrier,
     [](Build& b) {
       b.out.fn = cluster_wait;
       b.out.flags = b.has("aligned") ? 1 : 0;
     }},
};

}  // namespace

void recheck_barriers(Cta& cta) {
  for (size_t id = 0; id < cta.barriers.size(); ++id) {
    NamedBarrier& b = cta.barriers[id];
    if (b.arrived == 0 || !b.everybody) continue;
    b.expected = everybody(cta);
    if (b.arrived >= b.expected) complete(cta, b, static_cast<int>(id));
  }
  Cluster& c = *cta.cluster;
  if (c.arrived > 0 && c.arrived >= c.live_threads) {
    c.arrived = 0;
    ++c.generation;
    race_barrier_complete(*cta.grid->world, c.released, c.completed, c.proxied,
                          c.completed_proxied);
    wake_cluster(c);
  }
}

void forms_barrier(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
