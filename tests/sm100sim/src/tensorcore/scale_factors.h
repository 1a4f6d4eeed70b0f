// Scale factors in tensor memory: which byte of which word scales row m of A, or column n of B, in K block j (PTX ISA "Block scaling";
// CuTe tmem_sf_frg). Copies must stand in every 32-lane partition that uses them; each partition reads its own.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcore/descriptor.h"
#include "tensorcore/ports.h"

namespace sm100sim::tensorcore {

struct ScaleCell {
  int lane;    // within the first partition that reads it
  int column;  // relative to the address
  int byte;
};

// 32-lane partition `partition` (0..3) reads the scale of row `row` here. `halves`: SFB with M = 128 on a pair, where partitions 0-1 hold
// the first half of the columns and 2-3 the second.
ScaleCell scale_cell(int row, int block, int id, int scales_per_row, int partition, bool halves, int rows_total);

struct Scales {
  int rows = 0, count = 0;         // `count` scales a row
  std::vector<double> value;       // [count][rows]
  std::vector<int16_t> exponent;   // [count][rows]
  std::vector<uint8_t> poisoned;   // per row
};

// Reads rows of one CTA for one partition.
void fetch_scales(uint32_t address, numerics::Format format, int rows, int id, int count, int partition, bool halves, int cta,
                  TmemPort& port, Scales* out);

}  // namespace sm100sim::tensorcore
