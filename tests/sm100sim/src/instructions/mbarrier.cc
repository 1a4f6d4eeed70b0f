// mbarrier instructions. The object is kept beside shared memory (async/mbarrier.h); its eight
// bytes are marked, so that an ordinary access to them is reported.

#include "async/mbarrier_ops.h"
#include "checks/race.h"
#include "instructions/lanes.h"
#include "instructions/order.h"
#include "memory/access.h"

namespace sm100sim {
namespace {

Space space_of(const Build& b) {
  const std::string s = b.get("space");
  return s == "shared::cluster" ? Space::kSharedCluster
         : s.empty()            ? Space::kGeneric
                                : Space::kShared;
}

Place place(Exec& e, const Instr& i, const Reg& a, int lane) {
  uint64_t address = a.v[lane] + static_cast<uint64_t>(i.imm);
  const Space s = static_cast<Space>(i.space);
  if (s != Space::kGeneric) address &= 0xffffffff;
  const Place p = resolve(e, s, address, 8, lane, 8);
  if (p.cta == nullptr)
    throw Fault("mbarrier", "the address of an mbarrier is not in shared memory", lane, address);
  return p;
}
const Reg& address(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  e.need(a, "the address of an mbarrier", static_cast<Space>(i.space) == Space::kGeneric ? 8 : 4);
  return a;
}

Flow init(Exec& e, const Instr& i) {
  const Reg &a = address(e, i), &n = e.src(i.b);
  e.need(n, "an arrival count", 4);
  for_lanes(e.mask, [&](int l) {
    const Place p = place(e, i, a, l);
    const uint32_t offset = static_cast<uint32_t>(p.offset);
    const int32_t count = static_cast<int32_t>(n.v[l]);
    if (p.cta != &e.cta)
      throw Fault("mbarrier", "mbarrier.init of another CTA's barrier", l, offset);
    if (count < 1 || count > kMbarrierLimit)
      throw Fault("mbarrier", format("arrival count %d, 1 to %d accepted", count, kMbarrierLimit),
                  l, offset);
    const auto it = e.cta.mbarriers.find(offset);
    if (it != e.cta.mbarriers.end()) {
      const Mbarrier& m = it->second;
      throw Fault("mbarrier",
                  format("the mbarrier at 0x%x is initialised again while it lives (phase %u, %d "
                         "of %d arrivals pending, tx-count %d); mbarrier.inval must come first",
                         offset, m.phase, m.pending, m.expected, m.tx),
                  l, offset);
    }
    check_generic(e, p, 8, true, l, offset);
    if (e.world.races) race_access(e, p, 8, l, RaceKind::kWrite, kWeak, 0);
    for (uint32_t k = 0; k < 8; ++k) p.shadow()[k] = kBarrier;
    p.block->note_write(p.offset, 8, 0, 0);
    Mbarrier m;
    m.expected = m.pending = count;
    m.touched = e.world.step;
    e.cta.mbarriers[offset] = m;
  });
  event(e.world);
  return Flow::kNext;
}

Flow inval(Exec& e, const Instr& i) {
  const Reg& a = address(e, i);
  for_lanes(e.mask, [&](int l) {
    const Place p = place(e, i, a, l);
    const Mbarrier& m = live_mbarrier(*p.cta, static_cast<uint32_t>(p.offset), l);
    if (m.tx != 0)
      throw Fault("mbarrier", format("mbarrier.inval while the tx-count is %d", m.tx), l, p.offset);
    p.cta->mbarriers.erase(static_cast<uint32_t>(p.offset));
    for (uint32_t k = 0; k < 8; ++k) p.shadow()[k] = kPoison;
  });
  return Flow::kNext;
}

enum : uint8_t { kExpect = 1, kComplete = 2, kArrives = 4, kDrop = 8, kNoComplete = 16 };

// d = state, a = address, b = arrival count, c = transaction bytes.
Flow arrive(Exec& e, const Instr& i) {
  const Reg& a = address(e, i);
  if (i.b) e.need(e.src(i.b), "an arrival count", 4);
  if (i.c) e.need(e.src(i.c), "a transaction count", 4);
  uint64_t state[kLanes];
  for_lanes(e.mask, [&](int l) {
    const Place p = place(e, i, a, l);
    const uint32_t offset = static_cast<uint32_t>(p.offset);
    Mbarrier& m = live_mbarrier(*p.cta, offset, l);
    const bool remote = p.cta != &e.cta;
    if (remote && i.d)
      throw Fault("mbarrier",
                  "an arrival at another CTA's barrier returns no state: the destination must be _",
                  l, offset);
    if (remote && (i.flags & kArrives) && i.order == kRelease && i.scope == kScopeCta) {
      e.warn(
          "mbarrier-cta-scope",
          "an arrival at another CTA's mbarrier with .cta scope; the text wants .release.cluster",
          l, offset);
    }
    const int32_t count =
        i.flags & kArrives ? (i.b ? static_cast<int32_t>(e.src(i.b).v[l]) : 1) : 0;
    const int64_t tx = i.c ? static_cast<int64_t>(static_cast<uint32_t>(e.src(i.c).v[l])) : 0;
    if (count < 0 || ((i.flags & kArrives) && count == 0))
      throw Fault("mbarrier", format("%d arrivals", count), l, offset);
    if ((i.flags & kNoComplete) && count == m.pending && m.tx == 0)
      throw Fault("mbarrier", "arrive.noComplete would complete the phase", l, offset);
    state[l] = static_cast<uint64_t>(m.phase) << 32 | static_cast<uint32_t>(m.pending);
    if ((i.flags & kArrives) && i.order == kRelease) race_release_into(e, m.released, m.proxied);
    apply(e.world, *p.cta, offset, i.flags & kExpect ? tx : 0, i.flags & kComplete ? tx : 0, count,
          i.flags & kDrop, l);
  });
  if (i.d) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) { d.v[l] = state[l]; });
    d.clean(e.mask);
  }
  return Flow::kNext;
}

void semantics(Build& b, const char* otherwise) {
  b.out.order = order_of(b.get("sem", otherwise));
  b.out.scope = b.has("scope") ? scope_of(b.get("scope")) : static_cast<uint8_t>(kScopeCta);
  b.out.space = static_cast<uint8_t>(space_of(b));
}

void build_arrive(Build& b) {
  semantics(b, "release");
  b.out.fn = arrive;
  const bool expect = b.has("expect_tx");
  b.out.flags =
      static_cast<uint8_t>(kArrives | (b.has("arrive_drop") ? kDrop : 0) | (expect ? kExpect : 0) |
                           (b.has("noComplete") ? kNoComplete : 0));
  // The state may be left out when the barrier is remote: then the first operand is the address.
  size_t at = 0;
  if (b.op(0).kind != Operand::kAddress) b.out.d = b.dest(at++, "b64");
  b.out.a = b.address(at++, &b.out.imm);
  if (b.count() > at) {
    if (expect)
      b.out.c = b.value(at, "b32");
    else
      b.out.b = b.value(at, "b32");
  } else if (expect) {
    b.fail("expect_tx needs a transaction count");
  }
}
void build_tx(Build& b) {
  semantics(b, "relaxed");
  b.out.fn = arrive;
  b.out.flags = b.has("expect_tx") ? kExpect : kComplete;
  b.out.a = b.address(0, &b.out.imm);
  b.out.c = b.value(1, "b32");
}

bool phase_done(const Mbarrier& m, const Instr& i, uint64_t token) {
  if (i.flags & 1) return (m.phase & 1) != (token & 1);
  return m.phase != static_cast<uint32_t>(token >> 32);
}

// d = predicate, a = address, b = state or parity, c = time limit (ns).
Flow wait(Exec& e, const Instr& i) {
  Fragment& f = *e.frag;
  const Reg &a = address(e, i), &s = e.src(i.b);
  e.need(s, i.flags & 1 ? "a phase parity" : "an mbarrier state", i.flags & 1 ? 4 : 8);
  uint32_t done = 0;
  uint32_t offset = 0;
  bool uniform = true;
  const int first = first_lane(e.mask);
  for_lanes(e.mask, [&](int l) {
    const Place p = place(e, i, a, l);
    if (p.cta != &e.cta) throw Fault("mbarrier", "a wait on another CTA's mbarrier", l, p.offset);
    if (l != first && p.offset != offset) uniform = false;
    offset = static_cast<uint32_t>(p.offset);
    if ((i.flags & 1) && (s.v[l] & 0xffffffff) > 1)
      throw Fault("mbarrier",
                  format("phase parity %llu, 0 or 1 accepted",
                         static_cast<unsigned long long>(s.v[l] & 0xffffffff)),
                  l, p.offset);
    const Mbarrier& m = live_mbarrier(*p.cta, offset, l);
    if (phase_done(m, i, s.v[l])) {
      done |= 1u << l;
      if (i.order == kAcquire) race_acquire(e, m.completed, m.completed_proxied);
    }
  });
  const bool timed_out = f.wait.timed_out;
  f.wait.timed_out = false;
  if (done != e.mask && (i.flags & 2) && uniform && !timed_out) {
    const bool spurious =
        e.options().policy == Policy::kRandom && !f.resumed && e.world.rng() % 16 == 0;
    if (!spurious) {
      uint64_t limit = 20000;
      if (i.c) limit = std::min<uint64_t>(e.src(i.c).v[first] & 0xffffffff, 10'000'000);
      f.resumed = true;
      f.wait.until = e.world.time_ns + 1 + limit;
      return e.wait(WaitKind::kMbarrier, &e.cta, offset, e.cta.mbarriers[offset].phase);
    }
    ++e.grid.stats.spurious_waits;
  }
  f.resumed = false;
  if (done != e.mask) e.polled();
  if (done == e.mask) e.warp.synchronised(e.mask, ++e.world.event);
  ++e.grid.stats.barrier_waits;
  e.set_pred(i.d, e.mask, done, 0);
  return Flow::kNext;
}
void build_wait(Build& b) {
  semantics(b, "acquire");
  b.out.fn = wait;
  const bool parity = b.has("parity"), tries = b.has("try_wait");
  b.out.flags = static_cast<uint8_t>((parity ? 1 : 0) | (tries ? 2 : 0));
  b.out.d = b.pred_dest(b.op(0));
  b.out.a = b.address(1, &b.out.imm);
  b.out.b = b.value(2, parity ? "b32" : "b64");
  if (b.count() == 4) {
    if (!tries) b.fail("test_wait has no time limit");
    b.out.c = b.value(3, "b32");
  }
}

uint32_t pending_of(uint64_t state) { return static_cast<uint32_t>(state); }

#define SEM "{sem:release,relaxed} {scope:cta,cluster} {space:shared,shared::cta,shared::cluster} "
#define WSEM "{sem:acquire,relaxed} {scope:cta,cluster} {space:shared,shared::cta} "
constexpr Form kForms[] = {
    {"mbarrier <init> {space:shared,shared::cta} <type:b64>", 2, 2, Class::kMbarrier,
     [](Build& b) {
       b.out.fn = init;
       b.out.space = static_cast<uint8_t>(space_of(b));
       b.out.a = b.address(0, &b.out.imm);
       b.out.b = b.value(1, "b32");
     }},
    {"mbarrier <inval> {space:shared,shared::cta} <type:b64>", 1, 1, Class::kMbarrier,
     [](Build& b) {
       b.out.fn = inval;
       b.out.space = static_cast<uint8_t>(space_of(b));
       b.out.a = b.address(0, &b.out.imm);
     }},
    {"mbarrier <arrive> {expect_tx} {noComplete} " SEM "<type:b64>", 1, 3, Class::kMbarrier,
     build_arrive},
    {"mbarrier <arrive_drop> {expect_tx} {noComplete} " SEM "<type:b64>", 1, 3, Class::kMbarrier,
     build_arrive},
    {"mbarrier <expect_tx> {sem:relaxed} {scope:cta,cluster} "
     "{space:shared,shared::cta,shared::cluster} <type:b64>",
     2, 2, Class::kMbarrier, build_tx},
    {"mbarrier <expect_tx> {sem:relaxed} {scope:cta,cluster} "
     "{space:shared,shared::cta,shared::cluster}",
     2, 2, Class::kMbarrier, build_tx},
    {"mbarrier <complete_tx> {sem:relaxed} {scope:cta,cluster} "
     "{space:shared,shared::cta,shared::cluster} {type:b64}",
     2, 2, Class::kMbarrier, build_tx},
    {"mbarrier <test_wait> {parity} " WSEM "<type:b64>", 3, 3, Class::kMbarrier, build_wait},
    {"mbarrier <try_wait> {parity} " WSEM "<type:b64>", 3, 4, Class::kMbarrier, build_wait},
    {"mbarrier <pending_count> <type:b64>", 2, 2, Class::kMbarrier,
     [](Build& b) {
       b.out.fn = op1<uint32_t, uint64_t, pending_of>;
       b.out.d = b.dest(0, "b32");
       b.out.a = b.value(1, "b64");
     }},
};
#undef SEM
#undef WSEM

}  // namespace

void forms_mbarrier(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
