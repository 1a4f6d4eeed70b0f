// Integer arithmetic: PTX ISA "Integer Arithmetic Instructions" and "Extended-Precision".

#include <algorithm>
#include <limits>

#include "instructions/lanes.h"

namespace sm100sim {
namespace {

template <class T>
using U = std::make_unsigned_t<T>;
template <class T>
struct Wider {
  using type = std::conditional_t<
      sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
      std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                         std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;
};
template <class T>
using W = typename Wider<T>::type;

template <class T>
T f_add(T a, T b) {
  return static_cast<T>(static_cast<U<T>>(a) + static_cast<U<T>>(b));
}
template <class T>
T f_sub(T a, T b) {
  return static_cast<T>(static_cast<U<T>>(a) - static_cast<U<T>>(b));
}
template <class T>
T f_mul(T a, T b) {
  return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
template <class T>
T f_mulhi(T a, T b) {
  return static_cast<T>((static_cast<W<T>>(a) * static_cast<W<T>>(b)) >> (8 * sizeof(T)));
}
template <class T>
W<T> f_mulwide(T a, T b) {
  return static_cast<W<T>>(a) * static_cast<W<T>>(b);
}
template <class T>
T f_mad(T a, T b, T c) {
  return f_add(f_mul(a, b), c);
}
template <class T>
T f_madhi(T a, T b, T c) {
  return f_add(f_mulhi(a, b), c);
}
template <class T>
W<T> f_madwide(T a, T b, W<T> c) {
  return static_cast<W<T>>(static_cast<U<W<T>>>(f_mulwide(a, b)) + static_cast<U<W<T>>>(c));
}
// Division by zero is undefined in PTX; hardware gives all ones.
template <class T>
T f_div(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return static_cast<T>(U<T>{0} - static_cast<U<T>>(a));
  }
  return static_cast<T>(a / b);
}
template <class T>
T f_rem(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}
template <class T>
T f_min(T a, T b) {
  return std::min(a, b);
}
template <class T>
T f_max(T a, T b) {
  return std::max(a, b);
}
template <class T>
T f_neg(T a) {
  return static_cast<T>(U<T>{0} - static_cast<U<T>>(a));
}
template <class T>
T f_abs(T a) {
  return a < 0 ? f_neg(a) : a;
}
template <class T>
T f_addsat(T a, T b) {
  return static_cast<T>(std::clamp<W<T>>(static_cast<W<T>>(a) + b, std::numeric_limits<T>::min(),
                                         std::numeric_limits<T>::max()));
}
template <class T>
T f_subsat(T a, T b) {
  return static_cast<T>(std::clamp<W<T>>(static_cast<W<T>>(a) - b, std::numeric_limits<T>::min(),
                                         std::numeric_limits<T>::max()));
}
template <class T>
U<T> f_sad(T a, T b, U<T> c) {
  return static_cast<U<T>>(c + (a < b ? static_cast<U<T>>(b) - static_cast<U<T>>(a)
                                      : static_cast<U<T>>(a) - static_cast<U<T>>(b)));
}

#define BINARY(NAME, FN)                                     \
  template <class T>                                         \
  struct NAME {                                              \
    static Handler handler() { return op2<T, T, T, FN<T>>; } \
  };
BINARY(Add, f_add)
BINARY(Sub, f_sub)
BINARY(Mul, f_mul)
BINARY(MulHi, f_mulhi)
BINARY(Div, f_div)
BINARY(Rem, f_rem)
BINARY(Min, f_min)
BINARY(Max, f_max)
#undef BINARY
template <class T>
struct Mad {
  static Handler handler() { return op3<T, T, T, T, f_mad<T>>; }
};
template <class T>
struct MadHi {
  static Handler handler() { return op3<T, T, T, T, f_madhi<T>>; }
};
template <class T>
struct Neg {
  static Handler handler() { return op1<T, T, f_neg<T>>; }
};
template <class T>
struct Abs {
  static Handler handler() {
    if constexpr (std::is_signed_v<T>)
      return op1<T, T, f_abs<T>>;
    else
      return nullptr;
  }
};
template <class T>
struct Sad {
  static Handler handler() { return op3<U<T>, T, T, U<T>, f_sad<T>>; }
};
template <class T>
struct MulWide {
  static Handler handler() {
    if constexpr (sizeof(T) < 8)
      return op2<W<T>, T, T, f_mulwide<T>>;
    else
      return nullptr;
  }
};
template <class T>
struct MadWide {
  static Handler handler() {
    if constexpr (sizeof(T) < 8)
      return op3<W<T>, T, T, W<T>, f_madwide<T>>;
    else
      return nullptr;
  }
};

template <template <class> class Maker>
void two(Build& b) {
  const std::string t = b.get("type");
  b.out.fn = by_integer<Maker>(t);
  operands_same(b, t, 2);
}
template <template <class> class Maker>
void one(Build& b) {
  const std::string t = b.get("type");
  b.out.fn = by_integer<Maker>(t);
  operands_same(b, t, 1);
}
void addsub_sat(Build& b) {
  b.out.fn = b.st.base == "add" ? op2<int32_t, int32_t, int32_t, f_addsat<int32_t>>
                                : op2<int32_t, int32_t, int32_t, f_subsat<int32_t>>;
  operands_same(b, "s32", 2);
}

// x2 of 16-bit integers.
template <class T, T (*F)(T, T)>
uint32_t halves(uint32_t a, uint32_t b) {
  const uint32_t lo = static_cast<uint16_t>(F(static_cast<T>(a), static_cast<T>(b)));
  const uint32_t hi = static_cast<uint16_t>(F(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
  return hi << 16 | lo;
}
template <template <class> class>
struct Nothing;
void x2(Build& b) {
  const bool s = b.get("type") == "s16x2";
  if (b.st.base == "add")
    b.out.fn = op2<uint32_t, uint32_t, uint32_t, halves<uint16_t, f_add<uint16_t>>>;
  if (b.st.base == "min")
    b.out.fn = s ? op2<uint32_t, uint32_t, uint32_t, halves<int16_t, f_min<int16_t>>>
                 : op2<uint32_t, uint32_t, uint32_t, halves<uint16_t, f_min<uint16_t>>>;
  if (b.st.base == "max")
    b.out.fn = s ? op2<uint32_t, uint32_t, uint32_t, halves<int16_t, f_max<int16_t>>>
                 : op2<uint32_t, uint32_t, uint32_t, halves<uint16_t, f_max<uint16_t>>>;
  operands_same(b, "b32", 2);
}

std::string wide(const std::string& t) {
  return t == "s16" ? "s32" : t == "u16" ? "u32" : t == "s32" ? "s64" : "u64";
}

void mul(Build& b) {
  const std::string t = b.get("type"), part = b.get("part");
  if (part == "wide") {
    b.out.fn = by_integer<MulWide>(t);
    b.out.d = b.dest(0, wide(t));
    b.out.a = b.value(1, t);
    b.out.b = b.value(2, t);
    return;
  }
  b.out.fn = part == "hi" ? by_integer<MulHi>(t) : by_integer<Mul>(t);
  operands_same(b, t, 2);
}
void mad(Build& b) {
  const std::string t = b.get("type"), part = b.get("part");
  if (part == "wide") {
    b.out.fn = by_integer<MadWide>(t);
    b.out.d = b.dest(0, wide(t));
    b.out.a = b.value(1, t);
    b.out.b = b.value(2, t);
    b.out.c = b.value(3, wide(t));
    return;
  }
  b.out.fn = part == "hi" ? by_integer<MadHi>(t) : by_integer<Mad>(t);
  operands_same(b, t, 3);
}
void sad(Build& b) {
  b.out.fn = by_integer<Sad>(b.get("type"));
  operands_same(b, b.get("type"), 3);
}

int32_t signed24(uint32_t v) { return static_cast<int32_t>(v << 8) >> 8; }
uint32_t mul24_lo(uint32_t a, uint32_t b) { return (a & 0xffffff) * (b & 0xffffff); }
uint32_t mul24_hi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a & 0xffffff) * (b & 0xffffff)) >> 16);
}
int32_t mul24s_lo(uint32_t a, uint32_t b) {
  return static_cast<int32_t>(static_cast<int64_t>(signed24(a)) * signed24(b));
}
int32_t mul24s_hi(uint32_t a, uint32_t b) {
  return static_cast<int32_t>((static_cast<int64_t>(signed24(a)) * signed24(b)) >> 16);
}
void mul24(Build& b) {
  const bool s = b.get("type") == "s32", hi = b.get("part") == "hi";
  b.out.fn = s ? (hi ? op2<int32_t, uint32_t, uint32_t, mul24s_hi>
                     : op2<int32_t, uint32_t, uint32_t, mul24s_lo>)
               : (hi ? op2<uint32_t, uint32_t, uint32_t, mul24_hi>
                     : op2<uint32_t, uint32_t, uint32_t, mul24_lo>);
  operands_same(b, "u32", 2);
}

// Carry flag: one bit per lane, kept with the frame's predicates (an extra predicate behind the
// declared ones).
int carry_slot(Build& b) {
  if (b.program.carry_pred < 0) b.program.carry_pred = b.program.pred_count++;
  return b.program.carry_pred;
}

template <class T>
Flow add_carry(Exec& e, const Instr& i) {  // flags: 1 uses carry, 2 sets carry, 4 subtracts, 8
                                           // multiplies first (lo), 16 (hi)
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  const bool mad = i.flags & 24;
  const Reg& c = mad ? e.src(i.c) : b;
  Reg& d = e.dst(i.d);
  Pred& cc = e.preds[i.aux];
  const uint32_t bad = poisoned(a, e.mask, sizeof(T)) | poisoned(b, e.mask, sizeof(T)) |
                       (mad ? poisoned(c, e.mask, sizeof(T)) : 0);
  const uint32_t bad_carry = (i.flags & 1) ? cc.p & e.mask : 0;
  uint32_t out = 0;
  for_lanes(e.mask, [&](int l) {
    using X = unsigned __int128;
    const T in = (i.flags & 1) ? static_cast<T>(cc.v >> l & 1) : T{0};
    T x = static_cast<T>(a.v[l]), y = static_cast<T>(b.v[l]);
    if (mad) {
      const X product = static_cast<X>(x) * y;
      x = static_cast<T>(i.flags & 8 ? product : product >> (8 * sizeof(T)));
      y = static_cast<T>(c.v[l]);
    }
    bool carry;
    T r;
    if (i.flags & 4) {
      r = static_cast<T>(x - y - in);
      carry = static_cast<X>(x) < static_cast<X>(y) + in;
    } else {
      const X sum = static_cast<X>(x) + y + in;
      r = static_cast<T>(sum);
      carry = (sum >> (8 * sizeof(T))) & 1;
    }
    d.v[l] = r;
    out |= static_cast<uint32_t>(carry) << l;
  });
  mark(d, e.mask, bad | bad_carry);
  if (i.flags & 2) {
    cc.v = (cc.v & ~e.mask) | out;
    cc.p = (cc.p & ~e.mask) | bad | bad_carry;
  }
  return Flow::kNext;
}

void carry(Build& b) {
  const std::string t = b.get("type"), base = b.st.base;
  const bool mad_form = base.rfind("mad", 0) == 0;
  b.out.flags = static_cast<uint8_t>((base == "addc" || base == "subc" || base == "madc" ? 1 : 0) |
                                     (b.has("cc") ? 2 : 0) | (base.rfind("sub", 0) == 0 ? 4 : 0));
  if (mad_form) b.out.flags |= b.get("part") == "hi" ? 16 : 8;
  if (mad_form && b.get("part") == "hi" && t[0] == 's')
    b.fail("signed mad.hi with carry is not supported");
  b.out.aux = carry_slot(b);
  b.out.fn = type_bytes(t) == 8 ? add_carry<uint64_t> : add_carry<uint32_t>;
  operands_same(b, t, mad_form ? 3 : 2);
}

int32_t dp4a_any(uint32_t a, uint32_t b, bool sa, bool sb) {
  int32_t sum = 0;
  for (int k = 0; k < 4; ++k) {
    const int32_t x = sa ? static_cast<int8_t>(a >> (8 * k)) : static_cast<uint8_t>(a >> (8 * k));
    const int32_t y = sb ? static_cast<int8_t>(b >> (8 * k)) : static_cast<uint8_t>(b >> (8 * k));
    sum += x * y;
  }
  return sum;
}
template <bool SA, bool SB>
uint32_t dp4(uint32_t a, uint32_t b, uint32_t c) {
  return c + static_cast<uint32_t>(dp4a_any(a, b, SA, SB));
}
void dp4a(Build& b) {
  const bool sa = b.get("atype") == "s32", sb = b.get("btype") == "s32";
  b.out.fn = sa ? (sb ? op3<uint32_t, uint32_t, uint32_t, uint32_t, dp4<true, true>>
                      : op3<uint32_t, uint32_t, uint32_t, uint32_t, dp4<true, false>>)
                : (sb ? op3<uint32_t, uint32_t, uint32_t, uint32_t, dp4<false, true>>
                      : op3<uint32_t, uint32_t, uint32_t, uint32_t, dp4<false, false>>);
  operands_same(b, "b32", 3);
}

constexpr Form kForms[] = {
    {"add <type:@int>", 3, 3, Class::kInteger, two<Add>},
    {"add <sat> <type:s32>", 3, 3, Class::kInteger, addsub_sat},
    {"add <type:u16x2,s16x2>", 3, 3, Class::kInteger, x2},
    {"sub <type:@int>", 3, 3, Class::kInteger, two<Sub>},
    {"sub <sat> <type:s32>", 3, 3, Class::kInteger, addsub_sat},
    {"mul {part:hi,lo,wide} <type:@int>", 3, 3, Class::kInteger, mul},
    {"mad {part:hi,lo,wide} <type:@int>", 4, 4, Class::kInteger, mad},
    {"mul24 {part:hi,lo} <type:u32,s32>", 3, 3, Class::kInteger, mul24},
    {"sad <type:@int>", 4, 4, Class::kInteger, sad},
    {"div <type:@int>", 3, 3, Class::kInteger, two<Div>},
    {"rem <type:@int>", 3, 3, Class::kInteger, two<Rem>},
    {"min <type:@int>", 3, 3, Class::kInteger, two<Min>},
    {"min <type:u16x2,s16x2>", 3, 3, Class::kInteger, x2},
    {"max <type:@int>", 3, 3, Class::kInteger, two<Max>},
    {"max <type:u16x2,s16x2>", 3, 3, Class::kInteger, x2},
    {"neg <type:s16,s32,s64>", 2, 2, Class::kInteger, one<Neg>},
    {"abs <type:s16,s32,s64>", 2, 2, Class::kInteger, one<Abs>},
    {"add <cc> <type:u32,s32,u64,s64>", 3, 3, Class::kInteger, carry},
    {"addc {cc} <type:u32,s32,u64,s64>", 3, 3, Class::kInteger, carry},
    {"sub <cc> <type:u32,s32,u64,s64>", 3, 3, Class::kInteger, carry},
    {"subc {cc} <type:u32,s32,u64,s64>", 3, 3, Class::kInteger, carry},
    {"mad <part:hi,lo> <cc> <type:u32,s32,u64,s64>", 4, 4, Class::kInteger, carry},
    {"madc <part:hi,lo> {cc} <type:u32,s32,u64,s64>", 4, 4, Class::kInteger, carry},
    {"dp4a <atype:u32,s32> <btype:u32,s32>", 4, 4, Class::kInteger, dp4a},
};

}  // namespace

void forms_integer(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
