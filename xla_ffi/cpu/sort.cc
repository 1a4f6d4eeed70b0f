// A counting sort: two passes over the ids, memory linear in slots and experts.
#include "sort.h"

namespace megamoe::cpu {

void sort_slots(const int32_t* topk_idx, int64_t slots, int64_t experts, SortedSlots& sorted) {
  // first[e + 1] counts expert e, then becomes its running position, then its end.
  sorted.first.assign(static_cast<size_t>(experts) + 1, 0);
  const auto valid = [&](int32_t id) { return id >= 0 && id < experts; };
  for (int64_t s = 0; s < slots; ++s) {
    if (valid(topk_idx[s])) ++sorted.first[static_cast<size_t>(topk_idx[s]) + 1];
  }
  int32_t total = 0;
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    const int32_t count = sorted.first[e + 1];
    sorted.first[e + 1] = total;
    total += count;
  }
  sorted.order.resize(static_cast<size_t>(total));
  for (int64_t s = 0; s < slots; ++s) {
    if (!valid(topk_idx[s])) continue;
    int32_t& position = sorted.first[static_cast<size_t>(topk_idx[s]) + 1];
    sorted.order[static_cast<size_t>(position++)] = static_cast<int32_t>(s);
  }
}

}  // namespace megamoe::cpu
