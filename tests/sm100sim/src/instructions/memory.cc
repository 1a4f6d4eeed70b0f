// Loads and stores of every space, prefetches, st.bulk. Orders and scopes matter to the race
// detector only: execution itself is one total order, and what asynchronous engines do lies outside
// it.

#include "checks/race.h"
#include "instructions/lanes.h"
#include "instructions/order.h"
#include "memory/access.h"

namespace sm100sim {
namespace {

Space space_of(const std::string& s) {
  if (s == "global" || s == "const") return Space::kGlobal;
  if (s == "shared" || s == "shared::cta") return Space::kShared;
  if (s == "shared::cluster") return Space::kSharedCluster;
  if (s == "local") return Space::kLocal;
  if (s.rfind("param", 0) == 0) return Space::kParam;
  return Space::kGeneric;
}

Class class_of(Space s) {
  return s == Space::kShared || s == Space::kSharedCluster ? Class::kShared
         : s == Space::kLocal || s == Space::kParam        ? Class::kLocal
                                                           : Class::kGlobal;
}

/// Extra passes of a shared-memory access: the most distinct 4-byte words any bank is asked for,
/// less one.
void count_conflicts(Exec& e, const Reg& a, int64_t offset, uint32_t bytes) {
  if (bytes > 4) return;
  uint64_t words[kLanes];
  uint8_t load[32] = {};
  int n = 0;
  uint8_t worst = 0;
  for_lanes(e.mask, [&](int l) {
    const uint64_t w = (a.v[l] + static_cast<uint64_t>(offset)) / 4;
    for (int k = 0; k < n; ++k) {
      if (words[k] == w) return;
    }
    words[n++] = w;
    worst = std::max(worst, ++load[w % 32]);
  });
  if (worst > 1) e.grid.stats.bank_conflicts += worst - 1u;
}

uint64_t address_of(const Exec& e, const Reg& a, const Instr& i, int lane, Space space) {
  uint64_t v = a.v[lane] + static_cast<uint64_t>(i.imm);
  if (i.flags & 0x80) v += e.frame->local_base;
  if (space == Space::kShared || space == Space::kSharedCluster) v &= 0xffffffff;
  return v;
}

uint32_t address_bytes(Space s) {
  return s == Space::kShared || s == Space::kSharedCluster ? 4 : 8;
}

Flow load(Exec& e, const Instr& i) {
  const Space space = static_cast<Space>(i.space);
  const Reg& a = e.src(i.a);
  e.need(a, "an address", static_cast<int>(address_bytes(space)));
  const uint32_t bytes = i.bytes, total = bytes * i.count;
  const Extra* x = i.extra >= 0 ? &e.program->extras[static_cast<size_t>(i.extra)] : nullptr;
  const bool conflicts = space == Space::kShared;
  if (conflicts) count_conflicts(e, a, i.imm, total);
  uint64_t addresses[kLanes];
  for_lanes(e.mask, [&](int l) { addresses[l] = address_of(e, a, i, l, space); });
  for_lanes(e.mask, [&](int l) {
    const Place p = resolve(e, space, addresses[l], total, l, total);
    const uint8_t* shadow = p.shadow();
    const uint8_t bits = shadow_bits(shadow, total);
    if (bits & (kInFlight | kBarrier)) [[unlikely]]
      refuse_generic(e, p, total, false, l, addresses[l]);
    if (e.world.races)
      race_access(e, p, total, l, i.order >= kRelaxed ? RaceKind::kStrongRead : RaceKind::kRead,
                  i.order, i.scope);
    if (i.cls == Class::kGlobal && p.cta == nullptr) count_global(e, *p.block, total, false);
    for (uint32_t k = 0; k < i.count; ++k) {
      const Ref& r = x ? x->list[k] : i.d;
      if (!r) continue;
      uint64_t v = 0;
      std::memcpy(&v, p.data() + k * bytes, std::min(bytes, 8u));
      if (i.flags & 1) {  // signed
        const int up = 64 - 8 * static_cast<int>(bytes);
        v = static_cast<uint64_t>(static_cast<int64_t>(v << up) >> up);
        if (i.aux < 8) v &= (1ull << (8 * i.aux)) - 1;
      }
      uint8_t poison = 0;
      if (bits & kPoison) {
        for (uint32_t j = 0; j < std::min(bytes, 8u); ++j)
          poison = static_cast<uint8_t>(poison | (shadow[k * bytes + j] & kPoison) << j);
        if (poison && (i.flags & 1)) poison = 0xff;
      }
      Reg& d = e.dst(r);
      d.v[l] = v;
      d.set_poison(l, poison);
      if (bytes == 16) {
        Reg& high = e.regs[r.index + 1];
        std::memcpy(&high.v[l], p.data() + k * 16 + 8, 8);
        uint8_t hp = 0;
        for (int j = 0; j < 8; ++j)
          hp = static_cast<uint8_t>(hp | (shadow[k * 16 + 8 + static_cast<uint32_t>(j)] & kPoison)
                                             << j);
        high.set_poison(l, hp);
      }
    }
  });
  if (i.order >= kRelaxed) e.polled();
  return Flow::kNext;
}

Flow store(Exec& e, const Instr& i) {
  const Space space = static_cast<Space>(i.space);
  const Reg& a = e.src(i.a);
  e.need(a, "an address", static_cast<int>(address_bytes(space)));
  const uint32_t bytes = i.bytes, total = bytes * i.count;
  const Extra* x = i.extra >= 0 ? &e.program->extras[static_cast<size_t>(i.extra)] : nullptr;
  if (space == Space::kShared) count_conflicts(e, a, i.imm, total);
  if (i.order == kRelease || i.order == kAcqRel) race_release_prepare(e, i.scope);
  for_lanes(e.mask, [&](int l) {
    const uint64_t address = address_of(e, a, i, l, space);
    const Place p = resolve(e, space, address, total, l, total);
    check_generic(e, p, total, true, l, address);
    if (e.world.races)
      race_access(e, p, total, l, i.order >= kRelaxed ? RaceKind::kStrongWrite : RaceKind::kWrite,
                  i.order, i.scope);
    if (i.cls == Class::kGlobal && p.cta == nullptr) count_global(e, *p.block, total, true);
    for (uint32_t k = 0; k < i.count; ++k) {
      const Reg& r = e.src(x ? x->list[k] : i.b);
      std::memcpy(p.data() + k * bytes, &r.v[l], std::min(bytes, 8u));
      const uint8_t poison = r.poison(l);
      for (uint32_t j = 0; j < std::min(bytes, 8u); ++j)
        p.shadow()[k * bytes + j] = poison >> j & 1;
      if (bytes == 16) {
        const Ref& ref = x ? x->list[k] : i.b;
        const Reg& high = e.regs[ref.index + 1];
        std::memcpy(p.data() + k * 16 + 8, &high.v[l], 8);
        const uint8_t hp = high.poison(l);
        for (int j = 0; j < 8; ++j) p.shadow()[k * 16 + 8 + static_cast<uint32_t>(j)] = hp >> j & 1;
      }
    }
    if (space != Space::kLocal) note_generic_write(e, p, total, l);
  });
  if (space != Space::kLocal && space != Space::kParam) event(e.world);
  return Flow::kNext;
}

void orders(Build& b) {
  b.out.order = order_of(b.get("sem", "weak"));
  b.out.scope = scope_of(b.get("scope"));
  if (b.out.order >= kRelaxed && b.get("sem") != "volatile" && !b.has("scope"))
    b.fail("." + b.get("sem") + " needs a scope");
}

void common(Build& b, const Operand& address) {
  const std::string type = b.get("type");
  Space space = space_of(b.get("space"));
  b.out.a = b.address(address, &b.out.imm);
  if (b.out.flags & 0x80) space = Space::kLocal;  // parameters of functions live in the frame
  if (space == Space::kParam && !b.program.entry) space = Space::kLocal;
  b.out.space = static_cast<uint8_t>(space);
  b.out.bytes = static_cast<uint8_t>(type_bytes(type));
  b.out.cls = class_of(space);
  b.out.count = b.has("vec") ? static_cast<uint8_t>(b.get("vec")[1] - '0') : 1;
  if (b.out.bytes * b.out.count > 32) b.fail("a vector access has at most 32 bytes");
  orders(b);
}

void cache_policy(Build& b, size_t at) {
  if (b.has("L2::cache_hint")) {
    if (b.count() <= at) b.fail(".L2::cache_hint needs a policy operand");
    b.value(at, "b64");
  } else if (b.count() > at) {
    b.fail("one operand too many");
  }
}

void build_load(Build& b) {
  common(b, b.op(1));
  b.out.fn = load;
  const std::string type = b.get("type");
  const std::string reg_type = "b8";  // a wider register is legal for every load
  if (type[0] == 's') b.out.flags |= 1;
  if (b.has("vec")) {
    b.extra().list = b.list(b.op(0), type_bytes(type) == 16 ? "b128" : reg_type, true);
    if (b.extra().list.size() != b.out.count)
      b.fail("the vector has another number of registers than ." + b.get("vec"));
    b.out.aux = 8;
  } else {
    b.out.d = b.dest(0, type_bytes(type) == 16 ? "b128" : reg_type);
    if (b.op(0).reg >= 0)
      b.out.aux = type_bytes(b.program.source->regs[static_cast<size_t>(b.op(0).reg)].type);
  }
  cache_policy(b, 2);
}

void build_store(Build& b) {
  common(b, b.op(0));
  b.out.fn = store;
  const std::string type = b.get("type");
  const std::string value_type = type_bytes(type) == 16 ? "b128" : type;
  if (b.has("vec")) {
    b.extra().list = b.list(b.op(1), value_type, false);
    if (b.extra().list.size() != b.out.count)
      b.fail("the vector has another number of registers than ." + b.get("vec"));
  } else {
    b.out.b = b.value(1, value_type);
  }
  cache_policy(b, 2);
}

Flow nothing(Exec&, const Instr&) { return Flow::kNext; }

Flow prefetch(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  e.need(a, "an address");
  return Flow::kNext;
}
void build_prefetch(Build& b) {
  b.out.fn = prefetch;
  b.out.a = b.address(0, &b.out.imm);
}
void build_policy(Build& b) {
  // createpolicy: the result is only ever a hint; any defined value will do.
  b.out.fn = [](Exec& e, const Instr& i) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) { d.v[l] = 0x10F0000000000000ull; });
    d.clean(e.mask);
    return Flow::kNext;
  };
  b.out.d = b.dest(0, "b64");
}

// st.bulk: zeros `size` bytes of own shared memory; an ordinary weak write of the generic proxy.
Flow st_bulk(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &n = e.src(i.b);
  e.need(a, "an address", 4);
  e.need(n, "a size");
  for_lanes(e.mask, [&](int l) {
    const uint64_t address = address_of(e, a, i, l, static_cast<Space>(i.space)), size = n.v[l];
    if (size % 8 != 0)
      throw Fault("misaligned",
                  format("st.bulk of %llu bytes: the size must be a multiple of 8",
                         static_cast<unsigned long long>(size)),
                  l, address);
    if (size == 0) return;
    const Place p =
        resolve(e, static_cast<Space>(i.space), address, static_cast<uint32_t>(size), l, 8);
    check_generic(e, p, static_cast<uint32_t>(size), true, l, address);
    if (e.world.races)
      race_access(e, p, static_cast<uint32_t>(size), l, RaceKind::kWrite, kWeak, 0);
    std::memset(p.data(), 0, size);
    std::memset(p.shadow(), 0, size);
    note_generic_write(e, p, static_cast<uint32_t>(size), l);
  });
  event(e.world);
  return Flow::kNext;
}
void build_st_bulk(Build& b) {
  b.out.fn = st_bulk;
  b.out.space = static_cast<uint8_t>(b.get("space") == "" ? Space::kGeneric : Space::kShared);
  b.out.a = b.address(0, &b.out.imm);
  b.out.b = b.value(1, "b64");
  if (b.op(2).kind != Operand::kInt || b.op(2).imm != 0)
    b.fail("the value of st.bulk must be the immediate 0");
}

constexpr Form kForms[] = {
    {"ld {sem:weak,volatile,relaxed,acquire,mmio} {scope:@scope} {space:@space} {cop:@cache} {nc} "
     "{evict:@evict} {evict2:@evict} {L2::cache_hint} {prefetch:@prefetch} {vec:v2,v4,v8} "
     "<type:@any>",
     2, 3, Class::kGlobal, build_load},
    {"ldu {space:global} {vec:v2,v4} <type:@any>", 2, 2, Class::kGlobal, build_load},
    {"st {sem:weak,volatile,relaxed,release,mmio} {scope:@scope} {space:@space} {cop:@cache} "
     "{evict:@evict} {evict2:@evict} {L2::cache_hint} {vec:v2,v4,v8} <type:@any>",
     2, 3, Class::kGlobal, build_store},
    {"st <bulk> {weak} {space:shared::cta}", 3, 3, Class::kShared, build_st_bulk},
    {"prefetch {space:global,local} <level:L1,L2,L2::evict_last,L2::evict_normal>", 1, 1,
     Class::kOther, build_prefetch},
    {"prefetch {space:param,const} <tensormap>", 1, 1, Class::kOther, build_prefetch},
    {"prefetchu <level:L1>", 1, 1, Class::kOther, build_prefetch},
    {"applypriority {space:global} <level:L2::evict_normal>", 2, 2, Class::kOther, build_prefetch},
    {"createpolicy <kind:fractional,range> {space:global} {evict:@evict} "
     "{evict2:@evict,L2::evict_unchanged} <type:b64>",
     1, 4, Class::kOther, build_policy},
    {"createpolicy <cvt> <L2> <type:b64>", 2, 2, Class::kOther, build_policy},
};

}  // namespace

void forms_memory(std::vector<Form>& forms) {
  (void)nothing;
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
