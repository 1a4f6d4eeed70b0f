// Handlers for operations whose behaviour is chosen by modifiers at decoding time: the scalar
// function also gets the Instr. Slower than the templates of lanes.h (a switch per lane), used for
// everything but the most frequent forms.
#pragma once

#include "instructions/lanes.h"

namespace sm100sim {

/// F(i, a, b, c): raw source bits, result as raw bits. N sources of i.bytes bytes each.
template <int N, uint64_t (*F)(const Instr&, uint64_t, uint64_t, uint64_t)>
Flow modal(Exec& e, const Instr& i) {
  const Reg& a = e.src(i.a);
  const Reg& b = N > 1 ? e.src(i.b) : a;
  const Reg& c = N > 2 ? e.src(i.c) : a;
  Reg& d = e.dst(i.d);
  uint32_t bad = 0;
  if ((a.pl | b.pl | c.pl) & e.mask) {
    bad = poisoned(a, e.mask, i.bytes);
    if (N > 1) bad |= poisoned(b, e.mask, i.bytes);
    if (N > 2) bad |= poisoned(c, e.mask, i.bytes);
  }
  for_lanes(e.mask, [&](int l) { d.v[l] = F(i, a.v[l], b.v[l], c.v[l]); });
  mark(d, e.mask, bad);
  return Flow::kNext;
}

}  // namespace sm100sim
