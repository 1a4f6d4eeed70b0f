// Floating-point arithmetic: PTX ISA "Floating Point Instructions", "Half Precision ..." and "Mixed
// Precision ...". Round-to-nearest f32 and f64 run on the host's IEEE arithmetic; every other mode
// goes through src/numerics. Approximate functions are exact mathematics, rounded: the hardware's
// last bits are not specified.

#include <cfenv>
#include <cmath>

#include "instructions/modal.h"
#include "numerics/arith.h"

namespace sm100sim {
namespace {

namespace nm = numerics;
enum Op : int32_t { kAdd, kSub, kMul, kFma, kDiv, kSqrt, kMin, kMax };

float add32(float a, float b) { return a + b; }
float sub32(float a, float b) { return a - b; }
float mul32(float a, float b) { return a * b; }
float fma32(float a, float b, float c) { return std::fmaf(a, b, c); }
double add64(double a, double b) { return a + b; }
double sub64(double a, double b) { return a - b; }
double mul64(double a, double b) { return a * b; }
double fma64(double a, double b, double c) { return std::fma(a, b, c); }

nm::Round round_of(const std::string& r) {
  return r == "rz"   ? nm::Round::kTowardZero
         : r == "rm" ? nm::Round::kDown
         : r == "rp" ? nm::Round::kUp
                     : nm::Round::kNearestEven;
}
// imm packs round | ftz << 8 | sat << 9 | relu << 10 | nan << 11 | xorsign << 12 | abs << 13.
int64_t pack_mode(const Build& b) {
  return static_cast<int64_t>(round_of(b.get("rnd", "rn"))) | b.has("ftz") << 8 |
         b.has("sat") << 9 | b.has("relu") << 10 | b.has("NaN") << 11 | b.has("xorsign") << 12 |
         b.has("abs") << 13;
}
nm::F32Mode mode32(const Instr& i) {
  return {static_cast<nm::Round>(i.imm & 255), (i.imm >> 8 & 1) != 0, (i.imm >> 9 & 1) != 0};
}
nm::HalfMode mode16(const Instr& i) {
  return {(i.imm >> 8 & 1) != 0, (i.imm >> 9 & 1) != 0, (i.imm >> 10 & 1) != 0};
}
nm::Format half_format(const std::string& t) {
  return t[0] == 'b' ? nm::Format::kBf16 : nm::Format::kF16;
}
uint32_t lo(uint64_t v) { return static_cast<uint32_t>(v); }

uint64_t arith32(const Instr& i, uint64_t a, uint64_t b, uint64_t c) {
  const nm::F32Mode m = mode32(i);
  switch (i.aux) {
    case kAdd:
      return nm::add_f32(lo(a), lo(b), m);
    case kSub:
      return nm::add_f32(lo(a), lo(b) ^ 0x80000000u, m);
    case kMul:
      return nm::mul_f32(lo(a), lo(b), m);
    case kFma:
      return nm::fma_f32(lo(a), lo(b), lo(c), m);
    case kDiv:
      return nm::div_f32(lo(a), lo(b), m);
    default:
      return nm::sqrt_f32(lo(a), m);
  }
}
uint64_t arith32x2(const Instr& i, uint64_t a, uint64_t b, uint64_t c) {
  const nm::F32Mode m = mode32(i);
  switch (i.aux) {
    case kAdd:
      return nm::add_f32x2(a, b, m);
    case kSub:
      return nm::add_f32x2(a, b ^ 0x8000000080000000ull, m);
    case kMul:
      return nm::mul_f32x2(a, b, m);
    default:
      return nm::fma_f32x2(a, b, c, m);
  }
}
uint64_t arith64(const Instr& i, uint64_t a, uint64_t b, uint64_t c) {
  static constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
  volatile double x = as<double>(a), y = as<double>(b), z = as<double>(c), r;
  std::fesetround(kModes[i.imm & 3]);
  switch (i.aux) {
    case kAdd:
      r = x + y;
      break;
    case kSub:
      r = x - y;
      break;
    case kMul:
      r = x * y;
      break;
    case kFma:
      r = std::fma(x, y, z);
      break;
    case kDiv:
      r = x / y;
      break;
    default:
      r = std::sqrt(x);
      break;
  }
  std::fesetround(FE_TONEAREST);
  return bits<double>(r);
}
uint64_t arith16(const Instr& i, uint64_t a, uint64_t b, uint64_t c) {
  const auto f = static_cast<nm::Format>(i.flags & 0x3f);
  const nm::HalfMode m = mode16(i);
  const bool pair = i.flags & 0x40;
  if (pair) {
    switch (i.aux) {
      case kAdd:
        return nm::add_half2(f, lo(a), lo(b), m);
      case kSub:
        return nm::sub_half2(f, lo(a), lo(b), m);
      case kMul:
        return nm::mul_half2(f, lo(a), lo(b), m);
      default:
        return nm::fma_half2(f, lo(a), lo(b), lo(c), m);
    }
  }
  const auto h = [](uint64_t v) { return static_cast<uint16_t>(v); };
  switch (i.aux) {
    case kAdd:
      return nm::add_half(f, h(a), h(b), m);
    case kSub:
      return nm::sub_half(f, h(a), h(b), m);
    case kMul:
      return nm::mul_half(f, h(a), h(b), m);
    default:
      return nm::fma_half(f, h(a), h(b), h(c), m);
  }
}

int32_t op_of(const std::string& base) {
  return base == "add"                     ? kAdd
         : base == "sub"                   ? kSub
         : base == "mul"                   ? kMul
         : base == "div"                   ? kDiv
         : base == "sqrt" || base == "rcp" ? kSqrt
                                           : kFma;
}

void build_arith(Build& b) {
  const std::string t = b.get("type"), rnd = b.get("rnd", "rn");
  const int32_t op = op_of(b.st.base);
  const int sources = op == kFma ? 3 : 2;
  operands_same(b,
                t == "f16x2" || t == "bf16x2" ? "b32"
                : t == "f16" || t == "bf16"   ? "b16"
                : t == "f32x2"                ? "b64"
                                              : t,
                sources);
  b.out.aux = op;
  b.out.imm = pack_mode(b);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t == "f32x2" ? "b64" : t));
  const bool plain = rnd == "rn" && !b.has("ftz") && !b.has("sat");
  if (t == "f32") {
    if (plain) {
      b.out.fn = op == kAdd   ? op2<float, float, float, add32>
                 : op == kSub ? op2<float, float, float, sub32>
                 : op == kMul ? op2<float, float, float, mul32>
                              : op3<float, float, float, float, fma32>;
    } else {
      b.out.fn = sources == 3 ? modal<3, arith32> : modal<2, arith32>;
    }
  } else if (t == "f64") {
    if (plain) {
      b.out.fn = op == kAdd   ? op2<double, double, double, add64>
                 : op == kSub ? op2<double, double, double, sub64>
                 : op == kMul ? op2<double, double, double, mul64>
                              : op3<double, double, double, double, fma64>;
    } else {
      b.out.fn = sources == 3 ? modal<3, arith64> : modal<2, arith64>;
    }
  } else if (t == "f32x2") {
    b.out.fn = sources == 3 ? modal<3, arith32x2> : modal<2, arith32x2>;
  } else {
    b.out.flags = static_cast<uint8_t>(static_cast<int>(half_format(t)) |
                                       (t.find("x2") != std::string::npos ? 0x40 : 0));
    b.out.fn = sources == 3 ? modal<3, arith16> : modal<2, arith16>;
  }
}

Flow mixed(Exec& e, const Instr& i) {  // d(f32) = narrow(a) op c, or narrow(a) * narrow(b) + c
  const Reg &a = e.src(i.a), &c = e.src(i.c);
  const Reg& b = i.aux == kFma ? e.src(i.b) : a;
  Reg& d = e.dst(i.d);
  const uint32_t bad = poisoned(a, e.mask, 2) | poisoned(b, e.mask, 2) | poisoned(c, e.mask, 4);
  const auto f = static_cast<nm::Format>(i.flags);
  const nm::F32Mode m = mode32(i);
  for_lanes(e.mask, [&](int l) {
    d.v[l] = i.aux == kFma
                 ? nm::fma_f32_narrow(f, lo(a.v[l]) & 0xffff, lo(b.v[l]) & 0xffff, lo(c.v[l]), m)
                 : nm::add_f32_narrow(f, lo(a.v[l]) & 0xffff, lo(c.v[l]), i.aux == kSub, m);
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_mixed(Build& b) {
  b.out.fn = mixed;
  b.out.aux = op_of(b.st.base);
  b.out.imm = pack_mode(b);
  b.out.flags = static_cast<uint8_t>(half_format(b.get("narrow")));
  const bool fma = b.out.aux == kFma;
  b.out.d = b.dest(0, "f32");
  b.out.a = b.value(1, "b16");
  if (fma) b.out.b = b.value(2, "b16");
  b.out.c = b.value(fma ? 3 : 2, "f32");
}

uint64_t divide_approx(const Instr& i, uint64_t a, uint64_t b, uint64_t) {
  return nm::div_f32(lo(a), lo(b), mode32(i));
}
void build_div(Build& b) {
  const std::string t = b.get("type");
  operands_same(b, t, 2);
  b.out.aux = kDiv;
  b.out.imm = pack_mode(b);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.fn = t == "f64"     ? modal<2, arith64>
             : b.has("how") ? modal<2, divide_approx>
                            : modal<2, arith32>;
}

uint64_t reciprocal(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  return nm::div_f32(0x3f800000u, lo(a), mode32(i));
}
uint64_t reciprocal64(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  Instr one = i;
  one.aux = kDiv;
  return arith64(one, bits<double>(1.0), a, 0);
}
uint64_t root64(const Instr& i, uint64_t a, uint64_t, uint64_t) { return arith64(i, a, a, a); }
uint64_t rsqrt64(const Instr&, uint64_t a, uint64_t, uint64_t) {
  return bits<double>(1.0 / std::sqrt(as<double>(a)));
}
void build_root(Build& b) {  // rcp, sqrt with a rounding mode
  const std::string t = b.get("type");
  operands_same(b, t, 1);
  b.out.aux = kSqrt;
  b.out.imm = pack_mode(b);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  const bool rcp = b.st.base == "rcp";
  if (t == "f64")
    b.out.fn = rcp                    ? modal<1, reciprocal64>
               : b.st.base == "rsqrt" ? modal<1, rsqrt64>
                                      : modal<1, root64>;
  else
    b.out.fn = rcp ? modal<1, reciprocal> : modal<1, arith32>;
}

uint64_t approx(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  const auto f = static_cast<nm::Format>(i.flags & 0x3f);
  const auto fn = static_cast<nm::Approx>(i.aux);
  const bool ftz = i.imm >> 8 & 1;
  if (i.flags & 0x40)
    return nm::approximate(fn, f, lo(a) & 0xffff, ftz) |
           static_cast<uint64_t>(nm::approximate(fn, f, lo(a) >> 16, ftz)) << 16;
  return nm::approximate(fn, f, i.bytes == 2 ? lo(a) & 0xffff : lo(a), ftz);
}
void build_approx(Build& b) {
  static const std::map<std::string, nm::Approx> kFunctions = {
      {"ex2", nm::Approx::kEx2},     {"lg2", nm::Approx::kLg2},   {"rcp", nm::Approx::kRcp},
      {"rsqrt", nm::Approx::kRsqrt}, {"sqrt", nm::Approx::kSqrt}, {"tanh", nm::Approx::kTanh},
      {"sin", nm::Approx::kSin},     {"cos", nm::Approx::kCos}};
  const std::string t = b.get("type");
  operands_same(b, t.size() > 4 ? "b32" : t == "f16" || t == "bf16" ? "b16" : "f32", 1);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.aux = static_cast<int32_t>(kFunctions.at(b.st.base));
  b.out.imm = pack_mode(b);
  b.out.flags =
      static_cast<uint8_t>(static_cast<int>(t == "f32" ? nm::Format::kF32 : half_format(t)) |
                           (t.find("x2") != std::string::npos ? 0x40 : 0));
  b.out.fn = modal<1, approx>;
}

// neg and abs move bits only: poison stays where it is, and a NaN keeps its payload.
template <bool Abs>
uint64_t sign(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  const uint64_t m = static_cast<uint64_t>(i.imm);
  if ((i.flags & 1) && i.bytes == 4) {
    uint32_t x = Abs ? lo(a) & ~static_cast<uint32_t>(m) : lo(a) ^ static_cast<uint32_t>(m);
    return (x & 0x7f800000u) == 0 ? x & 0x80000000u : x;
  }
  return Abs ? a & ~m : a ^ m;
}
void build_sign(Build& b) {
  const std::string t = b.get("type");
  operands_same(b, t == "f16" || t == "bf16" ? "b16" : t.size() > 4 ? "b32" : t, 1);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.flags = b.has("ftz") ? 1 : 0;
  b.out.imm = static_cast<int64_t>(t == "f32"                          ? 0x80000000ull
                                   : t == "f64"                        ? 1ull << 63
                                   : t.find("x2") != std::string::npos ? 0x80008000ull
                                                                       : 0x8000ull);
  b.out.fn = b.st.base == "abs" ? modal<1, sign<true>> : modal<1, sign<false>>;
}

uint64_t copysign32(const Instr&, uint64_t a, uint64_t b, uint64_t) {
  return (lo(b) & 0x7fffffffu) | (lo(a) & 0x80000000u);
}
uint64_t copysign64(const Instr&, uint64_t a, uint64_t b, uint64_t) {
  return (b & ~(1ull << 63)) | (a & (1ull << 63));
}
void build_copysign(Build& b) {
  operands_same(b, b.get("type"), 2);
  b.out.bytes = static_cast<uint8_t>(type_bytes(b.get("type")));
  b.out.fn = b.out.bytes == 8 ? modal<2, copysign64> : modal<2, copysign32>;
}

uint64_t extremum(const Instr& i, uint64_t a, uint64_t b, uint64_t c) {
  const nm::MinMaxMode m{(i.imm >> 8 & 1) != 0, (i.imm >> 11 & 1) != 0, (i.imm >> 12 & 1) != 0,
                         (i.imm >> 13 & 1) != 0 && !(i.imm >> 12 & 1)};
  const auto f = static_cast<nm::Format>(i.flags & 0x3f);
  const bool maximum = i.aux == kMax;
  if (i.flags & 0x40) return nm::min_max_half2(f, lo(a), lo(b), maximum, m);
  const uint32_t keep = i.bytes == 2 ? 0xffffu : 0xffffffffu;
  uint32_t r = nm::min_max(f, lo(a) & keep, lo(b) & keep, maximum, m);
  if (i.flags & 0x80) r = nm::min_max(f, r, lo(c) & keep, maximum, m);
  return r;
}
uint64_t extremum64(const Instr& i, uint64_t a, uint64_t b, uint64_t) {
  const double x = as<double>(a), y = as<double>(b);
  if (x != x) return bits<double>(y);
  if (y != y) return bits<double>(x);
  if (x == y) return bits<double>(std::signbit(x) == (i.aux == kMin) ? x : y);
  return bits<double>((x < y) == (i.aux == kMin) ? x : y);
}
void build_extremum(Build& b) {
  const std::string t = b.get("type");
  const bool three = b.count() == 4;
  if (three && t != "f32") b.fail("only f32 has the three-input form");
  operands_same(b, t == "f16" || t == "bf16" ? "b16" : t.size() > 4 ? "b32" : t, three ? 3 : 2);
  b.out.bytes = static_cast<uint8_t>(type_bytes(t));
  b.out.aux = b.st.base == "max" ? kMax : kMin;
  b.out.imm = pack_mode(b);
  if (t == "f64") {
    b.out.fn = modal<2, extremum64>;
    return;
  }
  b.out.flags =
      static_cast<uint8_t>(static_cast<int>(t == "f32" ? nm::Format::kF32 : half_format(t)) |
                           (t.find("x2") != std::string::npos ? 0x40 : 0) | (three ? 0x80 : 0));
  b.out.fn = three ? modal<3, extremum> : modal<2, extremum>;
}

#define RND "{rnd:rn,rz,rm,rp}"
constexpr Form kForms[] = {
    {"add " RND " {ftz} {sat} <type:f32,f32x2>", 3, 3, Class::kFloat, build_arith},
    {"add " RND " <type:f64>", 3, 3, Class::kFloat, build_arith},
    {"add {rnd:rn} {ftz} {sat} <type:f16,f16x2,bf16,bf16x2>", 3, 3, Class::kFloat, build_arith},
    {"add " RND " {sat} <type:f32> <narrow:f16,bf16>", 3, 3, Class::kFloat, build_mixed},
    {"sub " RND " {ftz} {sat} <type:f32,f32x2>", 3, 3, Class::kFloat, build_arith},
    {"sub " RND " <type:f64>", 3, 3, Class::kFloat, build_arith},
    {"sub {rnd:rn} {ftz} {sat} <type:f16,f16x2,bf16,bf16x2>", 3, 3, Class::kFloat, build_arith},
    {"sub " RND " {sat} <type:f32> <narrow:f16,bf16>", 3, 3, Class::kFloat, build_mixed},
    {"mul " RND " {ftz} {sat} <type:f32,f32x2>", 3, 3, Class::kFloat, build_arith},
    {"mul " RND " <type:f64>", 3, 3, Class::kFloat, build_arith},
    {"mul {rnd:rn} {ftz} {sat} <type:f16,f16x2,bf16,bf16x2>", 3, 3, Class::kFloat, build_arith},
    {"fma " RND " {ftz} {sat} <type:f32,f32x2>", 4, 4, Class::kFloat, build_arith},
    {"fma " RND " <type:f64>", 4, 4, Class::kFloat, build_arith},
    {"fma {rnd:rn} {ftz} {sat} {relu} <type:f16,f16x2,bf16,bf16x2>", 4, 4, Class::kFloat,
     build_arith},
    {"fma " RND " {sat} <type:f32> <narrow:f16,bf16>", 4, 4, Class::kFloat, build_mixed},
    {"mad " RND " {ftz} {sat} <type:f32,f64>", 4, 4, Class::kFloat, build_arith},
    {"div {how:approx,full} {ftz} <type:f32>", 3, 3, Class::kFloat, build_div},
    {"div <rnd:rn,rz,rm,rp> {ftz} <type:f32,f64>", 3, 3, Class::kFloat, build_div},
    {"rcp <rnd:rn,rz,rm,rp> {ftz} <type:f32,f64>", 2, 2, Class::kFloat, build_root},
    {"sqrt <rnd:rn,rz,rm,rp> {ftz} <type:f32,f64>", 2, 2, Class::kFloat, build_root},
    {"rcp <approx> <ftz> <type:f64>", 2, 2, Class::kFloat, build_root},
    {"rsqrt <approx> {ftz} <type:f64>", 2, 2, Class::kFloat, build_root},
    {"rcp <approx> {ftz} <type:f32>", 2, 2, Class::kFloat, build_approx},
    {"sqrt <approx> {ftz} <type:f32>", 2, 2, Class::kFloat, build_approx},
    {"rsqrt <approx> {ftz} <type:f32>", 2, 2, Class::kFloat, build_approx},
    {"ex2 <approx> {ftz} <type:f32,f16,f16x2,bf16,bf16x2>", 2, 2, Class::kFloat, build_approx},
    {"lg2 <approx> {ftz} <type:f32>", 2, 2, Class::kFloat, build_approx},
    {"sin <approx> {ftz} <type:f32>", 2, 2, Class::kFloat, build_approx},
    {"cos <approx> {ftz} <type:f32>", 2, 2, Class::kFloat, build_approx},
    {"tanh <approx> <type:f32,f16,f16x2,bf16,bf16x2>", 2, 2, Class::kFloat, build_approx},
    {"neg {ftz} <type:f32,f64,f16,f16x2,bf16,bf16x2>", 2, 2, Class::kFloat, build_sign},
    {"abs {ftz} <type:f32,f64,f16,f16x2,bf16,bf16x2>", 2, 2, Class::kFloat, build_sign},
    {"copysign <type:f32,f64>", 3, 3, Class::kFloat, build_copysign},
    {"min {ftz} {NaN} {xorsign} {abs} <type:f32,f64,f16,f16x2,bf16,bf16x2>", 3, 4, Class::kFloat,
     build_extremum},
    {"max {ftz} {NaN} {xorsign} {abs} <type:f32,f64,f16,f16x2,bf16,bf16x2>", 3, 4, Class::kFloat,
     build_extremum},
};
#undef RND

}  // namespace

void forms_float(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
