// Sorting a chunk's (token, slot) pairs by expert.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

namespace megamoe::cpu {

struct SortedSlots {
  std::vector<int32_t> order;  // valid slots (token * K + k within the chunk), by expert, ascending
  std::vector<int32_t> first;  // [experts + 1]: where each expert's slots begin in `order`
};

// Ids are untrusted: one outside 0..experts-1 skips its slot.
void sort_slots(const int32_t* topk_idx, int64_t slots, int64_t experts, SortedSlots& sorted);

}  // namespace megamoe::cpu
