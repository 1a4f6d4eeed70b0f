// The order of tasks: units of equal size, the stream with its lag, and who takes which position,
// against a plain list, a brute-force greedy choice and a simulated run with a ring.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "harness.h"
#include "schedule.h"
#include "workspace.h"

namespace {

using namespace megamoe::sm100;

std::vector<Unit> units_of_lists(const std::vector<uint32_t>& counts, uint32_t tile) {
  uint32_t total = 0;
  for (uint32_t n : counts) total += units_of(n, tile);
  std::vector<Unit> units;
  UnitCursor cursor;
  for (uint32_t u = 0; u < total; ++u)
    units.push_back(cursor.find(u, tile, [&](uint32_t x) { return counts[x]; }));
  return units;
}

TEST(units_cover_each_list_once_in_order_by_tiles_that_differ_by_less_than_16_rows_a_unit) {
  std::mt19937 rng(1);
  for (uint32_t tile : {128u, 192u}) {
    for (int round = 0; round < 300; ++round) {
      std::vector<uint32_t> counts(1 + rng() % 9);
      for (uint32_t& n : counts) n = rng() % 3 == 0 ? 0 : rng() % (1 + rng() % 900);
      std::vector<uint32_t> covered(counts.size(), 0), units(counts.size(), 0);
      uint32_t expert = 0;
      for (const Unit& u : units_of_lists(counts, tile)) {
        CHECK(u.expert >= expert && u.rows >= 1 && u.rows <= tile);
        expert = u.expert;
        CHECK(u.begin == covered[expert], "begins at %u instead of %u", u.begin, covered[expert]);
        covered[expert] += u.rows;
        ++units[expert];
        const uint32_t least = units_of(counts[expert], tile);
        CHECK(u.alone == (least == 1));
        CHECK(u.rows <= round_up(ceil_div(counts[expert], least), 16));
      }
      CHECK(covered == counts);
      for (size_t x = 0; x < counts.size(); ++x)
        CHECK(units[x] == ceil_div(counts[x], tile), "no more units than needed");
    }
  }
}

TEST(a_unit_may_be_looked_up_again_and_far_ahead) {
  const std::vector<uint32_t> counts = {0, 300, 0, 0, 1, 129, 0};
  UnitCursor cursor;
  const auto count = [&](uint32_t x) { return counts[x]; };
  for (uint32_t u : {0u, 0u, 2u, 3u, 3u, 5u}) {
    const Unit unit = cursor.find(u, 128, count);
    CHECK(unit.expert == (u < 3 ? 1u : u < 4 ? 4u : 5u), "unit %u of expert %u", u, unit.expert);
  }
}

struct Shape {
  uint32_t units, lag, m1, m2, pairs, ring, blocks1, blocks2;
};
Shape any_shape(std::mt19937& rng) {
  Shape s;
  s.units = rng() % 40;
  s.lag = 1 + rng() % 9;
  s.m1 = 1 + rng() % 7;
  s.m2 = 1 + rng() % 7;
  s.pairs = 1 + rng() % 20;
  s.ring = s.lag + 1 + rng() % 30;
  s.blocks1 = 1 + rng() % 9;
  s.blocks2 = 1 + rng() % 9;
  return s;
}
Schedule schedule_of(const Shape& s) {
  return Schedule({s.units, s.lag, s.m1, s.m2}, s.pairs, s.ring, s.blocks1, s.blocks2);
}

TEST(the_stream_holds_every_task_once_and_the_second_product_behind_by_the_lag) {
  std::mt19937 rng(2);
  for (int round = 0; round < 500; ++round) {
    const Shape s = any_shape(rng);
    const Stream stream{s.units, s.lag, s.m1, s.m2};
    std::vector<Task> want;
    for (uint32_t step = 0; step < s.units + s.lag; ++step) {
      for (uint32_t t = 0; step < s.units && t < s.m1; ++t) want.push_back({false, step, t});
      for (uint32_t t = 0; step >= s.lag && t < s.m2; ++t) want.push_back({true, step - s.lag, t});
    }
    CHECK(stream.tasks() == want.size());
    for (uint32_t i = 0; i < want.size(); ++i) {
      const Task t = stream.at(i);
      CHECK(t.second == want[i].second && t.unit == want[i].unit && t.tile == want[i].tile,
            "position %u", i);
    }
  }
}

std::vector<std::vector<uint32_t>> shares(const Schedule& schedule, uint32_t pairs) {
  std::vector<std::vector<uint32_t>> of(pairs);
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    for (uint32_t at = schedule.first(pair); at < schedule.stream().tasks();
         at = schedule.after(at, pair))
      of[pair].push_back(at);
  }
  return of;
}

TEST(the_pairs_share_all_positions_each_in_ascending_order) {
  std::mt19937 rng(3);
  for (int round = 0; round < 3000; ++round) {
    const Shape s = any_shape(rng);
    const Schedule schedule = schedule_of(s);
    std::vector<int> taken(schedule.stream().tasks(), 0);
    for (const auto& share : shares(schedule, s.pairs)) {
      CHECK(std::is_sorted(share.begin(), share.end()));
      for (uint32_t at : share) ++taken[at];
    }
    for (int n : taken) CHECK(n == 1, "a position is taken %d times", n);
  }
}

TEST(few_tasks_are_dealt_as_a_greedy_choice_by_blocks_deals_them) {
  std::mt19937 rng(4);
  int few = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape s = any_shape(rng);
    if (s.units > s.ring || s.units * (s.m1 + s.m2) > 8 * s.pairs) continue;
    ++few;
    std::vector<uint32_t> greedy(s.pairs, 0), dealt(s.pairs, 0);
    for (uint32_t i = 0; i < s.units * (s.m1 + s.m2); ++i)
      *std::min_element(greedy.begin(), greedy.end()) += i < s.units * s.m1 ? s.blocks1 : s.blocks2;
    const Schedule schedule = schedule_of(s);
    const auto of = shares(schedule, s.pairs);
    for (uint32_t pair = 0; pair < s.pairs; ++pair)
      for (uint32_t at : of[pair])
        dealt[pair] += schedule.stream().at(at).second ? s.blocks2 : s.blocks1;
    std::sort(greedy.begin(), greedy.end());
    std::sort(dealt.begin(), dealt.end());
    CHECK(dealt == greedy);
  }
  CHECK(few > 500, "%d", few);
}

// Every pair runs its tasks in order; a task waits for the unit's first-product tiles (second
// product) or for the ring slot's earlier unit (first product).
TEST(no_schedule_deadlocks_if_the_ring_exceeds_the_lag) {
  std::mt19937 rng(5);
  for (int round = 0; round < 1000; ++round) {
    const Shape s = any_shape(rng);
    const Schedule schedule = schedule_of(s);
    const auto of = shares(schedule, s.pairs);
    std::vector<size_t> next(s.pairs, 0);
    std::vector<uint32_t> first(s.units, 0), second(s.units, 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t pair = 0; pair < s.pairs; ++pair) {
        if (next[pair] == of[pair].size()) continue;
        const Task t = schedule.stream().at(of[pair][next[pair]]);
        if (t.second ? first[t.unit] != s.m1 : t.unit >= s.ring && second[t.unit - s.ring] != s.m2)
          continue;
        ++(t.second ? second : first)[t.unit];
        ++next[pair];
        moved = true;
      }
    }
    for (uint32_t pair = 0; pair < s.pairs; ++pair)
      CHECK(next[pair] == of[pair].size(), "pair %u stands still", pair);
  }
}

// DeepSeek-V4-Flash and -Pro with one token a rank on 8 ranks: about six experts with a row each.
TEST(one_token_is_spread_over_the_grid_so_that_no_pair_reads_much_more_than_others) {
  struct Model {
    uint32_t hidden, intermediate;
  };
  for (const Model& m : {Model{4096, 2048}, Model{7168, 3072}}) {
    const uint32_t pairs = 73, m1 = l1_tiles(m.intermediate), m2 = l2_tiles(m.hidden);
    for (uint32_t units = 4; units <= 8; ++units) {
      const Schedule schedule({units, stream_lag(pairs, m.intermediate, m.hidden), m1, m2}, pairs,
                              24, m.hidden / 128, m.intermediate / 128);
      uint32_t most = 0;
      for (const auto& share : shares(schedule, pairs)) {
        uint32_t blocks = 0;
        for (uint32_t at : share)
          blocks += (schedule.stream().at(at).second ? m.intermediate : m.hidden) / 128;
        most = std::max(most, blocks);
      }
      const uint32_t all = units * (m1 * m.hidden + m2 * m.intermediate) / 128;
      // Greedy is never further from the mean than one task.
      CHECK(most * pairs <= all + pairs * m.hidden / 128, "%u of %u", most * pairs, all);
      CHECK(most <= ceil_div(all, pairs) + m.intermediate / 128, "units %u: %u, mean %u", units,
            most, all / pairs);
    }
  }
}

}  // namespace
