// mov with packing and unpacking and addresses, cvta, isspacep, mapa, getctarank.

#include "instructions/lanes.h"
#include "machine/link.h"

namespace sm100sim {
namespace {

template <int Bytes>
Flow mov(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  Reg& d = e.dst(i.d);
  constexpr uint64_t kKeep = Bytes >= 8 ? ~0ull : (1ull << (8 * Bytes)) - 1;
  if ((a.pl & e.mask) == 0) [[likely]] {
    for_lanes(e.mask, [&](int l) { d.v[l] = a.v[l] & kKeep; });
    d.pl &= ~e.mask;
  } else {
    for_lanes(e.mask, [&](int l) {
      const uint8_t p = a.poison(l) & byte_mask(Bytes);
      d.v[l] = a.v[l] & kKeep;
      d.set_poison(l, p);
    });
  }
  return Flow::kNext;
}

Flow mov128(Exec& e, const Instr& i) {
  for (int h = 0; h < 2; ++h) {
    const Reg& a = e.regs[i.a.index + h];
    Reg& d = e.regs[i.d.index + h];
    for_lanes(e.mask, [&](int l) {
      const uint8_t p = a.poison(l);
      d.v[l] = a.v[l];
      d.set_poison(l, p);
    });
  }
  return Flow::kNext;
}

Flow mov_pred(Exec& e, const Instr& i) {
  e.set_pred(i.d, e.mask, e.pred(i.a, e.mask, false), e.pred_poison(i.a));
  return Flow::kNext;
}

Flow mov_address(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  Reg& d = e.dst(i.d);
  const uint64_t add = static_cast<uint64_t>(i.imm) + (i.flags & 0x80 ? e.frame->local_base : 0);
  const uint64_t keep = i.bytes >= 8 ? ~0ull : 0xffffffffull;
  for_lanes(e.mask, [&](int l) { d.v[l] = (a.v[l] + add) & keep; });
  d.clean(e.mask);
  return Flow::kNext;
}

// d = {a, b, ...}, first in the low bits.
Flow pack(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const int part = i.bytes;
  uint64_t v[2][kLanes] = {};
  uint16_t p[kLanes] = {};
  int at = 0;
  for (const Ref& r : x.list) {
    const Reg& s = e.src(r);
    for_lanes(e.mask, [&](int l) {
      const uint64_t piece = part >= 8 ? s.v[l] : s.v[l] & ((1ull << (8 * part)) - 1);
      v[at / 8][l] |= piece << (8 * (at % 8));
      p[l] =
          static_cast<uint16_t>(p[l] | (s.poison(l) & byte_mask(static_cast<size_t>(part))) << at);
    });
    at += part;
  }
  for (int h = 0; h < (at > 8 ? 2 : 1); ++h) {
    Reg& d = e.regs[i.d.index + h];
    for_lanes(e.mask, [&](int l) {
      d.v[l] = v[h][l];
      d.set_poison(l, static_cast<uint8_t>(p[l] >> (8 * h)));
    });
  }
  return Flow::kNext;
}

Flow unpack(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const int part = i.bytes;
  uint64_t v[2][kLanes];
  uint8_t p[2][kLanes];
  for (int h = 0; h < (i.count > 8 ? 2 : 1); ++h) {
    const Reg& s = i.a.kind == Ref::kReg ? e.regs[i.a.index + h] : e.src(i.a);
    for_lanes(e.mask, [&](int l) {
      v[h][l] = s.v[l];
      p[h][l] = s.poison(l);
    });
  }
  int at = 0;
  for (const Ref& r : x.list) {
    if (r) {
      Reg& d = e.dst(r);
      for_lanes(e.mask, [&](int l) {
        d.v[l] =
            part >= 8 ? v[at / 8][l] : v[at / 8][l] >> (8 * (at % 8)) & ((1ull << (8 * part)) - 1);
        d.set_poison(l, static_cast<uint8_t>(p[at / 8][l] >> (at % 8)) &
                            byte_mask(static_cast<size_t>(part)));
      });
    }
    at += part;
  }
  return Flow::kNext;
}

std::string part_type(int bytes) { return "b" + std::to_string(8 * bytes); }

void build_mov(Build& b) {
  const std::string t = b.get("type");
  const Operand &d = b.op(0), &a = b.op(1);
  if (t == "pred") {
    b.out.fn = mov_pred;
    b.out.d = b.pred_dest(d);
    b.out.a = b.pred(a);
    return;
  }
  const int total = type_bytes(t);
  if (a.kind == Operand::kVector || d.kind == Operand::kVector) {
    const Operand& v = a.kind == Operand::kVector ? a : d;
    const int n = static_cast<int>(v.items.size());
    if (n == 0 || total % n != 0) b.fail("the parts do not fill the ." + t + " value");
    b.out.bytes = static_cast<uint8_t>(total / n);
    b.out.count = static_cast<uint8_t>(total);
    if (a.kind == Operand::kVector) {
      b.out.fn = pack;
      b.out.d = b.dest(d, t);
      b.extra().list = b.list(a, part_type(total / n), false);
    } else {
      b.out.fn = unpack;
      b.out.a = b.value(a, t);
      b.extra().list = b.list(d, part_type(total / n), true);
    }
    return;
  }
  b.out.d = b.dest(d, t);
  if (!b.out.d) b.fail("a destination register is needed");
  if (a.kind == Operand::kSymbol && a.name != "WARP_SZ") {
    b.out.fn = mov_address;
    b.out.bytes = static_cast<uint8_t>(total);
    b.out.a = b.address(a, &b.out.imm);
    return;
  }
  b.out.a = b.value(a, t);
  b.out.fn = total == 1   ? mov<1>
             : total == 2 ? mov<2>
             : total == 4 ? mov<4>
             : total == 8 ? mov<8>
                          : mov128;
  if (total == 16 && b.out.a.kind != Ref::kReg) b.fail("a .b128 source must be a register");
}

uint64_t window(const std::string& space) {
  if (space == "shared" || space == "shared::cta" || space == "shared::cluster")
    return kSharedWindow;
  if (space == "local") return kLocalWindow;
  return 0;
}

// imm is added; going back from a generic address checks the window.
Flow cvta(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  Reg& d = e.dst(i.d);
  const bool back = i.flags & 1;
  const uint64_t w = static_cast<uint64_t>(i.aux) << 32;
  const uint32_t bad = poisoned(a, e.mask, i.bytes);
  for_lanes(e.mask, [&](int l) {
    if (back) {
      // A pointer of another space (a null pointer, say) may be converted as long as nobody uses
      // it.
      d.v[l] = a.v[l] - w;
      if (i.bytes == 4) d.v[l] &= 0xffffffff;
    } else {
      d.v[l] = (i.bytes == 4 ? a.v[l] & 0xffffffff : a.v[l]) + w + static_cast<uint64_t>(i.imm) +
               (i.flags & 0x80 ? e.frame->local_base : 0);
    }
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_cvta(Build& b) {
  b.out.fn = cvta;
  b.out.bytes = static_cast<uint8_t>(type_bytes(b.get("type")));
  b.out.flags = b.has("to") ? 1 : 0;
  b.out.aux = static_cast<int32_t>(window(b.get("space")) >> 32);
  b.out.d = b.dest(0, b.get("type"));
  b.out.a = b.op(1).kind == Operand::kSymbol ? b.address(1, &b.out.imm) : b.value(1, b.get("type"));
}

Flow isspacep(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  uint32_t r = 0;
  for_lanes(e.mask, [&](int l) {
    const uint64_t v = a.v[l];
    const auto in = [v](uint64_t w) { return v >= w && v < w + kWindowBytes; };
    bool yes = false;
    switch (static_cast<Space>(i.space)) {
      case Space::kShared:
        yes = in(kSharedWindow) && (v - kSharedWindow) >> kRankShift == e.cta.rank;
        break;
      case Space::kSharedCluster:
        yes = in(kSharedWindow);
        break;
      case Space::kLocal:
        yes = in(kLocalWindow);
        break;
      case Space::kParam:
        yes = in(kParamWindow);
        break;
      default:
        yes = v >= kDeviceBase || (!in(kSharedWindow) && !in(kLocalWindow) && !in(kParamWindow));
        break;
    }
    r |= static_cast<uint32_t>(yes) << l;
  });
  e.set_pred(i.d, e.mask, r, poisoned(a, e.mask, 8));
  return Flow::kNext;
}
void build_isspacep(Build& b) {
  static const std::map<std::string, Space> kSpaces = {{"global", Space::kGlobal},
                                                       {"const", Space::kConst},
                                                       {"shared", Space::kShared},
                                                       {"shared::cta", Space::kShared},
                                                       {"shared::cluster", Space::kSharedCluster},
                                                       {"local", Space::kLocal},
                                                       {"param", Space::kParam},
                                                       {"param::entry", Space::kParam}};
  b.out.fn = isspacep;
  b.out.space = static_cast<uint8_t>(kSpaces.at(b.get("space")));
  b.out.d = b.pred_dest(b.op(0));
  b.out.a = b.value(1, "b64");
}

Flow mapa(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  Reg& d = e.dst(i.d);
  e.need(b, "the CTA rank of mapa", 4);
  const uint32_t bad = poisoned(a, e.mask, i.bytes);
  const uint32_t size = static_cast<uint32_t>(e.cta.cluster->ctas.size());
  for_lanes(e.mask, [&](int l) {
    const uint32_t rank = static_cast<uint32_t>(b.v[l]);
    if (rank >= size)
      throw Fault("out-of-bounds", format("mapa to CTA %u of a cluster of %u", rank, size), l);
    const uint64_t base = i.flags & 1 ? a.v[l] - kSharedWindow : a.v[l] & 0xffffffff;
    const uint64_t v = (base & kSharedOffsetMask) + static_cast<uint64_t>(i.imm) +
                       (static_cast<uint64_t>(rank) << kRankShift);
    d.v[l] = i.flags & 1 ? v + kSharedWindow : v;
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
Flow getctarank(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  Reg& d = e.dst(i.d);
  const uint32_t bad = poisoned(a, e.mask, i.bytes);
  for_lanes(e.mask, [&](int l) {
    d.v[l] = ((i.flags & 1 ? a.v[l] - kSharedWindow : a.v[l] & 0xffffffff) +
              static_cast<uint64_t>(i.imm)) >>
             kRankShift;
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_mapa(Build& b) {
  const bool get = b.st.base == "getctarank", generic = !b.has("space");
  b.out.fn = get ? getctarank : mapa;
  b.out.flags = generic ? 1 : 0;
  b.out.bytes = static_cast<uint8_t>(type_bytes(b.get("type")));
  b.out.d = b.dest(0, get ? "u32" : b.get("type"));
  b.out.a = b.op(1).kind == Operand::kSymbol ? b.address(1, &b.out.imm) : b.value(1, b.get("type"));
  if (!get) b.out.b = b.value(2, "u32");
}

constexpr Form kForms[] = {
    {"mov "
     "<type:pred,b8,b16,b32,b64,b128,u8,u16,u32,u64,s8,s16,s32,s64,f32,f64,f16,bf16,f16x2,bf16x2>",
     2, 2, Class::kMove, build_mov},
    {"cvta {to} {space:const,global,local,shared,shared::cta,shared::cluster,param,param::entry} "
     "<type:u32,u64>",
     2, 2, Class::kMove, build_cvta},
    {"isspacep <space:const,global,local,shared,shared::cta,shared::cluster,param,param::entry>", 2,
     2, Class::kMove, build_isspacep},
    {"mapa {space:shared::cluster} <type:u32,u64>", 3, 3, Class::kMove, build_mapa},
    {"getctarank {space:shared::cluster} <type:u32,u64>", 2, 2, Class::kMove, build_mapa},
};

}  // namespace

void forms_move(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
