// cvt, in all its pairs of types, and cvt.pack. Integers convert here; floating formats go through
// src/numerics, which knows every rounding and saturation mode.

#include "numerics/convert.h"

#include <cmath>

#include "instructions/modal.h"
#include "numerics/arith.h"

namespace sm100sim {
namespace {

namespace nm = numerics;

struct IntType {
  int bits;
  bool is_signed;
};

bool int_type(const std::string& t, IntType* out) {
  if (t.size() < 2 || (t[0] != 'u' && t[0] != 's') || t.find("x2") != std::string::npos ||
      t == "ue8m0" || t == "ue8m0x2")
    return false;
  out->bits = std::atoi(t.c_str() + 1);
  out->is_signed = t[0] == 's';
  return out->bits > 0;
}

bool float_type(const std::string& t, nm::Format* out) {
  static const std::map<std::string, nm::Format> kFormats = {{"f64", nm::Format::kF64},
                                                             {"f32", nm::Format::kF32},
                                                             {"tf32", nm::Format::kTf32},
                                                             {"f16", nm::Format::kF16},
                                                             {"bf16", nm::Format::kBf16}};
  const auto it = kFormats.find(t);
  if (it == kFormats.end()) return false;
  *out = it->second;
  return true;
}

bool packed_type(const std::string& t, nm::Format* out) {
  static const std::map<std::string, nm::Format> kFormats = {
      {"f16x2", nm::Format::kF16},   {"bf16x2", nm::Format::kBf16},   {"e4m3x2", nm::Format::kE4m3},
      {"e5m2x2", nm::Format::kE5m2}, {"e2m3x2", nm::Format::kE2m3},   {"e3m2x2", nm::Format::kE3m2},
      {"e2m1x2", nm::Format::kE2m1}, {"ue8m0x2", nm::Format::kUe8m0}, {"e4m3x4", nm::Format::kE4m3},
      {"e5m2x4", nm::Format::kE5m2}, {"e2m3x4", nm::Format::kE2m3},   {"e3m2x4", nm::Format::kE3m2},
      {"e2m1x4", nm::Format::kE2m1}};
  const auto it = kFormats.find(t);
  if (it == kFormats.end()) return false;
  *out = it->second;
  return true;
}

// Fields: flags = target (format or bits), order = source, scope bit0 source signed bit1 target
// signed bit2 sat bit3 ftz bit4 satfinite bit5 relu, aux = rounding.
nm::Conversion how(const Instr& i) {
  nm::Conversion c;
  c.round = static_cast<nm::Round>(i.aux);
  c.sat = i.scope & 4;
  c.satfinite = i.scope & 16;
  c.relu = i.scope & 32;
  return c;
}

int64_t sign_extend(uint64_t v, int bits, bool is_signed) {
  if (bits >= 64) return static_cast<int64_t>(v);
  v &= (1ull << bits) - 1;
  return is_signed && (v >> (bits - 1) & 1) ? static_cast<int64_t>(v | ~0ull << bits)
                                            : static_cast<int64_t>(v);
}

uint64_t int_int(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  const int from = i.order, to = i.flags;
  const bool from_signed = i.scope & 1, to_signed = i.scope & 2;
  int64_t v = sign_extend(a, from, from_signed);
  if (i.scope & 4) {
    const __int128 x =
        from_signed ? static_cast<__int128>(v) : static_cast<__int128>(static_cast<uint64_t>(v));
    const __int128 high = to_signed ? (static_cast<__int128>(1) << (to - 1)) - 1
                                    : (static_cast<__int128>(1) << to) - 1;
    const __int128 low = to_signed ? -(static_cast<__int128>(1) << (to - 1)) : 0;
    v = static_cast<int64_t>(x < low ? low : x > high ? high : x);
  }
  // A narrower target in a wider register is extended; `bytes_out` (imm) says how wide the register
  // is.
  const uint64_t keep = i.imm >= 8 ? ~0ull : (1ull << (8 * i.imm)) - 1;
  return static_cast<uint64_t>(sign_extend(static_cast<uint64_t>(v), to, to_signed)) & keep;
}

double widen(const Instr& i, uint64_t a) {
  const auto f = static_cast<nm::Format>(i.order);
  if ((i.scope & 8) && f == nm::Format::kF32) a = nm::ftz_f32(static_cast<uint32_t>(a));
  return nm::decode(f, a);
}
uint64_t float_int(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  return nm::to_integer(widen(i, a), static_cast<nm::Round>(i.aux), i.flags, i.scope & 2,
                        static_cast<nm::Format>(i.order) == nm::Format::kF64);
}
uint64_t int_float(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  return nm::from_integer(static_cast<nm::Format>(i.flags),
                          static_cast<uint64_t>(sign_extend(a, i.order, i.scope & 1)), i.scope & 1,
                          how(i));
}
uint64_t float_float(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  const auto to = static_cast<nm::Format>(i.flags);
  double v = widen(i, a);
  if (i.imm & 1) v = nm::to_integral(v, static_cast<nm::Round>(i.aux));
  uint64_t r = nm::encode(to, v, how(i));
  if ((i.scope & 8) && to == nm::Format::kF32) r = nm::ftz_f32(static_cast<uint32_t>(r));
  return r;
}
uint64_t bf16_f32(const Instr&, uint64_t a, uint64_t, uint64_t) {
  const uint32_t x = static_cast<uint32_t>(a) << 16;
  return (x & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : x;
}
uint64_t f32_bf16(const Instr&, uint64_t a, uint64_t, uint64_t) {
  const uint32_t x = static_cast<uint32_t>(a);
  if ((x & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (x + 0x7fff + (x >> 16 & 1)) >> 16;
}
uint64_t pack(const Instr& i, uint64_t a, uint64_t b, uint64_t) {
  return nm::pack2(static_cast<nm::Format>(i.flags), as<float>(a), as<float>(b), how(i));
}
uint64_t repack(const Instr& i, uint64_t a, uint64_t, uint64_t) {
  return nm::repack2(static_cast<nm::Format>(i.flags), static_cast<nm::Format>(i.order),
                     static_cast<uint32_t>(a), how(i));
}
uint64_t pack_random(const Instr& i, uint64_t a, uint64_t b, uint64_t c) {
  nm::Conversion h = how(i);
  h.round = nm::Round::kStochastic;
  h.random = static_cast<uint32_t>(c);
  return nm::pack2(static_cast<nm::Format>(i.flags), as<float>(a), as<float>(b), h);
}

nm::Round rounding(const Build& b) {
  const std::string r = b.get("rnd", b.get("irnd", "rn").c_str());
  if (r == "rz" || r == "rzi") return nm::Round::kTowardZero;
  if (r == "rm" || r == "rmi") return nm::Round::kDown;
  if (r == "rp" || r == "rpi") return nm::Round::kUp;
  if (r == "rna") return nm::Round::kNearestAway;
  return nm::Round::kNearestEven;
}

std::string register_type(const std::string& t) {
  static const std::map<std::string, std::string> kRegisters = {
      {"f16", "b16"},    {"bf16", "b16"},   {"tf32", "b32"},    {"f16x2", "b32"},
      {"bf16x2", "b32"}, {"e4m3x2", "b16"}, {"e5m2x2", "b16"},  {"e2m3x2", "b16"},
      {"e3m2x2", "b16"}, {"e2m1x2", "b8"},  {"ue8m0x2", "b16"}, {"e4m3x4", "b32"},
      {"e5m2x4", "b32"}, {"e2m3x4", "b32"}, {"e3m2x4", "b32"},  {"e2m1x4", "b16"}};
  const auto it = kRegisters.find(t);
  return it == kRegisters.end() ? t : it->second;
}

void common(Build& b) {
  b.out.aux = static_cast<int32_t>(rounding(b));
  b.out.scope = static_cast<uint8_t>((b.has("sat") ? 4 : 0) | (b.has("ftz") ? 8 : 0) |
                                     (b.has("satfinite") ? 16 : 0) | (b.has("relu") ? 32 : 0));
}

void build_cvt(Build& b) {
  common(b);
  const std::string to = b.get("to"), from = b.get("from");
  b.out.d = b.dest(0, register_type(to));
  b.out.a = b.value(1, register_type(from));
  b.out.bytes = static_cast<uint8_t>(std::max(1, type_bytes(register_type(from))));
  IntType ti{}, fi{};
  nm::Format tf{}, ff{};
  if (int_type(to, &ti) && int_type(from, &fi)) {
    if (b.has("irnd") || b.has("rnd")) b.fail("no rounding between integers");
    b.out.fn = modal<1, int_int>;
    b.out.flags = static_cast<uint8_t>(ti.bits);
    b.out.order = static_cast<uint8_t>(fi.bits);
    b.out.scope |= static_cast<uint8_t>(fi.is_signed | ti.is_signed << 1);
    const Operand& d = b.op(0);
    b.out.imm = d.reg >= 0 ? type_bytes(b.program.source->regs[static_cast<size_t>(d.reg)].type)
                           : type_bytes(to);
  } else if (int_type(to, &ti) && float_type(from, &ff)) {
    if (!b.has("irnd")) b.fail("a conversion to an integer needs .rni, .rzi, .rmi or .rpi");
    b.out.fn = modal<1, float_int>;
    b.out.flags = static_cast<uint8_t>(ti.bits);
    b.out.order = static_cast<uint8_t>(ff);
    b.out.scope |= static_cast<uint8_t>(ti.is_signed << 1);
  } else if (float_type(to, &tf) && int_type(from, &fi)) {
    b.out.fn = modal<1, int_float>;
    b.out.flags = static_cast<uint8_t>(tf);
    b.out.order = static_cast<uint8_t>(fi.bits);
    b.out.scope |= static_cast<uint8_t>(fi.is_signed);
  } else if (float_type(to, &tf) && float_type(from, &ff)) {
    b.out.flags = static_cast<uint8_t>(tf);
    b.out.order = static_cast<uint8_t>(ff);
    b.out.imm = b.has("irnd") ? 1 : 0;
    b.out.fn = modal<1, float_float>;
    if (b.out.scope == 0 && to == "f32" && from == "bf16") b.out.fn = modal<1, bf16_f32>;
    if (b.out.scope == 0 && to == "bf16" && from == "f32" && b.get("rnd") == "rn")
      b.out.fn = modal<1, f32_bf16>;
  } else {
    b.fail("no conversion from ." + from + " to ." + to);
  }
}

void build_pack(Build& b) {  // to an x2 type from two f32
  common(b);
  const std::string to = b.get("to");
  nm::Format f{};
  packed_type(to, &f);
  b.out.fn = modal<2, pack>;
  b.out.flags = static_cast<uint8_t>(f);
  b.out.bytes = 4;
  b.out.d = b.dest(0, register_type(to));
  b.out.a = b.value(1, "f32");
  b.out.b = b.value(2, "f32");
  if (b.get("rnd") == "rs") {
    if (b.count() != 4) b.fail("cvt.rs needs its random bits");
    b.out.fn = modal<3, pack_random>;
    b.out.c = b.value(3, "b32");
  } else if (b.count() != 3) {
    b.fail("two sources are needed");
  }
}

Flow pack_four(Exec& e, const Instr& i) {
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  Reg& d = e.dst(i.d);
  const Reg& random = e.src(i.c);
  uint32_t bad = poisoned(random, e.mask, 4);
  for (const Ref& r : x.list) bad |= poisoned(e.src(r), e.mask, 4);
  nm::Conversion h = how(i);
  h.round = nm::Round::kStochastic;
  for_lanes(e.mask, [&](int l) {
    h.random = static_cast<uint32_t>(random.v[l]);
    float v[4];
    for (size_t k = 0; k < 4; ++k) v[k] = as<float>(e.src(x.list[k]).v[l]);
    d.v[l] = nm::pack4(static_cast<nm::Format>(i.flags), v[0], v[1], v[2], v[3], h);
  });
  mark(d, e.mask, bad);
  return Flow::kNext;
}
void build_pack4(Build& b) {
  common(b);
  nm::Format f{};
  packed_type(b.get("to"), &f);
  b.out.fn = pack_four;
  b.out.flags = static_cast<uint8_t>(f);
  b.out.d = b.dest(0, register_type(b.get("to")));
  b.extra().list = b.list(b.op(1), "f32", false);
  if (b.extra().list.size() != 4) b.fail("four sources are needed");
  b.out.c = b.value(2, "b32");
}

void build_repack(Build& b) {
  common(b);
  const std::string to = b.get("to"), from = b.get("from");
  nm::Format t{}, f{};
  packed_type(to, &t);
  packed_type(from, &f);
  b.out.fn = modal<1, repack>;
  b.out.flags = static_cast<uint8_t>(t);
  b.out.order = static_cast<uint8_t>(f);
  b.out.bytes = static_cast<uint8_t>(type_bytes(register_type(from)));
  b.out.d = b.dest(0, register_type(to));
  b.out.a = b.value(1, register_type(from));
}

#define NUMBERS "u8,u16,u32,u64,s8,s16,s32,s64,f16,bf16,f32,f64,tf32"
constexpr Form kForms[] = {
    {"cvt {irnd:rni,rzi,rmi,rpi} {rnd:rn,rz,rm,rp,rna} {ftz} {sat} {satfinite} {relu} <to:" NUMBERS
     "> <from:" NUMBERS ">",
     2, 2, Class::kConvert, build_cvt},
    {"cvt <rnd:rn,rz,rp,rs> {satfinite} {relu} "
     "<to:f16x2,bf16x2,e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2,ue8m0x2> <from:f32>",
     3, 4, Class::kConvert, build_pack},
    {"cvt <rnd:rs> {relu} <satfinite> <to:e4m3x4,e5m2x4,e2m3x4,e3m2x4,e2m1x4> <from:f32>", 3, 3,
     Class::kConvert, build_pack4},
    {"cvt <rnd:rn,rz,rp> {satfinite} {relu} "
     "<to:f16x2,bf16x2,e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2,ue8m0x2> "
     "<from:f16x2,bf16x2,e4m3x2,e5m2x2,e2m3x2,e3m2x2,e2m1x2,ue8m0x2>",
     2, 2, Class::kConvert, build_repack},
};
#undef NUMBERS

}  // namespace

void forms_convert(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
