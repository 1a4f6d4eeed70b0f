// Scale factors in tensor memory: which byte of which word scales row m of A, or column n of B, in
// K block j (PTX ISA "Block scaling"; CuTe tmem_sf_frg). A copy must stand in every 32-lane
// partition; each partition's datapath reads its own.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcore/descriptor.h"
#include "tensorcore/ports.h"

namespace sm100sim::tensorcore {

struct ScaleCell {
  int lane;
  int column;  // relative to the address
  int byte;
};

// Where 32-lane partition `partition` reads the scale of row `row` (counted from the first row that
// this partition's half holds) in block `block` of the instruction's K. `id` is SFA_ID or SFB_ID: a
// byte offset for one scale a row, a half word for two, 0 for four.
ScaleCell scale_cell(int row, int block, int id, int partition);

struct Scales {
  int rows = 0, count = 0;        // `count` scales a row
  int stride = 0;                 // rows, padded
  std::vector<double> value;      // [count][stride]
  std::vector<int16_t> exponent;  // [count][stride], zeros and NaN: 0
  std::vector<uint8_t> special;   // per row: NaN
  std::vector<uint8_t> poisoned;  // per row
};

Scales fetch_scales(uint32_t address, numerics::Format format, int rows, int stride, int id,
                    int count, int partition, int cta, TmemPort& port);

// Columns that the scales of `rows` rows span.
constexpr int scale_columns(int rows) { return (rows + 31) / 32; }

}  // namespace sm100sim::tensorcore
