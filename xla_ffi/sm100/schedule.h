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
  bool alone;       // the expert's only unit: nobody else reads its weights
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
    return {expert_, begin, n - begin < size ? n - begin : size, units == 1};
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

// Which positions of the stream a pair of CTAs takes, always in ascending order. Long streams are
// dealt in turn. With few tasks a pair (8 at most) that would leave some with much more to read
// than others, so there all of the first product comes first, dealt in turn, and the second
// product's tiles, which are `blocks1 / blocks2` times shorter, go to the pair that has the fewest
// blocks so far. Since tasks of a product are equally long that greedy choice has a closed form:
// the pairs that got one first-product tile less take second-product tiles until they have caught
// up, and then all take turns.
class Schedule {
 public:
  MOE_BOTH Schedule(Stream stream, uint32_t pairs, uint32_t ring_units, uint32_t blocks1,
                    uint32_t blocks2)
      : stream_(stream), pairs_(pairs), in_turn_(stream.tasks()), behind_(pairs), catching_up_(0) {
    if (stream.units > ring_units || in_turn_ > kFewTasks * pairs) return;
    stream_.lag = stream.units;
    in_turn_ = stream.units * stream.m1;
    const uint32_t ahead = in_turn_ % pairs;
    behind_ = pairs - ahead;
    catching_up_ = ahead == 0 ? 0 : ceil_div(blocks1, blocks2) * behind_;
  }

  MOE_BOTH const Stream& stream() const { return stream_; }
  MOE_BOTH uint32_t first(uint32_t pair) const {
    return pair < in_turn_ ? pair : in_turn_ + first_second(pair);
  }
  // The pair's position after `position`; at the end no smaller than tasks().
  MOE_BOTH uint32_t after(uint32_t position, uint32_t pair) const {
    if (position < in_turn_)
      return position + pairs_ < in_turn_ ? position + pairs_ : in_turn_ + first_second(pair);
    uint32_t second = position - in_turn_;
    if (second >= catching_up_) return position + pairs_;
    second += behind_;
    return in_turn_ + (second < catching_up_ ? second : catching_up_ + pair);
  }

 private:
  static constexpr uint32_t kFewTasks = 8;  // for each pair

  // The pair's first position among those after in_turn_.
  MOE_BOTH uint32_t first_second(uint32_t pair) const {
    const uint32_t ahead = pairs_ - behind_;
    return catching_up_ != 0 && pair >= ahead ? pair - ahead : catching_up_ + pair;
  }

  Stream stream_;
  uint32_t pairs_;
  uint32_t in_turn_;      // positions below: dealt in turn
  uint32_t behind_;       // pairs with one first-product tile less than the others
  uint32_t catching_up_;  // how many positions they then have for themselves
};

}  // namespace megamoe::sm100
