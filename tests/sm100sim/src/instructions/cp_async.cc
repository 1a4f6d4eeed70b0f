// Non-bulk cp.async: a few bytes a lane from global to shared memory, through the generic proxy;
// groups are per thread.

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

// Non-bulk cp.async: global to shared, 4, 8 or 16 bytes a lane; groups are per thread. Kept in the
// same lists as bulk groups would be, but counted apart.
Flow cp_async(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg &dst = e.src(i.a), &src = e.src(i.b);
  e.need(dst, "the destination of cp.async", 4);
  e.need(src, "the source of cp.async");
  if (e.warp.cp_async.empty())
    e.warp.cp_async.resize(kLanes), e.warp.cp_async_groups.resize(kLanes);
  for_lanes(e.mask, [&](int l) {
    const Place to = shared_place(e, shared_address(dst, x.imm[0], l), i.bytes, l, i.bytes);
    uint64_t n = i.bytes;
    if (i.c)
      n = i.flags & 1 ? (e.pred(i.c, 1u << l, true) ? 0 : i.bytes)
                      : std::min<uint64_t>(n, e.src(i.c).v[l] & 0xffffffff);
    std::vector<Segment> segments;
    if (n > 0)
      segments.push_back({Segment::kCopy,
                          resolve(e, Space::kGlobal, src.v[l] + static_cast<uint64_t>(x.imm[1]),
                                  static_cast<uint32_t>(n), l, 1),
                          to, n});
    if (n < i.bytes)
      segments.push_back({Segment::kZero, {}, {to.block, to.offset + n, to.cta}, i.bytes - n});
    // A non-bulk copy is part of the generic proxy.
    const TaskRef task = make_task(e, "cp.async", l);
    for (const Segment& s : segments) {
      check_generic(e, s.to, static_cast<uint32_t>(s.bytes), true, l, s.to.offset);
      std::memset(s.to.shadow(), kPoison | kInFlight, s.bytes);
      task->holds.push_back({s.to.block, s.to.offset, s.bytes, true});
    }
    const uint32_t event_number = e.world.event,
                   thread = e.warp.uid * kLanes + static_cast<uint32_t>(l);
    task->steps.push_back([segments, event_number, thread] {
      for (const Segment& s : segments) {
        if (s.kind == Segment::kCopy) {
          std::memcpy(s.to.data(), s.from.data(), s.bytes);
          for (uint64_t k = 0; k < s.bytes; ++k) s.to.shadow()[k] = s.from.shadow()[k] & kPoison;
        } else {
          std::memset(s.to.data(), 0, s.bytes);
          std::memset(s.to.shadow(), 0, s.bytes);
        }
        s.to.block->note_write(s.to.offset, s.bytes, event_number, thread);
      }
    });
    add_task(e.world, task);
    e.warp.cp_async[static_cast<size_t>(l)].push_back(task);
  });
  return Flow::kNext;
}
void build_cp_async(Build& b) {
  b.out.fn = cp_async;
  int64_t offsets[2] = {};
  b.out.a = b.address(0, &offsets[0]);
  b.out.b = b.address(1, &offsets[1]);
  if (b.op(2).kind != Operand::kInt) b.fail("the size of cp.async must be an immediate");
  b.out.bytes = static_cast<uint8_t>(b.op(2).imm);
  if (b.out.bytes != 4 && b.out.bytes != 8 && b.out.bytes != 16)
    b.fail("cp.async moves 4, 8 or 16 bytes");
  size_t at = 3;
  const size_t last = b.count() - (b.has("L2::cache_hint") ? 1 : 0);
  if (at < last) {
    const Operand& o = b.op(at);
    const bool is_pred = o.kind == Operand::kReg && o.reg >= 0 &&
                         b.program.source->regs[static_cast<size_t>(o.reg)].type == "pred";
    b.out.c = is_pred ? b.pred(at) : b.value(at, "b32");
    b.out.flags = is_pred;
  }
  std::copy(offsets, offsets + 2, b.extra().imm);
}
Flow cp_async_commit(Exec& e, const Instr&) {
  if (e.warp.cp_async.empty())
    e.warp.cp_async.resize(kLanes), e.warp.cp_async_groups.resize(kLanes);
  for_lanes(e.mask, [&](int l) {
    auto& open = e.warp.cp_async[static_cast<size_t>(l)];
    e.warp.cp_async_groups[static_cast<size_t>(l)].push_back(std::move(open));
    open.clear();
  });
  return Flow::kNext;
}
Flow cp_async_wait(Exec& e, const Instr& i) {
  if (e.warp.cp_async.empty()) return Flow::kNext;
  if (i.flags) cp_async_commit(e, i);
  bool pending = false;
  for_lanes(e.mask, [&](int l) {
    auto& groups = e.warp.cp_async_groups[static_cast<size_t>(l)];
    const size_t keep = static_cast<size_t>(i.imm),
                 n = groups.size() > keep ? groups.size() - keep : 0;
    for (size_t k = 0; k < n; ++k) {
      for (const TaskRef& t : groups[k]) pending |= !t->done;
    }
  });
  if (pending) return e.wait(WaitKind::kBulkGroup, &e.cta);
  return Flow::kNext;
}
Flow cp_async_arrive(
    Exec& e, const Instr& i) {  // an arrival once all earlier cp.async of the thread are done
  const Reg& a = e.src(i.a);
  e.need(a, "the address of an mbarrier", 4);
  for_lanes(e.mask, [&](int l) {
    const Place p = shared_place(e, shared_address(a, i.imm, l), 8, l, 8);
    const uint32_t offset = static_cast<uint32_t>(p.offset);
    Mbarrier& m = live_mbarrier(*p.cta, offset, l);
    if (!i.flags) ++m.pending;  // without .noinc the pending count is raised first
    const TaskRef task = make_task(e, "cp.async.mbarrier.arrive", l);
    if (!e.warp.cp_async.empty()) {
      task->after = e.warp.cp_async[static_cast<size_t>(l)];
      for (const auto& g : e.warp.cp_async_groups[static_cast<size_t>(l)])
        task->after.insert(task->after.end(), g.begin(), g.end());
    }
    World* world = &e.world;
    Cta* cta = p.cta;
    Task* raw = task.get();
    task->steps.push_back([=] {
      Mbarrier& b = live_mbarrier(*cta, offset);
      race_task_release(*world, *raw, b.released, b.proxied);
      apply(*world, *cta, offset, 0, 0, 1, false);
    });
    add_task(e.world, task);
  });
  return Flow::kNext;
}

#define TX "<mbarrier::complete_tx::bytes> "
constexpr Form kForms[] = {
    {"cp <async> <how:ca,cg> <shared:shared,shared::cta> <global> {L2::cache_hint} "
     "{prefetch:@prefetch}",
     3, 5, Class::kBulk, build_cp_async},
    {"cp <async> <commit_group>", 0, 0, Class::kBulk, [](Build& b) { b.out.fn = cp_async_commit; }},
    {"cp <async> <wait_group>", 1, 1, Class::kBulk,
     [](Build& b) {
       b.out.fn = cp_async_wait;
       b.out.imm = b.op(0).imm;
     }},
    {"cp <async> <wait_all>", 0, 0, Class::kBulk,
     [](Build& b) {
       b.out.fn = cp_async_wait;
       b.out.flags = 1;
     }},
    {"cp <async> <mbarrier> <arrive> {noinc} {space:shared,shared::cta} <type:b64>", 1, 1,
     Class::kBulk,
     [](Build& b) {
       b.out.fn = cp_async_arrive;
       b.out.flags = b.has("noinc");
       b.out.a = b.address(0, &b.out.imm);
     }},
};
#undef TX

}  // namespace

void forms_cp_async(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
