// Closed formulas of the register fragments; tests compare them with CuTe's printed maps. See
// fragment.h.
#include "tensorcore/fragment.h"

#include <vector>

#include "numerics/words.h"
#include "tensorcore/tmem.h"

namespace sm100sim::tensorcore {
namespace {

struct ShapeInfo {
  const char* name;
  int registers, columns, largest;  // for .x1; largest N of .xN
};

const ShapeInfo& info(FragmentShape shape) {
  static constexpr ShapeInfo kShapes[] = {{"32x32b", 1, 1, 128},
                                          {"16x64b", 1, 2, 128},
                                          {"16x128b", 2, 4, 64},
                                          {"16x256b", 4, 8, 32},
                                          {"16x32bx2", 1, 1, 128}};
  return kShapes[static_cast<int>(shape)];
}

int rows(FragmentShape shape) { return shape == FragmentShape::k32x32b ? 32 : 16; }

// Columns of one row that the warp touches, from the address.
int span(const Fragment& fragment) {
  return columns(fragment) + (fragment.shape == FragmentShape::k16x32bx2 ? fragment.half_split : 0);
}

std::string check_address(const Fragment& fragment, uint32_t address) {
  const std::string wrong = check(fragment);
  if (!wrong.empty()) return wrong;
  const int lane = address_lane(address) % 32, column = address_column(address);
  if (lane != 0 && !(rows(fragment.shape) == 16 && lane == 16))
    return words("taddr: lane {} of the quadrant found; {} accepted for shape {}", lane,
                 rows(fragment.shape) == 16 ? "0 and 16" : "0", info(fragment.shape).name);
  if (column + span(fragment) > kTmemColumns)
    return words("taddr: columns {}..{} found; tensor memory has 512", column,
                 column + span(fragment) - 1);
  return {};
}

}  // namespace

std::string check(const Fragment& fragment) {
  const ShapeInfo& shape = info(fragment.shape);
  const int n = fragment.repeat;
  if (n < 1 || n > shape.largest || (n & (n - 1)))
    return words(".x{} found; a power of two up to .x{} accepted for shape {}", n, shape.largest,
                 shape.name);
  return {};
}

int registers(const Fragment& fragment) { return info(fragment.shape).registers * fragment.repeat; }

int columns(const Fragment& fragment) {
  return info(fragment.shape).columns * fragment.repeat * (fragment.packed ? 2 : 1);
}

FragmentCell cell(const Fragment& fragment, int thread, int reg) {
  const int quad = thread % 4, group = thread / 4;
  FragmentCell out{};
  switch (fragment.shape) {
    case FragmentShape::k32x32b:
      out = {thread, reg};
      break;
    case FragmentShape::k16x64b:
      out = {group + 8 * (thread % 2), thread / 2 % 2 + 2 * reg};
      break;
    case FragmentShape::k16x128b:
      out = {group + 8 * (reg % 2), quad + 4 * (reg / 2)};
      break;
    case FragmentShape::k16x256b:
      out = {group + 8 * (reg / 2 % 2), 2 * quad + reg % 2 + 8 * (reg / 4)};
      break;
    case FragmentShape::k16x32bx2:
      out = {thread % 16, reg};
      break;
  }
  if (fragment.packed) out.column *= 2;
  if (fragment.shape == FragmentShape::k16x32bx2 && thread >= 16) out.column += fragment.half_split;
  return out;
}

int fragment_lane(uint32_t address, int warp) { return warp % 4 * 32 + address_lane(address) % 32; }

std::string load(const Fragment& fragment, uint32_t address, int warp, int cta, TmemPort& port,
                 uint32_t* values, uint8_t* poison) {
  std::string wrong = check_address(fragment, address);
  if (!wrong.empty()) return wrong;
  const int lane0 = fragment_lane(address, warp), count = rows(fragment.shape),
            width = span(fragment), regs = registers(fragment);
  std::vector<uint32_t> words(static_cast<size_t>(count) * width);
  std::vector<uint8_t> bad(words.size());
  for (int row = 0; row < count; ++row)
    port.read(cta, lane0 + row, address_column(address), width,
              &words[static_cast<size_t>(row) * width], &bad[static_cast<size_t>(row) * width]);
  for (int reg = 0; reg < regs; ++reg)
    for (int thread = 0; thread < 32; ++thread) {
      const FragmentCell at = cell(fragment, thread, reg);
      const size_t i = static_cast<size_t>(at.lane) * width + at.column;
      const size_t to = static_cast<size_t>(reg) * 32 + thread;
      if (fragment.packed) {
        values[to] = (words[i] & 0xFFFF) | words[i + 1] << 16;
        poison[to] = static_cast<uint8_t>((bad[i] & 3) | (bad[i + 1] & 3) << 2);
      } else {
        values[to] = words[i];
        poison[to] = bad[i];
      }
    }
  return {};
}

std::string store(const Fragment& fragment, uint32_t address, int warp, int cta, TmemPort& port,
                  const uint32_t* values, const uint8_t* poison) {
  std::string wrong = check_address(fragment, address);
  if (!wrong.empty()) return wrong;
  const int lane0 = fragment_lane(address, warp), regs = registers(fragment),
            column0 = address_column(address);
  for (int reg = 0; reg < regs; ++reg)
    for (int thread = 0; thread < 32; ++thread) {
      const FragmentCell at = cell(fragment, thread, reg);
      const size_t from = static_cast<size_t>(reg) * 32 + thread;
      if (fragment.packed) {
        const uint32_t words[2] = {values[from] & 0xFFFF, values[from] >> 16};
        const uint8_t bad[2] = {static_cast<uint8_t>((poison[from] & 3) | 12),
                                static_cast<uint8_t>((poison[from] >> 2 & 3) | 12)};
        port.write(cta, lane0 + at.lane, column0 + at.column, 2, words, bad);
      } else {
        port.write(cta, lane0 + at.lane, column0 + at.column, 1, &values[from], &poison[from]);
      }
    }
  return {};
}

}  // namespace sm100sim::tensorcore
