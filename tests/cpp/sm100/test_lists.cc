// How ids travel, how eight of them are compared, list entries and row groups; and the counting
// sort that build_lists.cuh does with them, in one thread, against std::stable_sort's order.
#include <climits>
#include <random>
#include <vector>

#include "harness.h"
#include "lists.h"
#include "workspace.h"

namespace {

using namespace megamoe::sm100;

TEST(ids_outside_the_experts_are_skipped_whatever_they_are) {
  for (uint32_t experts : {1u, 32u, 384u, kMaxExperts}) {
    CHECK(travelling_id(0, experts) == 0);
    CHECK(travelling_id(static_cast<int32_t>(experts) - 1, experts) == experts - 1);
    for (int32_t id : {-1, INT_MIN, INT_MAX, static_cast<int32_t>(experts), 65535, 65536, 1 << 24})
      if (id < 0 || id >= static_cast<int32_t>(experts))
        CHECK(travelling_id(id, experts) == kSkipped, "%d of %u", id, experts);
  }
  CHECK(kMaxExperts - 1 < kSkipped, "no id looks skipped");
}

TEST(matches_sees_each_of_eight_ids_and_never_a_skipped_one) {
  std::mt19937 rng(1);
  for (int round = 0; round < 2000; ++round) {
    uint32_t ids[8], words[4];
    for (uint32_t& id : ids) id = rng() % 4 == 0 ? kSkipped : rng() % 3;
    for (int i = 0; i < 4; ++i) words[i] = ids[2 * i] | ids[2 * i + 1] << 16;
    for (uint32_t expert = 0; expert < 3; ++expert) {
      uint32_t want = 0;
      for (int i = 0; i < 8; ++i) want |= static_cast<uint32_t>(ids[i] == expert) << i;
      CHECK(matches(words, expert) == want);
    }
  }
}

TEST(an_entry_holds_the_largest_row_and_slot) {
  const uint32_t row = kMaxRanks * kMaxTokens - 1;
  for (uint32_t slot : {0u, kMaxSlots - 1}) {
    CHECK(entry_row(list_entry(row, slot)) == row && entry_slot(list_entry(row, slot)) == slot);
  }
}

TEST(row_groups_are_contiguous_cover_all_experts_and_are_as_many_as_asked_at_most) {
  for (uint32_t experts = 1; experts <= 50; ++experts) {
    for (uint32_t groups = 1; groups <= kRowGroups; ++groups) {
      uint32_t before = 0;
      for (uint32_t x = 0; x < experts; ++x) {
        const uint32_t g = row_group(x, experts, groups);
        CHECK(g < groups && g >= before && g <= before + 1);
        before = g;
        const uint32_t end = row_group_end(g, experts, groups);
        CHECK(end > x && end <= experts);
        CHECK(row_group(end - 1, experts, groups) == g, "%u of %u in %u", x, experts, groups);
        CHECK(end == experts || row_group(end, experts, groups) == g + 1);
      }
    }
  }
}

// The same passes as the builders': eight ids a thread, threads in order.
TEST(lists_hold_rows_in_the_order_source_token_slot) {
  std::mt19937 rng(2);
  for (int round = 0; round < 50; ++round) {
    const uint32_t ranks = 1 + rng() % 4, slots = 1 + rng() % 8, most = 40, experts = 5;
    std::vector<std::vector<uint32_t>> want(experts), got(experts);
    for (uint32_t s = 0; s < ranks; ++s) {
      const uint32_t tokens = rng() % (most + 1), ids = tokens * slots;
      std::vector<uint16_t> table(round_up(ids, kIdsPerLoad), kSkipped);
      for (uint32_t i = 0; i < ids; ++i) {
        table[i] =
            static_cast<uint16_t>(travelling_id(static_cast<int32_t>(rng() % 8) - 1, experts));
        if (table[i] != kSkipped) want[table[i]].push_back((s * most + i / slots) * 32 + i % slots);
      }
      for (uint32_t i = 0; i < ids; i += kIdsPerLoad) {
        uint32_t words[4];
        for (int w = 0; w < 4; ++w)
          words[w] = table[i + 2 * w] | static_cast<uint32_t>(table[i + 2 * w + 1]) << 16;
        for (uint32_t x = 0; x < experts; ++x) {
          for (uint32_t bits = matches(words, x); bits != 0; bits &= bits - 1) {
            const uint32_t id = i + static_cast<uint32_t>(__builtin_ctz(bits));
            got[x].push_back(list_entry(s * most + id / slots, id % slots));
          }
        }
      }
    }
    CHECK(got == want);
  }
}

TEST(the_metadata_word_returns_what_was_put_in) {
  for (uint32_t epoch : {0u, 1u, 0xFFFFFFFFu}) {
    for (uint32_t tokens : {0u, 1u, kMaxTokens}) {
      const uint64_t word = meta_flag_word(epoch, kRowGroups, tokens, 255);
      CHECK(flag_epoch(word) == epoch && flag_groups(word) == kRowGroups);
      CHECK(flag_tokens(word) == tokens && flag_call_site(word) == 255);
    }
  }
}

}  // namespace
