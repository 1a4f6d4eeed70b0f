// Tensor memory and its allocation map. See tmem.h.
#include "tensorcore/tmem.h"

#include <algorithm>

#include "numerics/words.h"

namespace sm100sim::tensorcore {

Tmem::Tmem() : words_(kTmemLanes * kTmemColumns), poison_(kTmemLanes * kTmemColumns) { reset(); }

void Tmem::reset() {
  std::fill(words_.begin(), words_.end(), 0xDEADBEEF);
  std::fill(poison_.begin(), poison_.end(), 0xF);
  owner_.fill(-1);
  size_.fill(0);
}

int Tmem::allocate(int columns, int owner) {
  for (int start = 0; start + columns <= kTmemColumns; start += columns) {
    bool free = true;
    for (int i = start; i < start + columns; ++i) free = free && owner_[i] < 0;
    if (!free) continue;
    std::fill_n(owner_.begin() + start, columns, owner);
    size_[start] = columns;
    return start;
  }
  return -1;
}

bool Tmem::deallocate(int column, int columns, int owner, std::string* why) {
  std::string wrong = check_allocation_size(static_cast<uint32_t>(columns));
  if (wrong.empty() &&
      (column < 0 || column >= kTmemColumns || size_[column] == 0 || owner_[column] != owner))
    wrong = sm100sim::words("tcgen05.dealloc: column {} does not start an allocation of this CTA",
                            column);
  if (wrong.empty() && size_[column] != columns)
    wrong = sm100sim::words("tcgen05.dealloc: {} columns found, the allocation at column {} has {}",
                            columns, column, size_[column]);
  if (!wrong.empty()) {
    if (why) *why = wrong;
    return false;
  }
  size_[column] = 0;
  std::fill_n(owner_.begin() + column, columns, -1);
  for (int lane = 0; lane < kTmemLanes; ++lane) std::fill_n(poison(lane) + column, columns, 0xF);
  return true;
}

int Tmem::allocated_columns(int owner) const {
  return static_cast<int>(std::count(owner_.begin(), owner_.end(), owner));
}

std::string check_allocation_size(uint32_t columns) {
  if (columns >= 32 && columns <= 512 && (columns & (columns - 1)) == 0) return {};
  return sm100sim::words(
      "number of tensor-memory columns: {} found; a power of two in 32..512 accepted", columns);
}

}  // namespace sm100sim::tensorcore
