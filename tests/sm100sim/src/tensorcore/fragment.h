// tcgen05.ld and tcgen05.st: which register of which thread holds which cell, for every shape and
// .xN, with .pack::16b/.unpack::16b. One warp at a time; a warp reaches only the 32 lanes of its
// quadrant (warp id % 4).
#pragma once

#include <cstdint>
#include <string>

#include "tensorcore/ports.h"

namespace sm100sim::tensorcore {

enum class FragmentShape : uint8_t { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

struct Fragment {
  FragmentShape shape;
  int repeat;           // N of .xN
  bool packed = false;  // .pack::16b (ld) or .unpack::16b (st)
  int half_split = 0;   // immHalfSplitoff of 16x32bx2, in columns
};

// Empty when PTX has this combination, else words.
std::string check(const Fragment& fragment);

int registers(const Fragment& fragment);  // per thread
int columns(const Fragment& fragment);    // spanned from the address (first part only for 16x32bx2)

struct FragmentCell {
  int lane;    // relative to the address' lane
  int column;  // relative to the address' column; with packing the even column of a pair
};
FragmentCell cell(const Fragment& fragment, int thread, int reg);

// Lane base of a warp: quadrant bits from the warp, bit 4 from the address.
int fragment_lane(uint32_t address, int warp);

// values[reg * 32 + thread], poison 4 bits a register. The string is empty, or says which rule the
// address breaks.
std::string load(const Fragment& fragment, uint32_t address, int warp, int cta, TmemPort& port,
                 uint32_t* values, uint8_t* poison);
std::string store(const Fragment& fragment, uint32_t address, int warp, int cta, TmemPort& port,
                  const uint32_t* values, const uint8_t* poison);

}  // namespace sm100sim::tensorcore
