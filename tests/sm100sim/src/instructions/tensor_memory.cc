// Tensor memory: tcgen05.alloc, dealloc, relinquish_alloc_permit, ld, st, wait and the thread-sync
// fences.

#include "async/copy.h"
#include "async/tmem_work.h"
#include "checks/race.h"
#include "instructions/lanes.h"
#include "memory/access.h"
#include "tensorcore/fragment.h"

namespace sm100sim {
namespace {

namespace tc = tensorcore;

tc::Tmem& tmem_of(Sm& sm) {
  if (sm.tmem == nullptr) sm.tmem = std::make_unique<tc::Tmem>();
  return *sm.tmem;
}

uint32_t column_count(Exec& e, const Ref& ref) {
  const uint32_t n = static_cast<uint32_t>(e.uniform(ref, "a number of tensor memory columns"));
  const std::string why = tc::check_allocation_size(n);
  if (!why.empty()) throw Fault("tmem-alloc", why, first_lane(e.mask));
  return n;
}

void grant(Exec& e, const Instr& i, uint32_t column, uint32_t columns) {
  e.cta.tmem.push_back({column, columns});
  e.cta.tmem_last_columns = columns;
  const int l = first_lane(e.mask);
  const uint64_t address =
      (e.scalar(i.a, "an address", 4) + static_cast<uint64_t>(i.imm)) & 0xffffffff;
  const Place p = resolve(e, Space::kShared, address, 4, l, 4);
  check_generic(e, p, 4, true, l, address);
  if (e.world.races) race_access(e, p, 4, l, RaceKind::kWrite, 0, 0);
  std::memcpy(p.data(), &column, 4);
  std::memset(p.shadow(), 0, 4);
  note_generic_write(e, p, 4, l);
  event(e.world);
}

Flow alloc(Exec& e, const Instr& i) {
  e.require_aligned();
  const uint32_t n = column_count(e, i.b);
  Cta& cta = e.cta;
  if (!cta.tmem_permit)
    throw Fault("tmem-alloc", "tcgen05.alloc after relinquish_alloc_permit", first_lane(e.mask));
  if (cta.tmem_last_columns != 0 && n > cta.tmem_last_columns)
    throw Fault("tmem-alloc",
                format("an allocation of %u columns after one of %u: sizes must not grow", n,
                       cta.tmem_last_columns),
                first_lane(e.mask));
  if (i.aux == 1) {
    const int column = tmem_of(*cta.sm).allocate(static_cast<int>(n), tmem_owner(cta));
    if (column < 0) return e.wait(WaitKind::kTmemAlloc, &cta, n);
    grant(e, i, static_cast<uint32_t>(column), n);
    return Flow::kNext;
  }
  const Group g = group_of(e, 2, first_lane(e.mask));
  Cluster::PairAlloc& pair = cta.cluster->pair_allocs[cta.rank / 2];
  const uint32_t me = cta.rank & 1;
  if (pair.granted[me] >= 0) {
    const uint32_t column = static_cast<uint32_t>(pair.granted[me]);
    pair.granted[me] = -1;
    grant(e, i, column, n);
    return Flow::kNext;
  }
  if (pair.waiting != 0 && pair.columns != n)
    throw Fault("tmem-alloc",
                format("the CTAs of the pair allocate %u and %u columns", pair.columns, n),
                first_lane(e.mask));
  pair.waiting |= 1u << me;
  pair.columns = n;
  if (pair.waiting != 3) return e.wait(WaitKind::kTmemAlloc, &cta, n);
  int columns[2];
  std::string why;
  for (int k = 0; k < 2; ++k) {
    columns[k] = tmem_of(*g.ctas[k]->sm).allocate(static_cast<int>(n), tmem_owner(*g.ctas[k]));
    if (columns[k] < 0 || (k == 1 && columns[0] != columns[1])) {
      for (int j = 0; j <= k; ++j) {
        if (columns[j] >= 0)
          tmem_of(*g.ctas[j]->sm)
              .deallocate(columns[j], static_cast<int>(n), tmem_owner(*g.ctas[j]), &why);
      }
      return e.wait(WaitKind::kTmemAlloc, &cta, n);
    }
  }
  pair.waiting = 0;
  pair.granted[0] = pair.granted[1] = columns[0];
  pair.granted[me] = -1;
  grant(e, i, static_cast<uint32_t>(columns[0]), n);
  wake_cta_kind(*g.ctas[1 - me], WaitKind::kTmemAlloc);
  return Flow::kNext;
}

Flow dealloc(Exec& e, const Instr& i) {
  e.require_aligned();
  const uint32_t address = static_cast<uint32_t>(e.uniform(i.a, "a tensor memory address")),
                 n = column_count(e, i.b);
  const uint32_t column = address & 0xffff;
  const auto lease = std::find_if(e.cta.tmem.begin(), e.cta.tmem.end(), [&](const TmemLease& t) {
    return t.column == column && t.columns == n;
  });
  if (lease == e.cta.tmem.end())
    throw Fault("tmem-alloc",
                format("tcgen05.dealloc of %u columns at %u, which this CTA has not allocated so",
                       n, column),
                first_lane(e.mask));
  for (const Sm::TmemWork& w : e.cta.sm->tmem_work) {
    if (!w.task->done && w.column < static_cast<int>(column + n) &&
        static_cast<int>(column) < w.column + w.columns)
      throw Fault(
          "tmem-in-flight",
          std::string("tcgen05.dealloc while a ") + w.task->what + " on these columns is in flight",
          first_lane(e.mask));
  }
  std::string why;
  if (!tmem_of(*e.cta.sm).deallocate(static_cast<int>(column), static_cast<int>(n),
                                     tmem_owner(e.cta), &why))
    throw Fault("tmem-alloc", why, first_lane(e.mask));
  e.cta.tmem.erase(lease);
  for (uint32_t k = 4 * column; k < 4 * (column + n) && !e.cta.sm->tmem_uses.empty(); ++k)
    e.cta.sm->tmem_uses[k] = {};
  wake_kind(e.world, WaitKind::kTmemAlloc);
  event(e.world);
  return Flow::kNext;
}

void build_alloc(Build& b) {
  const bool frees = b.has("dealloc");
  b.out.fn = frees ? dealloc : alloc;
  b.out.aux = b.get("group").back() - '0';
  b.out.a = frees ? b.value(0, "b32") : b.address(0, &b.out.imm);
  b.out.b = b.value(1, "b32");
}
Flow relinquish(Exec& e, const Instr&) {
  e.require_aligned();
  e.cta.tmem_permit = false;
  return Flow::kNext;
}

tc::Fragment fragment_of(const Instr& i) {
  return {static_cast<tc::FragmentShape>(i.order), i.aux, (i.flags & 1) != 0,
          static_cast<int>(i.imm)};
}

std::vector<tc::TmemRect> rects_of(const tc::Fragment& f, uint32_t address, int warp, bool write) {
  const int lane = tc::fragment_lane(address, warp), column = tc::address_column(address);
  const int lanes = f.shape == tc::FragmentShape::k32x32b ? 32 : 16;
  std::vector<tc::TmemRect> out{{0, lane, lanes, column, tc::columns(f), write}};
  if (f.shape == tc::FragmentShape::k16x32bx2)
    out.push_back({0, lane, lanes, column + f.half_split, tc::columns(f), write});
  return out;
}

void check_address(const Exec& e, uint32_t address, const char* what) {
  const int quadrant = tc::address_lane(address) / 32;
  if (quadrant != 0 && quadrant != e.warp.index % 4) {
    throw Fault("tmem-lanes",
                format("%s at lane %d by warp %d, which reaches only lanes %d to %d", what,
                       tc::address_lane(address), e.warp.index, e.warp.index % 4 * 32,
                       e.warp.index % 4 * 32 + 31),
                first_lane(e.mask));
  }
}

void define(const TmemLoad& load) {
  for (size_t k = 0; k < load.regs.size(); ++k) {
    if (load.regs[k] < 0) continue;
    Reg& d = load.frame->regs[static_cast<size_t>(load.regs[k])];
    for_lanes(kAllLanes, [&](int l) {
      d.v[l] = (*load.values)[k * kLanes + static_cast<size_t>(l)];
      d.set_poison(l, (*load.poison)[k * kLanes + static_cast<size_t>(l)]);
    });
  }
}

// The text leaves the registers undefined until wait::ld (strict). Hardware keeps them behind its
// scoreboard, and CUTLASS uses them without a wait; so under `hardware` the load finishes first.
// Reuse of the columns needs the wait in both.
Flow tmem_load(Exec& e, const Instr& i) {
  if (e.frag->resumed) {
    const TmemLoad& load = e.warp.tmem_loads.back();
    if (!load.task->done) return e.wait(WaitKind::kTmemWait, &e.cta);
    e.frag->resumed = false;
    define(load);
    return Flow::kNext;
  }
  e.require_aligned();
  if (e.mask != kAllLanes)
    throw Fault("divergent-aligned", "tcgen05.ld needs all 32 lanes", first_lane(e.mask));
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const uint32_t address = static_cast<uint32_t>(e.uniform(i.a, "a tensor memory address")) +
                           static_cast<uint32_t>(x.imm[0]);
  check_address(e, address, "tcgen05.ld");
  const tc::Fragment f = fragment_of(i);
  Group g;
  g.ctas[0] = &e.cta;
  TmemLoad load;
  load.task = make_task(e, "tcgen05.ld", 0);
  load.unwaited = std::make_shared<Task>();
  load.unwaited->what = "tcgen05.ld";
  load.frame = e.frag->frame;
  const size_t n = x.list.size();
  load.values = std::make_shared<std::vector<uint32_t>>(n * kLanes);
  load.poison = std::make_shared<std::vector<uint8_t>>(n * kLanes);
  for (const Ref& r : x.list) {
    load.regs.push_back(r ? r.index : -1);
    if (!r) continue;
    Reg& d = e.dst(r);
    for_lanes(kAllLanes, [&](int l) { d.v[l] = 0xBAD0BAD0; });
    mark(d, kAllLanes, kAllLanes);
  }
  const std::vector<tc::TmemRect> rects = rects_of(f, address, e.warp.index, false);
  enter_tmem(e, 0, TmemActor::kLoad, g, rects, load.unwaited);
  World* world = &e.world;
  Warp* warp = &e.warp;
  Task* raw = load.task.get();
  load.task->steps.push_back([=, values = load.values, poison = load.poison] {
    MachineTmem port(g);
    const std::string why =
        tc::load(f, address, warp->index, 0, port, values->data(), poison->data());
    if (!why.empty()) throw Fault("tmem-lanes", why);
    leave_tmem(*world, g, rects, warp, 0, raw);
  });
  add_task(e.world, load.task);
  e.warp.tmem_loads.push_back(std::move(load));
  if (e.options().rules == Rules::kHardware) {
    e.frag->resumed = true;
    return e.wait(WaitKind::kTmemWait, &e.cta);
  }
  return Flow::kNext;
}

Flow tmem_store(Exec& e, const Instr& i) {
  e.require_aligned();
  if (e.mask != kAllLanes)
    throw Fault("divergent-aligned", "tcgen05.st needs all 32 lanes", first_lane(e.mask));
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const uint32_t address = static_cast<uint32_t>(e.uniform(i.a, "a tensor memory address")) +
                           static_cast<uint32_t>(x.imm[0]);
  check_address(e, address, "tcgen05.st");
  const tc::Fragment f = fragment_of(i);
  Group g;
  g.ctas[0] = &e.cta;
  std::vector<uint32_t> values(x.list.size() * kLanes);
  std::vector<uint8_t> poison(values.size());
  for (size_t k = 0; k < x.list.size(); ++k) {
    const Reg& r = e.src(x.list[k]);
    for_lanes(kAllLanes, [&](int l) {
      values[k * kLanes + static_cast<size_t>(l)] = static_cast<uint32_t>(r.v[l]);
      poison[k * kLanes + static_cast<size_t>(l)] = r.poison(l) & 15;
    });
  }
  const TaskRef task = make_task(e, "tcgen05.st", 0);
  const std::vector<tc::TmemRect> rects = rects_of(f, address, e.warp.index, true);
  enter_tmem(e, 0, TmemActor::kStore, g, rects, task);
  World* world = &e.world;
  Warp* warp = &e.warp;
  Task* raw = task.get();
  task->steps.push_back([=, values = std::move(values), poison = std::move(poison)] {
    MachineTmem port(g);
    const std::string why =
        tc::store(f, address, warp->index, 0, port, values.data(), poison.data());
    if (!why.empty()) throw Fault("tmem-lanes", why);
    leave_tmem(*world, g, rects, warp, 0, raw);
  });
  add_task(e.world, task);
  e.warp.tmem_stores.push_back(task);
  return Flow::kNext;
}

void build_fragment(Build& b) {
  static const std::map<std::string, tc::FragmentShape> kShapes = {
      {"32x32b", tc::FragmentShape::k32x32b},
      {"16x64b", tc::FragmentShape::k16x64b},
      {"16x128b", tc::FragmentShape::k16x128b},
      {"16x256b", tc::FragmentShape::k16x256b},
      {"16x32bx2", tc::FragmentShape::k16x32bx2}};
  const bool store = b.has("st");
  b.out.fn = store ? tmem_store : tmem_load;
  b.out.order = static_cast<uint8_t>(kShapes.at(b.get("shape")));
  b.out.aux = std::atoi(b.get("num").c_str() + 1);
  b.out.flags = b.has("pack::16b") || b.has("unpack::16b") ? 1 : 0;
  const size_t address_at = store ? 0 : 1, values_at = store ? b.count() - 1 : 0;
  int64_t offset = 0;
  b.out.a = b.address(address_at, &offset);
  const bool split = b.get("shape") == "16x32bx2";
  if (b.count() != (split ? 3u : 2u)) b.fail("another number of operands than the shape has");
  if (split) b.out.imm = b.op(store ? 1 : 2).imm;
  std::vector<Ref> list = b.list(b.op(values_at), "b32", !store);
  const tc::Fragment f = fragment_of(b.out);
  const std::string why = tc::check(f);
  if (!why.empty()) b.fail(why);
  if (static_cast<int>(list.size()) != tc::registers(f))
    b.fail("the vector has " + std::to_string(list.size()) + " registers, the shape needs " +
           std::to_string(tc::registers(f)));
  Extra& x = b.extra();
  x.list = std::move(list);
  x.imm[0] = offset;
}

Flow wait_load(Exec& e, const Instr&) {
  e.require_aligned();
  for (const TmemLoad& l : e.warp.tmem_loads) {
    if (!l.task->done) return e.wait(WaitKind::kTmemWait, &e.cta);
  }
  for (const TmemLoad& load : e.warp.tmem_loads) {
    if (e.options().rules == Rules::kStrict) define(load);
    load.unwaited->done = true;
  }
  e.warp.tmem_loads.clear();
  return Flow::kNext;
}
Flow wait_store(Exec& e, const Instr&) {
  e.require_aligned();
  for (const TaskRef& t : e.warp.tmem_stores) {
    if (!t->done) return e.wait(WaitKind::kTmemWait, &e.cta);
  }
  e.warp.tmem_stores.clear();
  return Flow::kNext;
}

Flow before_fence(Exec& e, const Instr&) {
  const uint32_t now = ++e.world.event;
  // tcgen05.ld and .st are the warp's: lane 0 stands for it.
  if (e.mask & 1) e.warp.before_fence[0] = now;
  for_lanes(e.mask, [&](int l) { e.warp.before_fence[static_cast<size_t>(l)] = now; });
  return Flow::kNext;
}
Flow after_fence(Exec& e, const Instr&) {
  const uint32_t now = ++e.world.event;
  for_lanes(e.mask, [&](int l) { e.warp.after_fence[static_cast<size_t>(l)] = now; });
  return Flow::kNext;
}

#define GROUP "<group:cta_group::1,cta_group::2> "
#define FRAGMENT \
  "<shape:32x32b,16x64b,16x128b,16x256b,16x32bx2> <num:x1,x2,x4,x8,x16,x32,x64,x128> "
constexpr Form kForms[] = {
    {"tcgen05 <alloc> " GROUP "<sync> <aligned> {space:shared::cta} <type:b32>", 2, 2,
     Class::kTensorMemory, build_alloc},
    {"tcgen05 <dealloc> " GROUP "<sync> <aligned> <type:b32>", 2, 2, Class::kTensorMemory,
     build_alloc},
    {"tcgen05 <relinquish_alloc_permit> " GROUP "<sync> <aligned>", 0, 0, Class::kTensorMemory,
     [](Build& b) { b.out.fn = relinquish; }},
    {"tcgen05 <ld> <sync> <aligned> " FRAGMENT "{pack::16b} <type:b32>", 2, 3, Class::kTensorMemory,
     build_fragment},
    {"tcgen05 <st> <sync> <aligned> " FRAGMENT "{unpack::16b} <type:b32>", 2, 3,
     Class::kTensorMemory, build_fragment},
    {"tcgen05 <wait::ld> <sync> <aligned>", 0, 0, Class::kTensorMemory,
     [](Build& b) { b.out.fn = wait_load; }},
    {"tcgen05 <wait::st> <sync> <aligned>", 0, 0, Class::kTensorMemory,
     [](Build& b) { b.out.fn = wait_store; }},
    {"tcgen05 <fence::before_thread_sync>", 0, 0, Class::kFence,
     [](Build& b) { b.out.fn = before_fence; }},
    {"tcgen05 <fence::after_thread_sync>", 0, 0, Class::kFence,
     [](Build& b) { b.out.fn = after_fence; }},
};
#undef GROUP
#undef FRAGMENT

}  // namespace

void forms_tensor_memory(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
