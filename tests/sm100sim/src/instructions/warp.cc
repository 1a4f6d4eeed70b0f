// Warp-wide instructions: shuffles, votes, matches, reductions, elect, activemask, bar.warp.sync.
// All members named by the mask take part; those in other fragments are gathered first.

#include "checks/race.h"
#include "instructions/lanes.h"
#include "numerics/arith.h"

namespace sm100sim {
namespace {

/// Union of the lanes' member masks; false when some have not come yet.
bool members(Exec& e, const Ref& mask, uint32_t* out, bool any_place = false) {
  const Reg& m = e.src(mask);
  e.need(m, "a member mask", 4);
  uint32_t all = 0;
  for_lanes(e.mask, [&](int l) {
    const uint32_t v = static_cast<uint32_t>(m.v[l]);
    if (!(v >> l & 1))
      throw Fault(
          "member-mask",
          format("lane %d executes the instruction but its member mask 0x%08x does not name it", l,
                 v),
          l);
    all |= v;
  });
  *out = all;
  return e.gather(all, any_place);
}

Flow shfl(Exec& e, const Instr& i) {
  uint32_t group;
  if (!members(e, i.e, &group)) return Flow::kWait;
  const Reg &a = e.src(i.a), &b = e.src(i.b), &c = e.src(i.c);
  e.need(b, "the lane of a shuffle", 4);
  e.need(c, "the clamp of a shuffle", 4);
  uint64_t v[kLanes];
  uint8_t p[kLanes];
  uint32_t in_range = 0;
  const Reg& mask = e.src(i.e);
  for_lanes(e.mask, [&](int lane) {
    const uint32_t x = static_cast<uint32_t>(b.v[lane]) & 31, clamp = c.v[lane] & 31,
                   segment = c.v[lane] >> 8 & 31, l = static_cast<uint32_t>(lane);
    const uint32_t max_lane = (l & segment) | (clamp & ~segment), min_lane = l & segment;
    uint32_t j = 0;
    bool ok = false;
    switch (i.flags) {
      case 0:
        j = l - x, ok = static_cast<int32_t>(l - x) >= static_cast<int32_t>(max_lane);
        break;  // up
      case 1:
        j = l + x, ok = j <= max_lane;
        break;  // down
      case 2:
        j = l ^ x, ok = j <= max_lane;
        break;  // bfly
      default:
        j = min_lane | (x & ~segment), ok = j <= max_lane;
        break;  // idx
    }
    if (!ok) j = l;
    if (ok) in_range |= 1u << lane;
    const bool there =
        (e.mask >> (j & 31) & 1) && (static_cast<uint32_t>(mask.v[lane]) >> (j & 31) & 1);
    v[lane] = a.v[j & 31] & 0xffffffff;
    // A lane that does not take part gives an undefined value.
    p[lane] = there ? a.poison(static_cast<int>(j & 31)) & 15 : 15;
  });
  if (i.d) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) {
      d.v[l] = v[l];
      d.set_poison(l, p[l]);
    });
  }
  e.set_pred(i.d2, e.mask, in_range, 0);
  return Flow::kNext;
}
void build_shfl(Build& b) {
  b.out.fn = shfl;
  const std::string m = b.get("mode");
  b.out.flags = m == "up" ? 0 : m == "down" ? 1 : m == "bfly" ? 2 : 3;
  b.out.d = b.dest(0, "b32");
  if (!b.op(0).pair.empty()) b.out.d2 = b.pred_dest(b.op(0).pair[0]);
  b.out.a = b.value(1, "b32");
  b.out.b = b.value(2, "b32");
  b.out.c = b.value(3, "b32");
  b.out.e = b.value(4, "b32");
}

Flow vote(Exec& e, const Instr& i) {
  uint32_t group;
  if (!members(e, i.e, &group)) return Flow::kWait;
  const Reg& mask = e.src(i.e);
  const uint32_t p = e.pred(i.a, e.mask, false), bad = e.pred_poison(i.a) & e.mask;
  uint32_t result = 0, result_bad = 0;
  uint32_t ballots[kLanes];
  for_lanes(e.mask, [&](int l) {
    const uint32_t m = static_cast<uint32_t>(mask.v[l]) & e.mask, yes = p & m;
    if (bad & m) result_bad |= 1u << l;
    ballots[l] = yes;
    const bool r = i.flags == 1   ? yes == m
                   : i.flags == 2 ? yes != 0
                   : i.flags == 3 ? yes == 0 || yes == m
                                  : false;
    result |= static_cast<uint32_t>(r) << l;
  });
  if (i.flags == 0) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) { d.v[l] = ballots[l]; });
    mark(d, e.mask, result_bad);
  } else {
    e.set_pred(i.d, e.mask, result, result_bad);
  }
  return Flow::kNext;
}
void build_vote(Build& b) {
  const std::string m = b.get("mode");
  b.out.fn = vote;
  b.out.flags = m == "ballot" ? 0 : m == "all" ? 1 : m == "any" ? 2 : 3;
  b.out.d = m == "ballot" ? b.dest(0, "b32") : b.pred_dest(b.op(0));
  b.out.a = b.pred(1);
  b.out.e = b.value(2, "b32");
}

Flow match(Exec& e, const Instr& i) {
  uint32_t group;
  if (!members(e, i.e, &group)) return Flow::kWait;
  const Reg &a = e.src(i.a), &mask = e.src(i.e);
  e.need(a, "a matched value", i.bytes);
  const uint64_t keep = i.bytes >= 8 ? ~0ull : 0xffffffffull;
  uint32_t r[kLanes], all = 0;
  for_lanes(e.mask, [&](int l) {
    r[l] = 0;
    const uint32_t m = static_cast<uint32_t>(mask.v[l]) & e.mask;
    for_lanes(
        m, [&](int k) { r[l] |= static_cast<uint32_t>((a.v[k] & keep) == (a.v[l] & keep)) << k; });
    if (i.flags) {
      if (r[l] == m)
        all |= 1u << l;
      else
        r[l] = 0;
    }
  });
  if (i.d) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) { d.v[l] = r[l]; });
    d.clean(e.mask);
  }
  e.set_pred(i.d2, e.mask, all, 0);
  return Flow::kNext;
}
void build_match(Build& b) {
  b.out.fn = match;
  b.out.flags = b.get("mode") == "all";
  b.out.bytes = static_cast<uint8_t>(type_bytes(b.get("type")));
  b.out.d = b.dest(0, "b32");
  if (!b.op(0).pair.empty()) b.out.d2 = b.pred_dest(b.op(0).pair[0]);
  b.out.a = b.value(1, b.get("type"));
  b.out.e = b.value(2, "b32");
}

Flow redux(Exec& e, const Instr& i) {
  uint32_t group;
  if (!members(e, i.e, &group)) return Flow::kWait;
  const Reg &a = e.src(i.a), &mask = e.src(i.e);
  const uint32_t bad = poisoned(a, e.mask, 4);
  uint32_t r[kLanes], out_bad = 0;
  for_lanes(e.mask, [&](int l) {
    const uint32_t m = static_cast<uint32_t>(mask.v[l]) & e.mask;
    if (bad & m) out_bad |= 1u << l;
    bool first = true;
    for_lanes(m, [&](int k) {
      uint32_t v = static_cast<uint32_t>(a.v[k]);
      if (i.flags >= 8 && i.scope) v &= 0x7fffffff;
      if (first) {
        r[l] = v;
        first = false;
        return;
      }
      switch (i.flags) {
        case 0:
          r[l] += v;
          break;
        case 1:
          r[l] = std::min(r[l], v);
          break;
        case 2:
          r[l] = std::max(r[l], v);
          break;
        case 3:
          r[l] =
              static_cast<uint32_t>(std::min(static_cast<int32_t>(r[l]), static_cast<int32_t>(v)));
          break;
        case 4:
          r[l] =
              static_cast<uint32_t>(std::max(static_cast<int32_t>(r[l]), static_cast<int32_t>(v)));
          break;
        case 5:
          r[l] &= v;
          break;
        case 6:
          r[l] |= v;
          break;
        case 7:
          r[l] ^= v;
          break;
        default:
          r[l] = numerics::min_max(numerics::Format::kF32, r[l], v, i.flags == 9,
                                   {false, i.order != 0, false, false});
          break;
      }
    });
  });
  Reg& d = e.dst(i.d);
  for_lanes(e.mask, [&](int l) { d.v[l] = r[l]; });
  mark(d, e.mask, out_bad);
  return Flow::kNext;
}
void build_redux(Build& b) {
  const std::string op = b.get("op"), t = b.get("type");
  const bool s = t == "s32", f = t == "f32";
  b.out.fn = redux;
  b.out.flags = static_cast<uint8_t>(op == "add"   ? 0
                                     : op == "min" ? (f   ? 8
                                                      : s ? 3
                                                          : 1)
                                     : op == "max" ? (f   ? 9
                                                      : s ? 4
                                                          : 2)
                                     : op == "and" ? 5
                                     : op == "or"  ? 6
                                                   : 7);
  b.out.order = b.has("NaN");
  b.out.scope = b.has("abs");
  b.out.d = b.dest(0, "b32");
  b.out.a = b.value(1, "b32");
  b.out.e = b.value(2, "b32");
}

// Which member is elected is not specified: a hostile choice, the same for the same mask within a
// launch.
Flow elect(Exec& e, const Instr& i) {
  uint32_t group;
  if (!members(e, i.e, &group)) return Flow::kWait;
  const uint32_t m = group & e.mask;
  int lane = first_lane(m);
  if (e.options().rules == Rules::kStrict) {
    const uint32_t pick = static_cast<uint32_t>((e.options().seed * 2654435761u + m) %
                                                static_cast<uint32_t>(__builtin_popcount(m)));
    uint32_t rest = m;
    for (uint32_t k = 0; k < pick; ++k) rest &= rest - 1;
    lane = first_lane(rest);
  }
  if (i.d) {
    Reg& d = e.dst(i.d);
    for_lanes(e.mask, [&](int l) { d.v[l] = static_cast<uint64_t>(lane); });
    d.clean(e.mask);
  }
  e.set_pred(i.d2, e.mask, 1u << lane, 0);
  return Flow::kNext;
}
void build_elect(Build& b) {
  b.out.fn = elect;
  b.out.d = b.dest(0, "b32");
  if (b.op(0).pair.empty()) b.fail("elect.sync needs d|p");
  b.out.d2 = b.pred_dest(b.op(0).pair[0]);
  b.out.e = b.value(1, "b32");
}

Flow activemask(Exec& e, const Instr& i) {
  Reg& d = e.dst(i.d);
  const uint32_t m = e.mask;
  for_lanes(e.mask, [&](int l) { d.v[l] = m; });
  d.clean(e.mask);
  return Flow::kNext;
}

Flow warp_sync(Exec& e, const Instr& i) {
  uint32_t group;
  const Reg& m = e.src(i.e);
  e.need(m, "a member mask", 4);
  const uint32_t here = e.mask;
  if (!members(e, i.e, &group, true)) return Flow::kWait;
  race_warp_sync(e, e.mask);
  e.mask = here;
  return Flow::kNext;
}

constexpr Form kForms[] = {
    {"shfl <sync> <mode:up,down,bfly,idx> <type:b32>", 5, 5, Class::kWarp, build_shfl},
    {"vote <sync> <mode:all,any,uni,ballot> <type:pred,b32>", 3, 3, Class::kWarp, build_vote},
    {"match <mode:any,all> <sync> <type:b32,b64>", 3, 3, Class::kWarp, build_match},
    {"redux <sync> <op:add,min,max,and,or,xor> {abs} {NaN} <type:u32,s32,b32,f32>", 3, 3,
     Class::kWarp, build_redux},
    {"elect <sync>", 2, 2, Class::kWarp, build_elect},
    {"activemask <type:b32>", 1, 1, Class::kWarp,
     [](Build& b) {
       b.out.fn = activemask;
       b.out.d = b.dest(0, "b32");
     }},
    {"bar <warp> <sync>", 1, 1, Class::kWarp,
     [](Build& b) {
       b.out.fn = warp_sync;
       b.out.e = b.value(0, "b32");
     }},
    {"barrier <warp> <sync>", 1, 1, Class::kWarp,
     [](Build& b) {
       b.out.fn = warp_sync;
       b.out.e = b.value(0, "b32");
     }},
};

}  // namespace

void forms_warp(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
