// The idle list of scratch.h. It is never destroyed: a pool thread may outlive static destructors.
#include "scratch.h"

#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <mutex>
#include <new>
#include <vector>

namespace megamoe::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr size_t kIdleCount = 16;

struct IdleList {
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> items;
  int64_t bytes = 0;
};

IdleList& idle() {
  static IdleList* list = new IdleList;
  return *list;
}

}  // namespace

void Scratch::Free::operator()(uint8_t* p) const { free(p); }

uint8_t* Scratch::memory(int64_t bytes) {
  if (bytes <= bytes_) return memory_.get();
  memory_.reset();
  bytes_ = 0;
  const int64_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* p = aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded));
  if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage)
    madvise(p, static_cast<size_t>(rounded), MADV_HUGEPAGE);  // a hint only
#endif
  memory_.reset(static_cast<uint8_t*>(p));
  bytes_ = rounded;
  return memory_.get();
}

int64_t Scratch::bytes() const {
  const auto held = [](const auto& vector) { return vector.capacity() * sizeof(vector[0]); };
  const size_t vectors = held(slots.order) + held(slots.first) + held(plan.blocks) +
                         held(plan.tiles) + held(plan.tasks);
  return bytes_ + static_cast<int64_t>(vectors) +
         sync_count_ * static_cast<int64_t>(sizeof(BlockSync));
}

BlockSync* Scratch::sync(int64_t count) {
  if (count > sync_count_) {
    sync_.reset(new BlockSync[static_cast<size_t>(count)]);
    sync_count_ = count;
  }
  for (int64_t i = 0; i < count; ++i) {
    sync_[i].packed.store(0, std::memory_order_relaxed);
    sync_[i].gate_up_done.store(0, std::memory_order_relaxed);
    sync_[i].ready.store(0, std::memory_order_relaxed);
    sync_[i].down_done.store(0, std::memory_order_relaxed);
  }
  return sync_.get();
}

std::unique_ptr<Scratch> take_scratch() {
  IdleList& list = idle();
  {
    const std::lock_guard lock(list.mutex);
    if (!list.items.empty()) {
      std::unique_ptr<Scratch> scratch = std::move(list.items.back());
      list.items.pop_back();
      list.bytes -= scratch->bytes();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void give_scratch(std::unique_ptr<Scratch> scratch) noexcept {
  IdleList& list = idle();
  try {
    const std::lock_guard lock(list.mutex);
    if (list.items.size() < kIdleCount && list.bytes + scratch->bytes() <= kIdleBytes) {
      list.items.reserve(kIdleCount);
      list.bytes += scratch->bytes();
      list.items.push_back(std::move(scratch));
    }
  } catch (...) {
    // Not kept, then: the unique_ptr frees it.
  }
}

}  // namespace megamoe::cpu
