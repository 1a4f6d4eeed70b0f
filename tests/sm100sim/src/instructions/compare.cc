// Comparison and selection: setp, set, selp, slct, testp. Predicates carry poison like registers
// do; it counts when it decides.

#include <cmath>

#include "instructions/modal.h"
#include "numerics/format.h"

namespace sm100sim {
namespace {

enum Cmp : uint8_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };

template <class T>
bool compare(uint8_t op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool unordered = a != a || b != b;
    switch (op) {
      case kNe:
        return !unordered && a != b;
      case kEqu:
        return unordered || a == b;
      case kNeu:
        return unordered || a != b;
      case kLtu:
        return unordered || a < b;
      case kLeu:
        return unordered || a <= b;
      case kGtu:
        return unordered || a > b;
      case kGeu:
        return unordered || a >= b;
      case kNum:
        return !unordered;
      case kNan:
        return unordered;
      default:
        break;
    }
  }
  switch (op) {
    case kEq:
      return a == b;
    case kNe:
      return a != b;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    default:
      return a >= b;
  }
}

float flush(float v) { return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(0.0f, v) : v; }

template <class T, uint8_t Op>
uint32_t results(const Reg& a, const Reg& b, uint32_t mask) {
  uint32_t r = 0;
  for_lanes(mask, [&](int l) {
    r |= static_cast<uint32_t>(compare<T>(Op, as<T>(a.v[l]), as<T>(b.v[l]))) << l;
  });
  return r;
}

template <class T>
uint32_t compare_lanes(uint8_t op, const Reg& a, const Reg& b, uint32_t mask) {
  switch (op) {
    case kEq:
      return results<T, kEq>(a, b, mask);
    case kNe:
      return results<T, kNe>(a, b, mask);
    case kLt:
      return results<T, kLt>(a, b, mask);
    case kLe:
      return results<T, kLe>(a, b, mask);
    case kGt:
      return results<T, kGt>(a, b, mask);
    case kGe:
      return results<T, kGe>(a, b, mask);
    default:
      break;
  }
  uint32_t r = 0;
  for_lanes(mask, [&](int l) {
    r |= static_cast<uint32_t>(compare<T>(op, as<T>(a.v[l]), as<T>(b.v[l]))) << l;
  });
  return r;
}

uint32_t compare_half(uint8_t op, numerics::Format f, const Reg& a, const Reg& b, uint32_t mask,
                      int shift) {
  uint32_t r = 0;
  for_lanes(mask, [&](int l) {
    const double x = numerics::decode(f, a.v[l] >> shift & 0xffff),
                 y = numerics::decode(f, b.v[l] >> shift & 0xffff);
    r |= static_cast<uint32_t>(compare<double>(op, x, y)) << l;
  });
  return r;
}

enum Type : int32_t {
  kU16,
  kS16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF32,
  kF32Ftz,
  kF64,
  kF16,
  kBf16,
  kF16x2,
  kBf16x2
};

uint32_t evaluate(int32_t type, uint8_t op, const Reg& a, const Reg& b, uint32_t m) {
  switch (type) {
    case kU16:
      return compare_lanes<uint16_t>(op, a, b, m);
    case kS16:
      return compare_lanes<int16_t>(op, a, b, m);
    case kU32:
      return compare_lanes<uint32_t>(op, a, b, m);
    case kS32:
      return compare_lanes<int32_t>(op, a, b, m);
    case kU64:
      return compare_lanes<uint64_t>(op, a, b, m);
    case kS64:
      return compare_lanes<int64_t>(op, a, b, m);
    case kF32:
      return compare_lanes<float>(op, a, b, m);
    case kF64:
      return compare_lanes<double>(op, a, b, m);
    case kF16:
    case kF16x2:
      return compare_half(op, numerics::Format::kF16, a, b, m, 0);
    case kBf16:
    case kBf16x2:
      return compare_half(op, numerics::Format::kBf16, a, b, m, 0);
    default: {
      uint32_t r = 0;
      for_lanes(m, [&](int l) {
        r |= static_cast<uint32_t>(
                 compare<float>(op, flush(as<float>(a.v[l])), flush(as<float>(b.v[l]))))
             << l;
      });
      return r;
    }
  }
}

uint32_t combine(uint8_t how, uint32_t r, uint32_t c) {
  return how == 1 ? r & c : how == 2 ? r | c : how == 3 ? r ^ c : r;
}

// d = (a cmp b) op c; d2 = !(a cmp b) op c. For x2 types d and d2 are the two halves' results.
Flow setp(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  const uint32_t bad =
      ((a.pl | b.pl) & e.mask) ? poisoned(a, e.mask, i.bytes) | poisoned(b, e.mask, i.bytes) : 0;
  const uint32_t r = evaluate(i.aux, i.order, a, b, e.mask);
  uint32_t c = 0, bad_c = 0;
  if (i.c) {
    c = e.pred(i.c, e.mask, false);
    bad_c = e.pred_poison(i.c) & e.mask;
  }
  const bool pair = i.aux == kF16x2 || i.aux == kBf16x2;
  const uint32_t other =
      pair ? compare_half(i.order,
                          i.aux == kF16x2 ? numerics::Format::kF16 : numerics::Format::kBf16, a, b,
                          e.mask, 16)
           : ~r;
  e.set_pred(i.d, e.mask, combine(i.scope, r, c), bad | bad_c);
  e.set_pred(i.d2, e.mask, combine(i.scope, other, c), bad | bad_c);
  return Flow::kNext;
}

void choose(Build& b) {
  static const std::map<std::string, int32_t> kTypes = {
      {"u16", kU16}, {"b16", kU16}, {"s16", kS16},   {"u32", kU32},     {"b32", kU32},
      {"s32", kS32}, {"u64", kU64}, {"b64", kU64},   {"s64", kS64},     {"f32", kF32},
      {"f64", kF64}, {"f16", kF16}, {"bf16", kBf16}, {"f16x2", kF16x2}, {"bf16x2", kBf16x2}};
  static const std::map<std::string, uint8_t> kCmps = {
      {"eq", kEq},   {"ne", kNe},   {"lt", kLt},   {"le", kLe},   {"gt", kGt},   {"ge", kGe},
      {"lo", kLt},   {"ls", kLe},   {"hi", kGt},   {"hs", kGe},   {"equ", kEqu}, {"neu", kNeu},
      {"ltu", kLtu}, {"leu", kLeu}, {"gtu", kGtu}, {"geu", kGeu}, {"num", kNum}, {"nan", kNan}};
  const std::string t = b.get("type");
  b.out.aux = kTypes.at(t);
  if (t == "f32" && b.has("ftz")) b.out.aux = kF32Ftz;
  b.out.order = kCmps.at(b.get("cmp"));
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  const std::string o = b.get("bool");
  b.out.scope = o == "and" ? 1 : o == "or" ? 2 : o == "xor" ? 3 : 0;
  if (t[0] != 'f' && t[0] != 'b' && b.out.order > kGe)
    b.fail("unordered comparisons are for floating-point types");
}
std::string operand_type(const std::string& t) {
  return t == "f16" || t == "bf16" ? "b16" : t == "f16x2" || t == "bf16x2" ? "b32" : t;
}

void build_setp(Build& b) {
  choose(b);
  b.out.fn = setp;
  const Operand& d = b.op(0);
  b.out.d = b.pred_dest(d);
  if (!d.pair.empty()) b.out.d2 = b.pred_dest(d.pair[0]);
  const std::string t = operand_type(b.get("type"));
  b.out.a = b.value(1, t);
  b.out.b = b.value(2, t);
  if (b.count() == 4) {
    if (!b.has("bool")) b.fail("a third source needs .and, .or or .xor");
    b.out.c = b.pred(3);
  } else if (b.has("bool")) {
    b.fail("a predicate source is missing");
  }
}

Flow set(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  Reg& d = e.dst(i.d);
  uint32_t bad = poisoned(a, e.mask, i.bytes) | poisoned(b, e.mask, i.bytes);
  uint32_t r = evaluate(i.aux, i.order, a, b, e.mask), c = 0;
  if (i.c) {
    c = e.pred(i.c, e.mask, false);
    bad |= e.pred_poison(i.c) & e.mask;
  }
  const bool pair = i.aux == kF16x2 || i.aux == kBf16x2;
  const uint32_t high =
      pair
          ? combine(i.scope,
                    compare_half(i.order,
                                 i.aux == kF16x2 ? numerics::Format::kF16 : numerics::Format::kBf16,
                                 a, b, e.mask, 16),
                    c)
          : 0;
  r = combine(i.scope, r, c);
  const uint64_t yes = static_cast<uint64_t>(i.imm);
  for_lanes(e.mask,
            [&](int l) { d.v[l] = (r >> l & 1 ? yes : 0) | (high >> l & 1 ? yes << 16 : 0); });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_set(Build& b) {
  choose(b);
  b.out.fn = set;
  const std::string d = b.get("dtype"), t = b.get("type");
  b.out.imm = static_cast<int64_t>(d == "f32"                     ? 0x3f800000ull
                                   : d == "f16" || d == "f16x2"   ? 0x3c00ull
                                   : d == "bf16" || d == "bf16x2" ? 0x3f80ull
                                   : d == "u16" || d == "s16"     ? 0xffffull
                                                                  : 0xffffffffull);
  if (t.find("x2") != std::string::npos && (d == "u32" || d == "s32")) b.out.imm = 0xffff;
  b.out.d = b.dest(0, operand_type(d));
  b.out.a = b.value(1, operand_type(t));
  b.out.b = b.value(2, operand_type(t));
  if (b.count() == 4) b.out.c = b.pred(3);
}

// The unselected source's poison does not matter, so a selection moves poison as it moves the
// value.
Flow selp(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  Reg& d = e.dst(i.d);
  const uint32_t p = e.pred(i.c, e.mask, false), bad = e.pred_poison(i.c) & e.mask;
  const uint64_t keep = i.bytes >= 8 ? ~0ull : (1ull << (8 * i.bytes)) - 1;
  if (((a.pl | b.pl) & e.mask) == 0 && bad == 0) [[likely]] {
    for_lanes(e.mask, [&](int l) { d.v[l] = (p >> l & 1 ? a.v[l] : b.v[l]) & keep; });
    d.pl &= ~e.mask;
    return Flow::kNext;
  }
  for_lanes(e.mask, [&](int l) {
    const Reg& s = p >> l & 1 ? a : b;
    uint8_t poison = s.poison(l);
    const uint64_t v = s.v[l] & keep;
    if ((bad >> l & 1) && (a.v[l] != b.v[l] || a.poison(l) || b.poison(l))) poison = 0xff;
    d.v[l] = v;
    d.set_poison(l, poison & byte_mask(i.bytes));
  });
  return Flow::kNext;
}
void build_selp(Build& b) {
  const std::string t = b.get("type");
  b.out.fn = selp;
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  operands_same(b, t, 2);
  b.out.c = b.pred(3);
}

Flow slct(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b), &c = e.src(i.c);
  Reg& d = e.dst(i.d);
  const uint32_t bad =
      poisoned(a, e.mask, i.bytes) | poisoned(b, e.mask, i.bytes) | poisoned(c, e.mask, 4);
  for_lanes(e.mask, [&](int l) {
    const bool first = i.flags ? as<float>(c.v[l]) >= 0.0f : static_cast<int32_t>(c.v[l]) >= 0;
    d.v[l] = first ? a.v[l] : b.v[l];
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_slct(Build& b) {
  const std::string t = b.get("type");
  b.out.fn = slct;
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.flags = b.get("ctype") == "f32";
  operands_same(b, t, 2);
  b.out.c = b.value(3, b.get("ctype"));
}

Flow testp(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  uint32_t r = 0;
  for_lanes(e.mask, [&](int l) {
    const double v = i.bytes == 8 ? as<double>(a.v[l]) : static_cast<double>(as<float>(a.v[l]));
    const int c = i.bytes == 8 ? std::fpclassify(v) : std::fpclassify(as<float>(a.v[l]));
    bool yes = false;
    switch (i.aux) {
      case 0:
        yes = std::isfinite(v);
        break;
      case 1:
        yes = std::isinf(v);
        break;
      case 2:
        yes = !std::isnan(v);
        break;
      case 3:
        yes = std::isnan(v);
        break;
      case 4:
        yes = c == FP_NORMAL;
        break;
      default:
        yes = c == FP_SUBNORMAL;
        break;
    }
    r |= static_cast<uint32_t>(yes) << l;
  });
  e.set_pred(i.d, e.mask, r, poisoned(a, e.mask, i.bytes));
  return Flow::kNext;
}
void build_testp(Build& b) {
  static const std::map<std::string, int> kTests = {{"finite", 0}, {"infinite", 1},
                                                    {"number", 2}, {"notanumber", 3},
                                                    {"normal", 4}, {"subnormal", 5}};
  b.out.fn = testp;
  b.out.aux = kTests.at(b.get("test"));
  b.out.bytes = static_cast<uint8_t>(type_bytes(b.get("type")));
  b.out.d = b.pred_dest(b.op(0));
  b.out.a = b.value(1, b.get("type"));
}

#define TYPES "b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64,f16,f16x2,bf16,bf16x2"
constexpr Form kForms[] = {
    {"setp <cmp:@compare> {bool:and,or,xor} {ftz} <type:" TYPES ">", 3, 4, Class::kInteger,
     build_setp},
    {"set <cmp:@compare> {bool:and,or,xor} {ftz} <dtype:u32,s32,f32,u16,s16,f16,f16x2,bf16,bf16x2> "
     "<type:" TYPES ">",
     3, 4, Class::kInteger, build_set},
    {"selp <type:b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64>", 4, 4, Class::kInteger, build_selp},
    {"slct {ftz} <type:b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64> <ctype:s32,f32>", 4, 4,
     Class::kInteger, build_slct},
    {"testp <test:finite,infinite,number,notanumber,normal,subnormal> <type:f32,f64>", 2, 2,
     Class::kFloat, build_testp},
};
#undef TYPES

}  // namespace

void forms_compare(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
