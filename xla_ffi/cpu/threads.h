// Running numbered tasks on somebody else's thread pool without ever waiting for the pool.
//
// An FFI handler often runs ON a worker of the pool it is given; if it scheduled tasks and waited
// for the pool to run them, handlers could fill all workers and wait for ever. So tasks are
// claimed, in ascending order, from one counter; the calling thread claims too, and it waits only
// for tasks that somebody has claimed, which are running. A helper that the pool starts late finds
// nothing left; it touches only the counter block, which it owns a share of, because the call and
// its buffers may be gone by then.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <functional>

namespace megamoe::cpu {

class Executor {
 public:
  virtual ~Executor() = default;
  virtual int64_t threads() const = 0;
  virtual void schedule(std::function<void()> task) = 0;
};

// Runs work(0) .. work(total - 1), each once, on this thread and up to `helpers` of the executor's.
// A task may wait (wait_until) for a task with a LOWER number and for nothing else: that one is
// claimed, so it is running or done. `work` must not throw. Every thread computes with denormals
// flushed.
void run_tasks(Executor& executor, int64_t total, int64_t helpers,
               const std::function<void(int64_t)>& work);

// Spins until counter has reached `value`, giving up the processor after a while.
void wait_until(const std::atomic<int32_t>& counter, int32_t value);

}  // namespace megamoe::cpu
