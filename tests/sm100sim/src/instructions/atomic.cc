// atom and red on global, shared and shared::cluster memory. Lanes of one instruction take effect
// one after the other, in an order drawn from the seed, since the text promises none.

#include <algorithm>
#include <cmath>

#include "checks/race.h"
#include "instructions/lanes.h"
#include "instructions/order.h"
#include "memory/access.h"
#include "numerics/arith.h"

namespace sm100sim {
namespace {

namespace nm = numerics;
enum Op : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };
enum Type : uint8_t { kU, kS, kF32, kF64, kF16, kBf16, kF16x2, kBf16x2 };

uint64_t combine(uint8_t op, uint8_t type, int bytes, uint64_t old, uint64_t b, uint64_t c) {
  const uint64_t keep = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
  switch (type) {
    case kF32:
      return op == kAdd ? nm::add_f32(static_cast<uint32_t>(old), static_cast<uint32_t>(b))
                        : nm::min_max(nm::Format::kF32, static_cast<uint32_t>(old),
                                      static_cast<uint32_t>(b), op == kMax);
    case kF64:
      return bits<double>(as<double>(old) + as<double>(b));
    case kF16:
    case kBf16: {
      const auto f = type == kF16 ? nm::Format::kF16 : nm::Format::kBf16;
      return op == kAdd ? nm::add_half(f, static_cast<uint16_t>(old), static_cast<uint16_t>(b))
                        : nm::min_max(f, old & 0xffff, b & 0xffff, op == kMax);
    }
    case kF16x2:
    case kBf16x2: {
      const auto f = type == kF16x2 ? nm::Format::kF16 : nm::Format::kBf16;
      return op == kAdd ? nm::add_half2(f, static_cast<uint32_t>(old), static_cast<uint32_t>(b))
                        : nm::min_max_half2(f, static_cast<uint32_t>(old), static_cast<uint32_t>(b),
                                            op == kMax);
    }
    default:
      break;
  }
  const int up = 64 - 8 * bytes;
  const auto sx = [up](uint64_t v) { return static_cast<int64_t>(v << up) >> up; };
  b &= keep;
  switch (op) {
    case kAdd:
      return (old + b) & keep;
    case kMin:
      return type == kS ? (sx(b) < sx(old) ? b : old) : std::min(old, b);
    case kMax:
      return type == kS ? (sx(b) > sx(old) ? b : old) : std::max(old, b);
    case kInc:
      return old >= b ? 0 : old + 1;
    case kDec:
      return old == 0 || old > b ? b : old - 1;
    case kAnd:
      return old & b;
    case kOr:
      return old | b;
    case kXor:
      return old ^ b;
    case kExch:
      return b;
    default:
      return old == b ? c & keep : old;
  }
}

Flow atomic(Exec& e, const Instr& i) {
  const Space space = static_cast<Space>(i.space);
  const Reg& a = e.src(i.a);
  const bool shared = space == Space::kShared || space == Space::kSharedCluster;
  e.need(a, "an address", shared ? 4 : 8);
  const Extra* x = i.extra >= 0 ? &e.program->extras[static_cast<size_t>(i.extra)] : nullptr;
  const uint8_t op = i.flags & 15, type = i.flags >> 4;
  const uint32_t bytes = i.bytes, total = bytes * i.count;
  if (i.order == kRelease || i.order == kAcqRel) race_release_prepare(e, i.scope);
  const int turn = static_cast<int>(e.world.rng() % kLanes);
  bool changed = false;
  for (int k = 0; k < kLanes; ++k) {
    const int l = (k + turn) % kLanes;
    if (!(e.mask >> l & 1)) continue;
    uint64_t address = a.v[l] + static_cast<uint64_t>(i.imm);
    if (shared) address &= 0xffffffff;
    const Place p = resolve(e, space, address, total, l, total);
    if (p.block == e.cta.local.get() || p.block == e.grid.param_block.get())
      throw Fault("out-of-bounds", "an atomic needs global or shared memory", l, address);
    check_generic(e, p, total, true, l, address);
    if (e.world.races) race_access(e, p, total, l, RaceKind::kStrongWrite, i.order, i.scope);
    for (uint32_t v = 0; v < i.count; ++v) {
      const Ref& br = x && !x->list2.empty() ? x->list2[v] : i.b;
      const Reg& b = e.src(br);
      const Reg& c = i.c ? e.src(i.c) : b;
      uint8_t* data = p.data() + v * bytes;
      uint8_t* shadow = p.shadow() + v * bytes;
      uint64_t old = 0, next[2] = {};
      uint64_t old_high = 0;
      std::memcpy(&old, data, std::min(bytes, 8u));
      const bool old_poison = shadow_bits(shadow, bytes) & kPoison;
      bool bad = b.poison(l) & byte_mask(bytes);
      if (op != kExch) bad |= old_poison;
      if (op == kCas) bad |= (c.poison(l) & byte_mask(bytes)) != 0;
      if (bytes == 16) {
        std::memcpy(&old_high, data + 8, 8);
        const auto high = [&](const Ref& r) { return e.regs[r.index + 1].v[l]; };
        const bool hit = op == kExch || (old == b.v[l] && old_high == high(br));
        const Ref& source = op == kExch ? br : i.c;
        next[0] = hit ? e.src(source).v[l] : old;
        next[1] = hit ? high(source) : old_high;
      } else {
        next[0] = combine(op, type, static_cast<int>(bytes), old, b.v[l], c.v[l]);
      }
      changed |= next[0] != old || next[1] != old_high;
      std::memcpy(data, &next[0], std::min(bytes, 8u));
      if (bytes == 16) std::memcpy(data + 8, &next[1], 8);
      std::memset(shadow, bad ? kPoison : 0, bytes);
      const Ref& dr = x && !x->list.empty() ? x->list[v] : i.d;
      if (dr) {
        e.dst(dr).v[l] = old;
        e.dst(dr).set_poison(l, old_poison ? 0xff : 0);
        if (bytes == 16) {
          e.regs[dr.index + 1].v[l] = old_high;
          e.regs[dr.index + 1].set_poison(l, old_poison ? 0xff : 0);
        }
      }
    }
    note_generic_write(e, p, total, l);
    if (!shared && p.cta == nullptr) count_global(e, *p.block, total, true);
  }
  if (changed) event(e.world);
  e.polled();
  return Flow::kNext;
}

void build_atomic(Build& b) {
  static const std::map<std::string, Op> kOps = {
      {"add", kAdd}, {"min", kMin}, {"max", kMax}, {"inc", kInc},   {"dec", kDec},
      {"and", kAnd}, {"or", kOr},   {"xor", kXor}, {"exch", kExch}, {"cas", kCas}};
  static const std::map<std::string, Type> kTypes = {{"f32", kF32},     {"f64", kF64},
                                                     {"f16", kF16},     {"bf16", kBf16},
                                                     {"f16x2", kF16x2}, {"bf16x2", kBf16x2}};
  const std::string t = b.get("type"), s = b.get("space");
  const Op op = kOps.at(b.get("op"));
  const auto ft = kTypes.find(t);
  const Type type = ft != kTypes.end() ? ft->second : t[0] == 's' ? kS : kU;
  if (ft != kTypes.end() && op != kAdd && op != kMin && op != kMax)
    b.fail("floating-point atomics are add, min and max");
  const bool is_red = b.st.base == "red";
  const bool cas = op == kCas;
  b.out.fn = atomic;
  b.out.flags = static_cast<uint8_t>(op | type << 4);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.count = b.has("vec") ? static_cast<uint8_t>(b.get("vec")[1] - '0') : 1;
  b.out.space = static_cast<uint8_t>(s == "global"                         ? Space::kGlobal
                                     : s == "shared" || s == "shared::cta" ? Space::kShared
                                     : s == "shared::cluster"              ? Space::kSharedCluster
                                                                           : Space::kGeneric);
  b.out.order = order_of(b.get("sem", "relaxed"));
  b.out.scope = b.has("scope") ? scope_of(b.get("scope")) : static_cast<uint8_t>(kScopeGpu);
  const std::string reg_type = b.out.bytes == 16                  ? "b128"
                               : b.out.bytes == 8                 ? "b64"
                               : b.out.bytes == 2                 ? "b16"
                               : ft != kTypes.end() && t == "f32" ? "f32"
                                                                  : "b32";
  size_t at = 0;
  if (!is_red) {
    const Operand& d = b.op(at++);
    if (b.has("vec"))
      b.extra().list = b.list(d, reg_type, true);
    else
      b.out.d = b.dest(d, reg_type);
  }
  b.out.a = b.address(at++, &b.out.imm);
  const Operand& v = b.op(at++);
  if (b.has("vec")) {
    b.extra().list2 = b.list(v, reg_type, false);
    if (b.extra().list2.size() != b.out.count)
      b.fail("the vector has another number of registers than ." + b.get("vec"));
  } else {
    b.out.b = b.value(v, reg_type);
  }
  if (cas) b.out.c = b.value(at++, reg_type);
  if (b.has("L2::cache_hint")) b.value(at++, "b64");
  if (b.count() > at) b.fail("one operand too many");
}

#define QUALS                                              \
  " {sem:relaxed,acquire,release,acq_rel} {scope:@scope} " \
  "{space:global,shared,shared::cta,shared::cluster} {L2::cache_hint} {vec:v2,v4,v8} "
constexpr Form kForms[] = {
    {"atom" QUALS "<op:add,min,max,inc,dec,and,or,xor,exch,cas> {noftz} "
     "<type:b16,b32,b64,b128,u32,u64,s32,s64,f32,f64,f16,bf16,f16x2,bf16x2>",
     3, 5, Class::kAtomic, build_atomic},
    {"red" QUALS "<op:add,min,max,inc,dec,and,or,xor> {noftz} "
     "<type:b32,b64,u32,u64,s32,s64,f32,f64,f16,bf16,f16x2,bf16x2>",
     2, 3, Class::kAtomic, build_atomic},
};
#undef QUALS

}  // namespace

void forms_atomic(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
