// The claim-a-task scheme: every task once, no wait for the pool, nothing touched after the end.
#include <atomic>
#include <memory>

#include "fp_mode.h"
#include "harness.h"
#include "pool.h"
#include "threads.h"

using megamoe::cpu::run_tasks;

TEST(every_task_runs_exactly_once) {
  Pool pool(4, 3);
  for (int round = 0; round < 300; ++round) {
    const int64_t total = round % 37;
    std::vector<std::atomic<int>> runs(static_cast<size_t>(total));
    run_tasks(pool, total, 3, [&](int64_t i) { runs[static_cast<size_t>(i)].fetch_add(1); });
    for (const auto& n : runs) CHECK(n.load() == 1, "ran %d times", n.load());
  }
}

TEST(finishes_though_no_worker_ever_comes) {
  Pool pool(8, 0);
  std::atomic<int> runs{0};
  run_tasks(pool, 100, 7, [&](int64_t) { runs.fetch_add(1); });
  CHECK(runs.load() == 100);
}

// Handlers on every worker of the pool that they are given: schedule-and-wait would hang here.
TEST(callers_that_occupy_all_workers_finish) {
  std::atomic<int> outer{0}, inner{0};
  {
    Pool pool(2, 2);
    for (int i = 0; i < 64; ++i) {
      pool.schedule([&] {
        run_tasks(pool, 20, 1, [&](int64_t) { inner.fetch_add(1); });
        outer.fetch_add(1);
      });
    }
    while (outer.load() < 64) std::this_thread::yield();
  }
  CHECK(inner.load() == 64 * 20, "ran %d", inner.load());
}

// Helpers start after the call has returned and its state is gone (the sanitizers watch).
TEST(late_helpers_touch_nothing) {
  std::vector<std::function<void()>> late;
  struct Keep final : megamoe::cpu::Executor {
    std::vector<std::function<void()>>* kept;
    int64_t threads() const override { return 4; }
    void schedule(std::function<void()> task) override { kept->push_back(std::move(task)); }
  } keeper;
  keeper.kept = &late;
  auto buffer = std::make_unique<std::vector<int>>(10, 0);
  run_tasks(keeper, 10, 3, [&](int64_t i) { (*buffer)[static_cast<size_t>(i)] = 1; });
  buffer.reset();
  for (const auto& helper : late) helper();
  CHECK(late.size() == 3);
}

// A task may wait for an earlier one.
TEST(waits_for_earlier_tasks_resolve) {
  Pool pool(4, 3);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int32_t> done{0};
    std::atomic<int> bad{0};
    run_tasks(pool, 30, 3, [&](int64_t i) {
      if (i % 10 == 9) megamoe::cpu::wait_until(done, static_cast<int32_t>(i / 10 * 9 + 9));
      if (i % 10 != 9) done.fetch_add(1);
      if (i == 29 && done.load() != 27) bad.fetch_add(1);
    });
    CHECK(bad.load() == 0);
  }
}

TEST(denormals_are_flushed_inside_and_the_mode_is_restored) {
  volatile float tiny = 1e-38f;
  Pool pool(1, 0);
  float inside = -1.0f;
  run_tasks(pool, 1, 0, [&](int64_t) { inside = tiny * 0.01f; });
  CHECK(inside == 0.0f, "found %g", static_cast<double>(inside));
  const float outside = tiny * 0.01f;
  CHECK(outside > 0.0f, "found %g", static_cast<double>(outside));
}
