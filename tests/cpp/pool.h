// A thread pool for tests, with the habits of XLA's that matter: tasks run in order of scheduling,
// on workers that may all be busy, and possibly long after the caller has returned.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "threads.h"

class Pool final : public megamoe::cpu::Executor {
 public:
  // `claimed` is what it says it has, `workers` what it has.
  Pool(int64_t claimed, int workers) : claimed_(claimed) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Pool() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t threads() const override { return claimed_; }
  void schedule(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    ready_.notify_one();
  }

 private:
  void serve() {
    for (;;) {
      std::unique_lock lock(mutex_);
      ready_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task();
    }
  }

  const int64_t claimed_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};
