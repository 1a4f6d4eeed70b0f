// Logic, shifts and bit manipulation. These keep bytes apart, so poison is followed byte by byte
// where the operation allows it: masking a poisoned byte away with a known zero gives a defined
// result, as packing code does all the time.

#include "instructions/lanes.h"

namespace sm100sim {
namespace {

enum { kAnd, kOr, kXor };

uint8_t logic_poison(int op, uint64_t a, uint8_t pa, uint64_t b, uint8_t pb) {
  if (op == kXor) return pa | pb;
  uint8_t out = 0;
  for (int k = 0; k < 8; ++k) {
    const bool x = pa >> k & 1, y = pb >> k & 1;
    if (!x && !y) continue;
    const uint8_t dominant = op == kAnd ? 0x00 : 0xff;
    const bool decided = (!x && static_cast<uint8_t>(a >> (8 * k)) == dominant) ||
                         (!y && static_cast<uint8_t>(b >> (8 * k)) == dominant);
    if (!decided) out = static_cast<uint8_t>(out | 1 << k);
  }
  return out;
}

template <int Op, class T>
Flow logic(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  Reg& d = e.dst(i.d);
  const auto f = [](uint64_t x, uint64_t y) -> uint64_t {
    return static_cast<T>(Op == kAnd ? x & y : Op == kOr ? x | y : x ^ y);
  };
  if (((a.pl | b.pl) & e.mask) == 0) [[likely]] {
    for_lanes(e.mask, [&](int l) { d.v[l] = f(a.v[l], b.v[l]); });
    d.pl &= ~e.mask;
    return Flow::kNext;
  }
  for_lanes(e.mask, [&](int l) {
    const uint8_t p =
        logic_poison(Op, a.v[l], a.poison(l), b.v[l], b.poison(l)) & byte_mask(sizeof(T));
    d.v[l] = f(a.v[l], b.v[l]);
    d.set_poison(l, p);
  });
  return Flow::kNext;
}

template <int Op>
Flow logic_pred(Exec& e, const Instr& i) {
  const uint32_t a = e.pred(i.a, e.mask, false), b = e.pred(i.b, e.mask, false);
  const uint32_t pa = e.pred_poison(i.a), pb = e.pred_poison(i.b);
  uint32_t bad = pa | pb;
  if (Op == kAnd) bad &= ~((~pa & ~a) | (~pb & ~b));
  if (Op == kOr) bad &= ~((~pa & a) | (~pb & b));
  e.set_pred(i.d, e.mask, Op == kAnd ? a & b : Op == kOr ? a | b : a ^ b, bad);
  return Flow::kNext;
}

template <int Op>
void build_logic(Build& b) {
  const std::string t = b.get("type");
  if (t == "pred") {
    b.out.fn = logic_pred<Op>;
    b.out.d = b.pred_dest(b.op(0));
    b.out.a = b.pred(1);
    b.out.b = b.pred(2);
    return;
  }
  b.out.fn = t == "b16"   ? logic<Op, uint16_t>
             : t == "b32" ? logic<Op, uint32_t>
                          : logic<Op, uint64_t>;
  operands_same(b, t, 2);
}

template <class T>
Flow invert(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  Reg& d = e.dst(i.d);
  for_lanes(e.mask, [&](int l) {
    const uint8_t p = a.poison(l);
    d.v[l] = static_cast<T>(~a.v[l]);
    d.set_poison(l, p & byte_mask(sizeof(T)));
  });
  return Flow::kNext;
}
Flow invert_pred(Exec& e, const Instr& i) {
  e.set_pred(i.d, e.mask, ~e.pred(i.a, e.mask, false), e.pred_poison(i.a));
  return Flow::kNext;
}
void build_not(Build& b) {
  const std::string t = b.get("type");
  if (t == "pred") {
    b.out.fn = invert_pred;
    b.out.d = b.pred_dest(b.op(0));
    b.out.a = b.pred(1);
    return;
  }
  b.out.fn = t == "b16" ? invert<uint16_t> : t == "b32" ? invert<uint32_t> : invert<uint64_t>;
  operands_same(b, t, 1);
}
template <class T>
T cnot(T a) {
  return a == 0;
}
void build_cnot(Build& b) {
  const std::string t = b.get("type");
  b.out.fn = t == "b16"   ? op1<uint16_t, uint16_t, cnot<uint16_t>>
             : t == "b32" ? op1<uint32_t, uint32_t, cnot<uint32_t>>
                          : op1<uint64_t, uint64_t, cnot<uint64_t>>;
  operands_same(b, t, 1);
}

/// Poison bytes of a value shifted by `s` bits: every byte that receives a bit of a poisoned one.
uint8_t shift_poison(uint8_t p, unsigned s, bool left, bool arithmetic, unsigned bytes) {
  unsigned out = 0;
  for (unsigned k = 0; k < bytes; ++k) {
    if (!(p >> k & 1)) continue;
    if (left) {
      out |= 1u << (k + s / 8);
      if (s % 8) out |= 1u << (k + s / 8 + 1);
    } else {
      if (k >= s / 8) out |= 1u << (k - s / 8);
      if (s % 8 && k >= s / 8 + 1) out |= 1u << (k - s / 8 - 1);
      if (arithmetic && k + 1 == bytes) {
        const unsigned keep = s / 8 >= bytes ? 0 : bytes - 1 - s / 8;
        out |= (0xffu << keep) & 0xff;
      }
    }
  }
  return static_cast<uint8_t>(out & ((1u << bytes) - 1));
}

template <class T, bool Left>
Flow shift(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &s = e.src(i.b);
  Reg& d = e.dst(i.d);
  constexpr unsigned kBits = 8 * sizeof(T);
  const uint32_t bad_amount = (s.pl & e.mask) ? poisoned(s, e.mask, 4) : 0;
  const bool any = (a.pl & e.mask) | bad_amount;
  for_lanes(e.mask, [&](int l) {
    const uint32_t n = static_cast<uint32_t>(s.v[l]);
    const T x = static_cast<T>(a.v[l]);
    const uint8_t pa = any ? a.poison(l) : 0;
    T r;
    if (n >= kBits) {
      r = Left ? T{0} : static_cast<T>(std::is_signed_v<T> && x < 0 ? -1 : 0);
    } else {
      r = Left ? static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) << n)
               : static_cast<T>(x >> n);
    }
    d.v[l] = bits<T>(r);
    if (any)
      d.set_poison(
          l, (bad_amount >> l & 1) ? 0xff
             : n >= kBits && !(std::is_signed_v<T> && !Left)
                 ? 0
                 : shift_poison(pa, std::min(n, kBits), Left, std::is_signed_v<T>, sizeof(T)));
  });
  if (!any) d.pl &= ~e.mask;
  return Flow::kNext;
}
template <class T>
struct Shl {
  static Handler handler() { return shift<std::make_unsigned_t<T>, true>; }
};
template <class T>
struct Shr {
  static Handler handler() { return shift<T, false>; }
};
template <template <class> class Maker>
void build_shift(Build& b) {
  const std::string t = b.get("type");
  b.out.fn = by_integer<Maker>(t);
  b.out.d = b.dest(0, t);
  b.out.a = b.value(1, t);
  b.out.b = b.value(2, "u32");
}

uint32_t funnel_left(uint32_t lo, uint32_t hi, uint32_t n) {
  return n == 0 ? hi : n >= 32 ? lo : hi << n | lo >> (32 - n);
}
uint32_t funnel_right(uint32_t lo, uint32_t hi, uint32_t n) {
  return n == 0 ? lo : n >= 32 ? hi : lo >> n | hi << (32 - n);
}
template <bool Left, bool Wrap>
uint32_t funnel(uint32_t lo, uint32_t hi, uint32_t n) {
  n = Wrap ? n & 31 : std::min(n, 32u);
  return Left ? funnel_left(lo, hi, n) : funnel_right(lo, hi, n);
}
void build_shf(Build& b) {
  const bool left = b.get("side") == "l", wrap = b.get("mode") == "wrap";
  b.out.fn = left ? (wrap ? op3<uint32_t, uint32_t, uint32_t, uint32_t, funnel<true, true>>
                          : op3<uint32_t, uint32_t, uint32_t, uint32_t, funnel<true, false>>)
                  : (wrap ? op3<uint32_t, uint32_t, uint32_t, uint32_t, funnel<false, true>>
                          : op3<uint32_t, uint32_t, uint32_t, uint32_t, funnel<false, false>>);
  operands_same(b, "b32", 3);
}

// A result bit depends on an input only where the truth table does, so an operation that ignores a
// poisoned input is defined.
Flow lop3(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b), &c = e.src(i.c);
  Reg& d = e.dst(i.d);
  const unsigned lut = static_cast<unsigned>(i.imm);
  const auto eval = [lut](uint32_t x, uint32_t y, uint32_t z) {
    uint32_t r = 0;
    for (unsigned k = 0; k < 8; ++k) {
      if (lut >> k & 1) r |= (k & 4 ? x : ~x) & (k & 2 ? y : ~y) & (k & 1 ? z : ~z);
    }
    return r;
  };
  for_lanes(e.mask, [&](int l) {
    const uint32_t x = static_cast<uint32_t>(a.v[l]), y = static_cast<uint32_t>(b.v[l]),
                   z = static_cast<uint32_t>(c.v[l]);
    const uint8_t pa = a.poison(l), pb = b.poison(l), pc = c.poison(l);
    uint8_t p = 0;
    if (pa | pb | pc) {
      const auto spread = [](uint8_t m) {
        uint32_t w = 0;
        for (int k = 0; k < 4; ++k)
          if (m >> k & 1) w |= 0xffu << (8 * k);
        return w;
      };
      const uint32_t ma = spread(pa), mb = spread(pb), mc = spread(pc);
      uint32_t differs = 0;  // bits that change with some assignment of the poisoned inputs
      const uint32_t base = eval(x, y, z);
      for (unsigned k = 1; k < 8; ++k)
        differs |= base ^ eval(k & 4 ? x ^ ma : x, k & 2 ? y ^ mb : y, k & 1 ? z ^ mc : z);
      for (int k = 0; k < 4; ++k)
        if (differs >> (8 * k) & 0xff) p = static_cast<uint8_t>(p | 1 << k);
    }
    d.v[l] = eval(x, y, z);
    d.set_poison(l, p);
  });
  return Flow::kNext;
}
void build_lop3(Build& b) {
  b.out.fn = lop3;
  operands_same(b, "b32", 3);
  if (b.op(4).kind != Operand::kInt) b.fail("the table of lop3 must be an immediate");
  b.out.imm = b.op(4).imm & 0xff;
}

Flow prmt(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b), &c = e.src(i.c);
  Reg& d = e.dst(i.d);
  const uint32_t bad = poisoned(c, e.mask, 4);
  for_lanes(e.mask, [&](int l) {
    const uint64_t pool = (b.v[l] & 0xffffffff) << 32 | (a.v[l] & 0xffffffff);
    const uint8_t pp = static_cast<uint8_t>((b.poison(l) & 15) << 4 | (a.poison(l) & 15));
    const uint32_t s = static_cast<uint32_t>(c.v[l]);
    uint32_t r = 0;
    uint8_t p = 0;
    for (int k = 0; k < 4; ++k) {
      unsigned from, sign = 0;
      const unsigned n = s & 3;
      switch (i.flags) {
        case 1:
          from = (n + static_cast<unsigned>(k)) & 7;
          break;  // f4e
        case 2:
          from = (n - static_cast<unsigned>(k)) & 7;
          break;  // b4e
        case 3:
          from = n;
          break;  // rc8
        case 4:
          from = std::max(n, static_cast<unsigned>(k));
          break;  // ecl
        case 5:
          from = std::min(n, static_cast<unsigned>(k));
          break;  // ecr
        case 6:
          from = (n & 1) * 2 + (static_cast<unsigned>(k) & 1);
          break;  // rc16
        default:
          from = s >> (4 * k) & 7;
          sign = s >> (4 * k) & 8;
          break;
      }
      uint32_t byte = static_cast<uint32_t>(pool >> (8 * from)) & 0xff;
      if (sign) byte = byte & 0x80 ? 0xff : 0;
      r |= byte << (8 * k);
      if (pp >> from & 1) p = static_cast<uint8_t>(p | 1 << k);
    }
    d.v[l] = r;
    d.set_poison(l, (bad >> l & 1) ? 0xf : p);
  });
  return Flow::kNext;
}
void build_prmt(Build& b) {
  static const std::map<std::string, uint8_t> kModes = {
      {"", 0}, {"f4e", 1}, {"b4e", 2}, {"rc8", 3}, {"ecl", 4}, {"ecr", 5}, {"rc16", 6}};
  b.out.fn = prmt;
  b.out.flags = kModes.at(b.get("mode"));
  operands_same(b, "b32", 3);
}

uint32_t popc32(uint32_t a) { return static_cast<uint32_t>(__builtin_popcount(a)); }
uint32_t popc64(uint64_t a) { return static_cast<uint32_t>(__builtin_popcountll(a)); }
uint32_t clz32(uint32_t a) { return a ? static_cast<uint32_t>(__builtin_clz(a)) : 32; }
uint32_t clz64(uint64_t a) { return a ? static_cast<uint32_t>(__builtin_clzll(a)) : 64; }
template <class T>
T reverse(T a) {
  T r = 0;
  for (unsigned k = 0; k < 8 * sizeof(T); ++k) r = static_cast<T>(r << 1 | (a >> k & 1));
  return r;
}
template <class T, bool Amount>
uint32_t find(T a) {
  using V = std::make_unsigned_t<T>;
  V x = static_cast<V>(a);
  if (std::is_signed_v<T> && a < 0) x = static_cast<V>(~x);
  if (x == 0) return 0xffffffff;
  const uint32_t at = sizeof(T) == 4 ? 31 - clz32(static_cast<uint32_t>(x)) : 63 - clz64(x);
  return Amount ? 8 * sizeof(T) - 1 - at : at;
}
void build_count(Build& b) {
  const bool wide = b.get("type") == "b64";
  b.out.fn = b.st.base == "popc"
                 ? (wide ? op1<uint32_t, uint64_t, popc64> : op1<uint32_t, uint32_t, popc32>)
                 : (wide ? op1<uint32_t, uint64_t, clz64> : op1<uint32_t, uint32_t, clz32>);
  b.out.d = b.dest(0, "u32");
  b.out.a = b.value(1, b.get("type"));
}
void build_brev(Build& b) {
  b.out.fn = b.get("type") == "b64" ? op1<uint64_t, uint64_t, reverse<uint64_t>>
                                    : op1<uint32_t, uint32_t, reverse<uint32_t>>;
  operands_same(b, b.get("type"), 1);
}
template <class T>
struct Find {
  static Handler handler() {
    if constexpr (sizeof(T) >= 4)
      return op1<uint32_t, T, find<T, false>>;
    else
      return nullptr;
  }
};
template <class T>
struct FindAmount {
  static Handler handler() {
    if constexpr (sizeof(T) >= 4)
      return op1<uint32_t, T, find<T, true>>;
    else
      return nullptr;
  }
};
void build_bfind(Build& b) {
  b.out.fn =
      b.has("shiftamt") ? by_integer<FindAmount>(b.get("type")) : by_integer<Find>(b.get("type"));
  b.out.d = b.dest(0, "u32");
  b.out.a = b.value(1, b.get("type"));
}

uint32_t fns(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) return 0xffffffff;
  if (offset == 0) return mask >> base & 1 ? base : 0xffffffff;
  int left = offset > 0 ? offset : -offset;
  for (int at = static_cast<int>(base); at >= 0 && at < 32; at += offset > 0 ? 1 : -1) {
    if ((mask >> at & 1) && --left == 0) return static_cast<uint32_t>(at);
  }
  return 0xffffffff;
}
void build_fns(Build& b) {
  b.out.fn = op3<uint32_t, uint32_t, uint32_t, int32_t, fns>;
  operands_same(b, "b32", 3);
}

template <class T>
T extract(T a, uint32_t pos, uint32_t len) {
  using V = std::make_unsigned_t<T>;
  constexpr uint32_t kMsb = 8 * sizeof(T) - 1;
  pos &= 255, len &= 255;
  const bool sign =
      std::is_signed_v<T> && len != 0 && (static_cast<V>(a) >> std::min(pos + len - 1, kMsb) & 1);
  V d = 0;
  for (uint32_t k = 0; k <= kMsb; ++k)
    d = static_cast<V>(
        d |
        static_cast<V>((k < len && pos + k <= kMsb) ? (static_cast<V>(a) >> (pos + k) & 1) : sign)
            << k);
  return static_cast<T>(d);
}
template <class T>
struct Bfe {
  static Handler handler() {
    if constexpr (sizeof(T) >= 4)
      return op3<T, T, uint32_t, uint32_t, extract<T>>;
    else
      return nullptr;
  }
};
void build_bfe(Build& b) {
  b.out.fn = by_integer<Bfe>(b.get("type"));
  b.out.d = b.dest(0, b.get("type"));
  b.out.a = b.value(1, b.get("type"));
  b.out.b = b.value(2, "u32");
  b.out.c = b.value(3, "u32");
}
template <class T>
Flow insert(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b), &c = e.src(i.c), &n = e.src(i.e);
  Reg& d = e.dst(i.d);
  const uint32_t bad = poisoned(a, e.mask, sizeof(T)) | poisoned(b, e.mask, sizeof(T)) |
                       poisoned(c, e.mask, 4) | poisoned(n, e.mask, 4);
  for_lanes(e.mask, [&](int l) {
    const uint32_t pos = c.v[l] & 255, len = n.v[l] & 255;
    T f = static_cast<T>(b.v[l]);
    for (uint32_t k = 0; k < len && pos + k < 8 * sizeof(T); ++k)
      f = static_cast<T>((f & ~(T{1} << (pos + k))) | static_cast<T>(a.v[l] >> k & 1) << (pos + k));
    d.v[l] = f;
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_bfi(Build& b) {
  b.out.fn = b.get("type") == "b64" ? insert<uint64_t> : insert<uint32_t>;
  operands_same(b, b.get("type"), 2);
  b.out.c = b.value(3, "u32");
  b.out.e = b.value(4, "u32");
}
template <bool Wrap>
uint32_t bmsk(uint32_t a, uint32_t w) {
  if (Wrap) a &= 31, w &= 31;
  if (a >= 32 || w == 0) return 0;
  const uint64_t ones = w >= 32 ? 0xffffffffull : (1ull << w) - 1;
  return static_cast<uint32_t>(ones << a);
}
void build_bmsk(Build& b) {
  b.out.fn = b.get("mode") == "wrap" ? op2<uint32_t, uint32_t, uint32_t, bmsk<true>>
                                     : op2<uint32_t, uint32_t, uint32_t, bmsk<false>>;
  operands_same(b, "b32", 2);
}
template <class T, bool Wrap>
T szext(T a, uint32_t n) {
  if (Wrap) n &= 31;
  if (n >= 32) return a;
  if (n == 0) return 0;
  using V = uint32_t;
  const V x = static_cast<V>(a) << (32 - n);
  return std::is_signed_v<T> ? static_cast<T>(static_cast<int32_t>(x) >> (32 - n))
                             : static_cast<T>(x >> (32 - n));
}
void build_szext(Build& b) {
  const bool s = b.get("type") == "s32", w = b.get("mode") == "wrap";
  b.out.fn = s ? (w ? op2<int32_t, int32_t, uint32_t, szext<int32_t, true>>
                    : op2<int32_t, int32_t, uint32_t, szext<int32_t, false>>)
               : (w ? op2<uint32_t, uint32_t, uint32_t, szext<uint32_t, true>>
                    : op2<uint32_t, uint32_t, uint32_t, szext<uint32_t, false>>);
  operands_same(b, "u32", 2);
}

constexpr Form kForms[] = {
    {"and <type:pred,b16,b32,b64>", 3, 3, Class::kInteger, build_logic<kAnd>},
    {"or <type:pred,b16,b32,b64>", 3, 3, Class::kInteger, build_logic<kOr>},
    {"xor <type:pred,b16,b32,b64>", 3, 3, Class::kInteger, build_logic<kXor>},
    {"not <type:pred,b16,b32,b64>", 2, 2, Class::kInteger, build_not},
    {"cnot <type:b16,b32,b64>", 2, 2, Class::kInteger, build_cnot},
    {"shl <type:b16,b32,b64>", 3, 3, Class::kInteger, build_shift<Shl>},
    {"shr <type:b16,b32,b64,u16,u32,u64,s16,s32,s64>", 3, 3, Class::kInteger, build_shift<Shr>},
    {"shf <side:l,r> <mode:clamp,wrap> <type:b32>", 4, 4, Class::kInteger, build_shf},
    {"lop3 <type:b32>", 5, 5, Class::kInteger, build_lop3},
    {"prmt <type:b32> {mode:f4e,b4e,rc8,ecl,ecr,rc16}", 4, 4, Class::kInteger, build_prmt},
    {"popc <type:b32,b64>", 2, 2, Class::kInteger, build_count},
    {"clz <type:b32,b64>", 2, 2, Class::kInteger, build_count},
    {"brev <type:b32,b64>", 2, 2, Class::kInteger, build_brev},
    {"bfind {shiftamt} <type:u32,s32,u64,s64>", 2, 2, Class::kInteger, build_bfind},
    {"fns <type:b32>", 4, 4, Class::kInteger, build_fns},
    {"bfe <type:u32,s32,u64,s64>", 4, 4, Class::kInteger, build_bfe},
    {"bfi <type:b32,b64>", 5, 5, Class::kInteger, build_bfi},
    {"bmsk <mode:clamp,wrap> <type:b32>", 3, 3, Class::kInteger, build_bmsk},
    {"szext <mode:clamp,wrap> <type:u32,s32>", 3, 3, Class::kInteger, build_szext},
};

}  // namespace

void forms_logic(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
