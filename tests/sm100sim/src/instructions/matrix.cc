// ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory rows and warp
// fragments, and the byte forms. Which byte of which row a lane's register holds is one function,
// `place_of`; loading and storing are the two directions of it.

#include "checks/race.h"
#include "instructions/lanes.h"
#include "memory/access.h"

namespace sm100sim {
namespace {

enum Shape : uint8_t { kM8n8b16, kM8n8b16Trans, kM16n8b8Trans };

struct Byte {
  int row;     // which lane supplied the address of its row
  int offset;  // in that row
};

/// Byte `k` of register `reg` of thread `t`.
Byte place_of(uint8_t shape, int t, int reg, int k) {
  const int e = k / 2, half = k % 2;
  switch (shape) {
    case kM8n8b16:
      return {8 * reg + t / 4, 2 * (2 * (t % 4) + e) + half};
    case kM8n8b16Trans:
      return {8 * reg + 2 * (t % 4) + e, 2 * (t / 4) + half};
    case kM16n8b8Trans:
      return {8 * reg + 2 * (t % 4) + (k & 1), t / 4 + 8 * (k >> 1)};
    default:
      return {};
  }
}

int rows_of(const Instr& i) { return 8 * i.count; }

Flow move(Exec& e, const Instr& i) {
  e.require_aligned();
  if (e.mask != kAllLanes)
    throw Fault("divergent-aligned", "ldmatrix and stmatrix need all 32 lanes", first_lane(e.mask));
  const Extra& x = e.program->extras[static_cast<size_t>(i.extra)];
  const Reg& a = e.src(i.a);
  const bool store = i.flags & 1;
  const Space space = static_cast<Space>(i.space);
  Place rows[kLanes];
  for (int l = 0; l < rows_of(i); ++l) {
    if (a.poison(l) & (space == Space::kGeneric ? 0xff : 0x0f))
      throw Fault("poison", "a row address comes from undefined data", l);
    uint64_t address = a.v[l] + static_cast<uint64_t>(i.imm);
    if (space != Space::kGeneric) address &= 0xffffffff;
    rows[l] = resolve(e, space, address, 16, l, 16);
    check_generic(e, rows[l], 16, store, l, address);
    if (e.world.races)
      race_access(e, rows[l], 16, l, store ? RaceKind::kWrite : RaceKind::kRead, 0, 0);
    if (store) note_generic_write(e, rows[l], 16, l);
  }
  for (size_t reg = 0; reg < x.list.size(); ++reg) {
    if (store) {
      const Reg& r = e.src(x.list[reg]);
      for (int t = 0; t < kLanes; ++t) {
        for (int k = 0; k < 4; ++k) {
          const Byte b = place_of(i.order, t, static_cast<int>(reg), k);
          rows[b.row].data()[b.offset] = static_cast<uint8_t>(r.v[t] >> (8 * k));
          rows[b.row].shadow()[b.offset] = r.poison(t) >> k & 1;
        }
      }
    } else if (x.list[reg]) {
      Reg& d = e.dst(x.list[reg]);
      for (int t = 0; t < kLanes; ++t) {
        uint64_t v = 0;
        uint8_t p = 0;
        for (int k = 0; k < 4; ++k) {
          const Byte b = place_of(i.order, t, static_cast<int>(reg), k);
          v |= static_cast<uint64_t>(rows[b.row].data()[b.offset]) << (8 * k);
          p = static_cast<uint8_t>(p | (rows[b.row].shadow()[b.offset] & kPoison) << k);
        }
        d.v[t] = v;
        d.set_poison(t, p);
      }
    }
  }
  if (store) event(e.world);
  return Flow::kNext;
}

void build(Build& b) {
  const bool store = b.st.base == "stmatrix";
  b.out.fn = move;
  b.out.flags = store;
  const std::string shape = b.get("shape");
  b.out.order = shape == "m16n8" ? kM16n8b8Trans : b.has("trans") ? kM8n8b16Trans : kM8n8b16;
  if (shape == "m16n8" && !b.has("trans")) b.fail("the byte form needs .trans");
  b.out.count = static_cast<uint8_t>(b.get("num")[1] - '0');
  b.out.space = static_cast<uint8_t>(b.has("space") ? Space::kShared : Space::kGeneric);
  b.out.a = b.address(store ? 0 : 1, &b.out.imm);
  std::vector<Ref> list = b.list(b.op(store ? 1 : 0), "b32", !store);
  if (list.size() != b.out.count) b.fail("another number of registers than ." + b.get("num"));
  b.extra().list = std::move(list);
}

constexpr Form kForms[] = {
    {"ldmatrix <sync> <aligned> <shape:m8n8> <num:x1,x2,x4> {trans} {space:shared,shared::cta} "
     "<type:b16>",
     2, 2, Class::kShared, build},
    {"stmatrix <sync> <aligned> <shape:m8n8> <num:x1,x2,x4> {trans} {space:shared,shared::cta} "
     "<type:b16>",
     2, 2, Class::kShared, build},
    {"stmatrix <sync> <aligned> <shape:m16n8> <num:x1,x2,x4> {trans} {space:shared,shared::cta} "
     "<type:b8>",
     2, 2, Class::kShared, build},
};

}  // namespace

void forms_matrix(std::vector<Form>& forms) {
  add_forms(forms, std::begin(kForms), std::end(kForms));
}

}  // namespace sm100sim
