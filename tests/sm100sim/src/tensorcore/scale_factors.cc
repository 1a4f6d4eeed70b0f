// Reading scale factors. See scale_factors.h.
#include "tensorcore/scale_factors.h"

#include <algorithm>
#include <cmath>

#include "tensorcore/tmem.h"

namespace sm100sim::tensorcore {

ScaleCell scale_cell(int row, int block, int id, int partition) {
  return {partition * 32 + row % 32, row / 32, id + block};
}

Scales fetch_scales(uint32_t address, numerics::Format format, int rows, int stride, int id,
                    int count, int partition, int cta, TmemPort& port) {
  Scales out;
  out.rows = rows;
  out.count = count;
  out.stride = stride;
  out.value.assign(static_cast<size_t>(count) * stride, 1);
  out.exponent.assign(out.value.size(), 0);
  out.special.assign(rows, 0);
  out.poisoned.assign(rows, 0);
  const int smallest = 1 - numerics::info(format).bias;
  uint32_t words[8];
  uint8_t poison[8];
  for (int lane = 0; lane < std::min(32, rows); ++lane) {
    const int columns = (rows - lane + 31) / 32;
    port.read(cta, partition * 32 + lane, address_column(address), columns, words, poison);
    for (int column = 0; column < columns; ++column) {
      const int row = column * 32 + lane;
      for (int block = 0; block < count; ++block) {
        const int byte = scale_cell(row, block, id, partition).byte;
        const double value = numerics::decode(format, words[column] >> (8 * byte) & 0xFF);
        const size_t at = static_cast<size_t>(block) * stride + row;
        out.value[at] = value;
        if (std::isnan(value)) {
          out.special[row] = 1;
        } else if (value != 0) {
          const int exponent = std::ilogb(value);  // UE8M0 has no subnormals: its code 0 is 2^-127
          out.exponent[at] = static_cast<int16_t>(
              format == numerics::Format::kUe8m0 ? exponent : std::max(exponent, smallest));
        }
        if (poison[column] >> byte & 1) out.poisoned[row] = 1;
      }
    }
  }
  return out;
}

}  // namespace sm100sim::tensorcore
