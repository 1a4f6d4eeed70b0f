// Lane-wise evaluation: handlers made from a plain function of scalars. A result is poison when any
// input byte that the operation reads is; operations that keep bytes apart (logic, moves, shifts)
// say so themselves. The function is a template argument, so that the loop over lanes contains no
// call.
#pragma once

#include <cstring>
#include <type_traits>

#include "instructions/table.h"
#include "machine/exec.h"

namespace sm100sim {

template <class T>
inline T as(uint64_t v) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (sizeof(T) == 4) {
      return __builtin_bit_cast(float, static_cast<uint32_t>(v));
    } else {
      return __builtin_bit_cast(double, v);
    }
  } else {
    return static_cast<T>(v);
  }
}

template <class T>
inline uint64_t bits(T v) {
  if constexpr (std::is_same_v<T, float>) {
    return v != v ? 0x7fffffffull : __builtin_bit_cast(uint32_t, v);
  } else if constexpr (std::is_same_v<T, double>) {
    return v != v ? 0x7fffffffffffffffull : __builtin_bit_cast(uint64_t, v);
  } else {
    return static_cast<std::make_unsigned_t<T>>(v);
  }
}

constexpr uint8_t byte_mask(size_t bytes) {
  return static_cast<uint8_t>(bytes >= 8 ? 0xff : (1u << bytes) - 1);
}

/// Lanes of `mask` in which any of the low `bytes` of r is poison.
inline uint32_t poisoned(const Reg& r, uint32_t mask, size_t bytes) {
  uint32_t lanes = r.pl & mask, out = 0;
  while (lanes != 0) {
    const int lane = __builtin_ctz(lanes);
    lanes &= lanes - 1;
    if (r.p[lane] & byte_mask(bytes)) out |= 1u << lane;
  }
  return out;
}

/// Marks exactly the lanes `bad` of `mask` as wholly poison.
inline void mark(Reg& d, uint32_t mask, uint32_t bad) {
  d.pl = (d.pl & ~mask) | bad;
  if (bad != 0) for_lanes(bad, [&](int lane) { d.p[lane] = 0xff; });
}

template <class D, class A, D (*F)(A)>
Flow op1(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  Reg& d = e.dst(i.d);
  const uint32_t bad = (a.pl & e.mask) ? poisoned(a, e.mask, sizeof(A)) : 0;
  for_lanes(e.mask, [&](int l) { d.v[l] = bits<D>(F(as<A>(a.v[l]))); });
  mark(d, e.mask, bad);
  return Flow::kNext;
}

template <class D, class A, class B, D (*F)(A, B)>
Flow op2(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b);
  Reg& d = e.dst(i.d);
  const uint32_t bad = ((a.pl | b.pl) & e.mask)
                           ? poisoned(a, e.mask, sizeof(A)) | poisoned(b, e.mask, sizeof(B))
                           : 0;
  for_lanes(e.mask, [&](int l) { d.v[l] = bits<D>(F(as<A>(a.v[l]), as<B>(b.v[l]))); });
  mark(d, e.mask, bad);
  return Flow::kNext;
}

template <class D, class A, class B, class C, D (*F)(A, B, C)>
Flow op3(Exec& e, const Instr& i) {
  const Reg &a = e.src(i.a), &b = e.src(i.b), &c = e.src(i.c);
  Reg& d = e.dst(i.d);
  const uint32_t bad = ((a.pl | b.pl | c.pl) & e.mask)
                           ? poisoned(a, e.mask, sizeof(A)) | poisoned(b, e.mask, sizeof(B)) |
                                 poisoned(c, e.mask, sizeof(C))
                           : 0;
  for_lanes(e.mask,
            [&](int l) { d.v[l] = bits<D>(F(as<A>(a.v[l]), as<B>(b.v[l]), as<C>(c.v[l]))); });
  mark(d, e.mask, bad);
  return Flow::kNext;
}

/// Picks the instance of a handler template for an integer type name; nullptr when the type is no
/// integer.
template <template <class> class Maker>
Handler by_integer(const std::string& t) {
  if (t == "s16") return Maker<int16_t>::handler();
  if (t == "u16" || t == "b16") return Maker<uint16_t>::handler();
  if (t == "s32") return Maker<int32_t>::handler();
  if (t == "u32" || t == "b32") return Maker<uint32_t>::handler();
  if (t == "s64") return Maker<int64_t>::handler();
  if (t == "u64" || t == "b64") return Maker<uint64_t>::handler();
  return nullptr;
}

/// The usual shape: destination and up to three sources of one type.
inline void operands_same(Build& b, const std::string& type, int sources) {
  b.out.d = b.dest(0, type);
  if (!b.out.d) b.fail("a destination register is needed");
  b.out.a = b.value(1, type);
  if (sources > 1) b.out.b = b.value(2, type);
  if (sources > 2) b.out.c = b.value(3, type);
}

}  // namespace sm100sim
