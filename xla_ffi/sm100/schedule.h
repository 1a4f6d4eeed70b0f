// Which task comes when: the stream of (product, unit, tile) and how an expert's rows fall into
// units. Pure functions of the lists' lengths, computed alike everywhere; plain C++ that also
// compiles on the host, where it is tested. Shaped by section "No deadlock" of README.md: every
// wait is for an earlier position of the stream.
#pragma once

#include "common.h"

namespace megamoe::sm100 {

// Units of an expert with n rows, tiles of at most `tile` rows.
MOE_BOTH constexpr uint32_t units_of(uint32_t n, uint32_t tile) { return ceil_div(n, tile); }

// Rows of each of these units but perhaps the last: equal tiles (260 rows are 144 + 116, not
// 192 + 68), since the tensor core's time goes by rows rounded up to 16.
MOE_BOTH constexpr uint32_t rows_of_unit(uint32_t n, uint32_t tile) {
  return round_up(ceil_div(n, units_of(n, tile)), 16);
}

struct Unit {
  uint32_t expert;  // local
  uint32_t begin;   // first row, in the expert's list
  uint32_t rows;    // 1 .. tile
};

// Finds the unit of a number. Numbers must not decrease from call to call, so that all calls
// together walk the experts once. `Counts` gives an expert's list length.
class UnitCursor {
 public:
  template <class Counts>
  MOE_BOTH Unit find(uint32_t unit, uint32_t tile, const Counts& count) {
    uint32_t n = count(expert_), units = units_of(n, tile);
    while (unit >= first_ + units) {
      first_ += units;
      n = count(++expert_);
      units = units_of(n, tile);
    }
    const uint32_t size = rows_of_unit(n, tile), begin = (unit - first_) * size;
    return {expert_, begin, n - begin < size ? n - begin : size};
  }

 private:
  uint32_t expert_ = 0, first_ = 0;
};

struct Task {
  bool second;  // product
  uint32_t unit, tile;
};

// Step u of the stream, for u = 0 .. units + lag - 1: the m1 first-product tiles of unit u, then
// the m2 second-product tiles of unit u - lag, where those exist.
struct Stream {
  uint32_t units, lag, m1, m2;

  MOE_BOTH uint32_t tasks() const { return units * (m1 + m2); }

  MOE_BOTH Task at(uint32_t position) const {
    const uint32_t behind = lag < units ? lag : units;
    const uint32_t head = behind * m1, body = (units - behind) * (m1 + m2);
    if (position < head) return {false, position / m1, position % m1};
    position -= head;
    if (position < body) {
      const uint32_t step = position / (m1 + m2), rest = position % (m1 + m2);
      if (rest < m1) return {false, behind + step, rest};
      return {true, step, rest - m1};
    }
    position -= body;
    return {true, units - behind + position / m2, position % m2};
  }
};

}  // namespace megamoe::sm100
