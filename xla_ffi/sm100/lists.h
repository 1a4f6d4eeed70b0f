// How expert ids travel and how a list entry looks: plain C++ shared with the host's tests. An
// expert's list holds its rows in the order (source, token, slot), so that nothing that happens
// later depends on which CTA or thread built it.
#pragma once

#include "common.h"

namespace megamoe::sm100 {

inline constexpr uint32_t kSkipped = 0xFFFF;
inline constexpr uint32_t kIdsPerLoad = 8;  // 16 bytes

// An id of topk_idx as 16 bits.
MOE_BOTH uint32_t travelling_id(int32_t id, uint32_t experts) {
  return static_cast<uint32_t>(id) < experts ? static_cast<uint32_t>(id) : kSkipped;
}

// Bit j: whether id j of 8, two in a word, is `expert`.
MOE_BOTH uint32_t matches(const uint32_t (&words)[4], uint32_t expert) {
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    bits |= static_cast<uint32_t>((words[i] & 0xFFFFu) == expert) << 2 * i;
    bits |= static_cast<uint32_t>(words[i] >> 16 == expert) << (2 * i + 1);
  }
  return bits;
}

// row: s Tm + t, below 2^27.
MOE_BOTH uint32_t list_entry(uint32_t row, uint32_t slot) { return row << 5 | slot; }
MOE_BOTH uint32_t entry_row(uint32_t entry) { return entry >> 5; }
MOE_BOTH uint32_t entry_slot(uint32_t entry) { return entry & 31; }

// Of expert x of `experts` with `groups` row groups: its group.
MOE_BOTH uint32_t row_group(uint32_t x, uint32_t experts, uint32_t groups) {
  return groups <= 1 ? 0 : x / ceil_div(experts, groups);
}
// One past a group's last expert.
MOE_BOTH uint32_t row_group_end(uint32_t group, uint32_t experts, uint32_t groups) {
  const uint32_t end = (group + 1) * ceil_div(experts, groups);
  return groups <= 1 || end > experts ? experts : end;
}

}  // namespace megamoe::sm100
