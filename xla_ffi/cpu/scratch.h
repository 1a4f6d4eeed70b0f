// Memory that calls reuse: allocating and faulting in fresh pages for every call would cost a
// prefill a tenth of its time.
//
// A call takes a Scratch of its own and gives it back; what lies idle is bounded (kIdleBytes), the
// rest is freed. Nothing here depends on the number of processors.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <memory>

#include "plan.h"
#include "sort.h"

namespace megamoe::cpu {

// Progress of a block: each counter only rises within a chunk.
struct BlockSync {
  std::atomic<int32_t> packed{0}, gate_up_done{0}, ready{0}, down_done{0};
};

class Scratch {
 public:
  SortedSlots slots;
  Plan plan;

  // At least `bytes`, aligned to 64, contents undefined. Throws std::bad_alloc.
  uint8_t* memory(int64_t bytes);
  // `count` fresh counters.
  BlockSync* sync(int64_t count);
  // What it holds, the vectors' spare room too.
  int64_t bytes() const;

 private:
  struct Free {
    void operator()(uint8_t* p) const;
  };
  std::unique_ptr<uint8_t, Free> memory_;
  int64_t bytes_ = 0;
  std::unique_ptr<BlockSync[]> sync_;
  int64_t sync_count_ = 0;
};

inline constexpr int64_t kIdleBytes = int64_t{256} << 20;

std::unique_ptr<Scratch> take_scratch();
void give_scratch(std::unique_ptr<Scratch> scratch) noexcept;

}  // namespace megamoe::cpu
