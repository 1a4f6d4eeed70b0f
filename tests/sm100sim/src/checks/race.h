// Data races by vector clocks (Options::races; off by default, since slow). Agents are warps and
// asynchronous tasks. Two clocks travel along the edges that were really executed: what happened
// before (`clock`), and which of it also passed a proxy fence (kept by the always-on check of
// memory/access). Edges: program order, bar/barrier, barrier.cluster, mbarriers, release/acquire
// pairs of atomics and fences on the same location (scope wide enough for both), bar.warp.sync is
// inside an agent, bulk completion, launch and end of grids.
//
// A weak access that conflicts with another agent's access and is not ordered with it is a race;
// two strong accesses never are.
#pragma once

#include <cstdint>

#include "async/mbarrier.h"

namespace sm100sim {

struct Exec;
struct Place;
struct World;
struct Task;
struct Warp;
struct Grid;
struct Block;

enum class RaceKind : uint8_t { kRead, kWrite, kStrongRead, kStrongWrite };

/// Generic access of a lane. Throws Fault("race") when it conflicts.
void race_access(Exec& e, const Place& place, uint32_t bytes, int lane, RaceKind kind,
                 uint8_t order, uint8_t scope);
/// A release operation is about to write: later strong writes of the warp to this location publish.
void race_release_prepare(Exec& e, uint8_t scope);
void race_warp_sync(Exec& e, uint32_t lanes);
void race_fence(Exec& e, uint8_t order, uint8_t scope);

void race_barrier_arrive(Exec& e, Clock& released, Clock& proxied);
void race_barrier_complete(World& world, Clock& released, Clock& completed, Clock& proxied,
                           Clock& completed_proxied);
void race_acquire(Exec& e, const Clock& completed, const Clock& proxied);
void race_release_into(Exec& e, Clock& released, Clock& proxied);

void race_task_start(Exec& e, Task& task);
void race_async(Exec& e, Task& task, const Place& place, uint64_t bytes, bool write, int lane,
                bool reduction = false);
/// `full`: with all the issuer knew (commit), else only the task's own accesses (a copy's
/// complete_tx).
void race_task_release(World& world, const Task& task, Clock& released, Clock& proxied,
                       bool full = false);
void race_task_end(World& world, const Task& task);
/// Notes a tcgen05 operation for the thread's later commits; `race_commit` gives the commit's task
/// what they know.
void race_tensor_issue(Exec& e, int lane, int group, const Task& task);
void race_commit(Exec& e, int lane, int group, Task& task);
/// The waiter of a bulk group: with `reads_only` it learns of the reads of shared memory alone.
void race_task_join(Exec& e, const Task& task, bool reads_only = false);
/// Makes the writes of a store an agent of their own.
void race_split(Exec& e, Task& task);

void race_enable(World& world);
void race_forget(World& world, const Block* block);
void race_warp_start(World& world, Warp& warp);
void race_grid_end(World& world, Grid& grid);

}  // namespace sm100sim
