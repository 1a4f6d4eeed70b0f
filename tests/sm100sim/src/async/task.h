// An asynchronous operation in flight. It is registered when its instruction executes and happens
// when the scheduler decides, after the tasks it must follow. Its sources are held against writers,
// its destinations are poison until it has happened. The steps of a task happen in order, at
// separate times: a bulk store reads in one and writes in another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/mbarrier.h"

namespace sm100sim {

struct Block;
struct Cta;
struct Grid;
struct Cluster;
struct Program;

struct Hold {
  Block* block;
  uint64_t offset, bytes;
  bool write;
};

struct Task {
  uint64_t id = 0;
  const char* what = "";  // for reports
  Grid* grid = nullptr;
  Cluster* cluster = nullptr;  // the issuer's: it is kept until its tasks are done
  const Program* program = nullptr;
  uint32_t cta_linear = 0;
  uint64_t due = 0;  // under the random policy: not before this step
  int statement = -1;
  int warp = -1, lane = -1;
  std::vector<std::function<void()>> steps;
  size_t next_step = 0;
  std::vector<Hold> holds;
  std::vector<std::shared_ptr<Task>> after;  // must be done first
  bool done = false;
  int agent = -1;        // of the race detector
  int write_agent = -1;  // of a store: its writes come later than its reads
  Clock clock;
  std::function<std::string()> describe;

  bool ready() const {
    for (const auto& t : after) {
      if (!t->done) return false;
    }
    return true;
  }
};
using TaskRef = std::shared_ptr<Task>;

/// The bulk groups of one thread: committed groups oldest first, and the open one. `read_done` when
/// only the reading steps are over.
struct BulkMember {
  TaskRef task;
  size_t read_steps;  // how many steps are reads
  bool read_done() const { return task->done || task->next_step >= read_steps; }
};
struct BulkGroups {
  std::vector<std::vector<BulkMember>> committed;
  std::vector<BulkMember> open;
};

}  // namespace sm100sim
