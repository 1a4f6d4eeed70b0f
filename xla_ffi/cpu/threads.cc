// The claim-a-task scheme of threads.h. The control block is allocated per call: were it reused, a
// late helper of one call would claim tasks of the next.
#include "threads.h"

#include <memory>
#include <thread>

#include "fp_mode.h"

namespace megamoe::cpu {
namespace {

void relax() {
#if defined(__x86_64__)
  asm volatile("pause");
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

struct Control {
  Control(int64_t n, const std::function<void(int64_t)>* f) : total(n), work(f) {}

  const int64_t total;
  const std::function<void(int64_t)>* const work;  // alive while a claimed task is unfinished
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int64_t> finished{0};
};

void claim_all(Control& control) {
  int64_t task = control.next.fetch_add(1, std::memory_order_relaxed);
  if (task >= control.total) return;
  const FlushDenormals mode;
  do {
    (*control.work)(task);
    // After the last task's count the caller may return: nothing but the counters is touched from
    // here.
    if (control.finished.fetch_add(1, std::memory_order_acq_rel) + 1 == control.total) {
      control.finished.notify_all();
    }
    task = control.next.fetch_add(1, std::memory_order_relaxed);
  } while (task < control.total);
}

}  // namespace

void run_tasks(Executor& executor, int64_t total, int64_t helpers,
               const std::function<void(int64_t)>& work) {
  if (total <= 0) return;
  const auto control = std::make_shared<Control>(total, &work);
  try {
    for (int64_t i = 0; i < helpers; ++i) executor.schedule([control] { claim_all(*control); });
  } catch (...) {
    // No memory for another helper: those scheduled so far and this thread do the work.
  }
  claim_all(*control);
  int64_t done;
  for (int spin = 0; (done = control->finished.load(std::memory_order_acquire)) != total; ++spin) {
    if (spin < 4000) {
      relax();
    } else {
      control->finished.wait(done, std::memory_order_acquire);
    }
  }
}

void wait_until(const std::atomic<int32_t>& counter, int32_t value) {
  for (int spin = 0; counter.load(std::memory_order_acquire) < value; ++spin) {
    if (spin < 4000) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace megamoe::cpu
