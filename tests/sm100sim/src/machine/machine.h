// The state of everything that runs: devices, grids, clusters, CTAs, warps and their fragments. A
// fragment is a set of lanes of a warp that are at the same statement; divergence splits it,
// reconvergence (at the immediate postdominator) joins it again. Behaviour is in the other files of
// this folder; this one only says what there is.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "async/task.h"
#include "checks/report.h"
#include "machine/options.h"
#include "machine/program.h"
#include "memory/space.h"
#include "tensorcore/tmem.h"

namespace sm100sim {

struct World;
struct Grid;
struct Cluster;
struct Cta;
struct Warp;
struct Sm;
struct RaceState;

/// Registers of one function activation, shared by all fragments that are inside it.
struct Frame {
  const Program* program = nullptr;
  std::unique_ptr<Reg[]> regs;
  std::unique_ptr<Pred[]> preds;
  std::shared_ptr<Frame> caller;
  int return_pc = -1;
  uint32_t local_base = 0;  // of this activation in the thread's local memory
  const Instr* call = nullptr;
};

/// Lanes that wait at `pc` for the others that a divergent branch separated from them.
struct Join {
  int pc = -1;
  std::shared_ptr<Frame> frame;
  uint32_t expected = 0, arrived = 0;
  uint64_t since = 0;
  std::shared_ptr<Join> parent;
};

enum class WaitKind : uint8_t {
  kNone,
  kBarrier,
  kCluster,
  kMbarrier,
  kCollective,
  kTmemAlloc,
  kBulkGroup,
  kTmemWait,
  kSleep,
  kGridDependency,
  kRegisters,
  kPoll
};
const char* wait_name(WaitKind kind);

struct Wait {
  WaitKind kind = WaitKind::kNone;
  Cta* cta = nullptr;       // whose barrier
  uint64_t key = 0;         // barrier id, mbarrier offset, ...
  uint64_t generation = 0;  // phase or generation waited for
  uint64_t until = 0;       // simulated time
  bool timed_out = false;
};

struct Fragment {
  uint32_t mask = 0;
  int pc = 0;
  int join_pc = -1;  // of `join` when its frame is ours
  std::shared_ptr<Frame> frame;
  std::shared_ptr<Join> join;
  Wait wait;
  bool resumed = false;  // the statement at pc already took effect before it waited
  uint64_t token = 0;    // what that statement noted for its second half
};

/// Lanes gathered at a warp-wide operation whose members are not all in one fragment.
struct Gather {
  const Instr* instr = nullptr;  // nullptr: bar.warp.sync, which may be reached from several places
  uint32_t arrived = 0, members = 0;
  std::vector<Fragment*> fragments;
};

/// A tcgen05.ld whose registers become defined at wait::ld.
struct TmemLoad {
  TaskRef task;
  TaskRef unwaited;  // done at wait::ld: until then the columns must not be reused
  std::shared_ptr<Frame> frame;
  std::vector<int32_t> regs;  // -1: not wanted
  std::shared_ptr<std::vector<uint32_t>> values;
  std::shared_ptr<std::vector<uint8_t>> poison;
};

struct Warp {
  Cta* cta = nullptr;
  int index = 0;
  uint32_t live = 0;
  std::vector<std::unique_ptr<Fragment>> fragments;
  std::vector<std::shared_ptr<Join>> joins;  // with arrived lanes
  std::vector<std::unique_ptr<Gather>> gathers;
  std::vector<Reg> specials;
  uint64_t steps = 0;
  int agent = -1;
  uint32_t sync_epoch = 1;
  uint32_t init_fenced = 0;  // lanes that executed fence.mbarrier_init
  uint32_t uid = 0;          // index into World::proxy_fences
  std::array<BulkGroups, kLanes> bulk;
  std::vector<TmemLoad> tmem_loads;
  std::map<std::pair<int, int>, Clock> tensor_clock;
  std::vector<TaskRef> tmem_stores;
  std::map<std::pair<int, int>, std::vector<TaskRef>>
      tensor_open;                             // (lane, cta_group): issued, oldest first
  std::vector<std::vector<TaskRef>> cp_async;  // per lane, since the last commit_group
  std::vector<std::vector<std::vector<TaskRef>>> cp_async_groups;  // per lane
  uint32_t setmaxnreg = 0;
  std::array<uint32_t, kLanes> cluster_phase{};  // cluster barriers arrived at
  uint32_t cluster_pending = 0;                  // lanes between arrive and wait
  std::array<uint32_t, kLanes>
      sync_event{};  // event of the last barrier or mbarrier a lane got past
  std::array<uint32_t, kLanes> after_fence{};  // event of its last tcgen05.fence::after_thread_sync
  std::array<uint32_t, kLanes> before_fence{};  // and of ::before_thread_sync
  void synchronised(uint32_t lanes, uint32_t now) {
    for_lanes(lanes, [&](int lane) { sync_event[static_cast<size_t>(lane)] = now; });
  }
  int ready_index = -1;  // place in World::ready, -1 when no fragment can run
};

struct NamedBarrier {
  int32_t arrived = 0, expected = 0;
  bool everybody = false;  // no thread count was given: all threads that live
  uint64_t generation = 0;
  bool reduce_and = true, reduce_or = false;
  int reduce_count = 0;
  struct Result {
    bool all = true, any = false;
    int count = 0;
  } result;
  Clock released, completed, proxied, completed_proxied;
};

struct TmemLease {
  uint32_t column = 0, columns = 0;
};

struct Cta {
  Grid* grid = nullptr;
  Cluster* cluster = nullptr;
  Sm* sm = nullptr;
  uint32_t rank = 0;
  uint32_t linear = 0;  // in the grid
  uint32_t index[3] = {};
  uint32_t live_threads = 0, threads = 0;
  std::vector<std::unique_ptr<Warp>> warps;
  std::unique_ptr<Block> shared;
  std::unique_ptr<Block> local;  // all threads, local_bytes each
  uint32_t local_bytes = 0;
  std::array<NamedBarrier, 16> barriers;
  std::unordered_map<uint32_t, Mbarrier> mbarriers;
  std::vector<TmemLease> tmem;
  bool tmem_permit = true;
  uint32_t tmem_last_columns = 0;
  bool started = false, finished = false;
  uint64_t reg_pool = 0;  // registers that setmaxnreg.dec has given back
  bool launched_dependents = false;
};

struct Cluster {
  Grid* grid = nullptr;
  uint32_t id = 0;
  uint32_t index[3] = {};
  std::vector<std::unique_ptr<Cta>> ctas;
  uint32_t arrived = 0;
  uint64_t generation = 0;
  Clock released, completed, proxied, completed_proxied;
  uint32_t live_threads = 0;
  int open_tasks = 0;
  struct PairAlloc {
    uint32_t waiting = 0;  // CTAs of the pair that stand at tcgen05.alloc
    uint32_t columns = 0;
    int64_t granted[2] = {-1, -1};
  };
  std::map<uint32_t, PairAlloc> pair_allocs;
};

struct LaunchConfig {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t cluster[3] = {1, 1, 1};
  bool explicit_cluster = false;
  uint32_t dynamic_shared = 0;
  bool cooperative = false;
  bool programmatic = false;  // may start before the previous grid of the stream has ended
};

/// Counters of one launch (README, "Counters").
struct Statistics {
  uint64_t instructions[kClasses] = {};
  uint64_t thread_instructions = 0, warp_instructions = 0;
  uint64_t global_read = 0, global_written = 0, peer_read = 0, peer_written = 0;
  uint64_t tma_read = 0, tma_written = 0, bulk_read = 0, bulk_written = 0;
  uint64_t mma_macs = 0, mma_instructions = 0;
  uint64_t bank_conflicts = 0, barrier_waits = 0, tasks = 0, spurious_waits = 0;
  double seconds = 0;
};

struct Grid {
  World* world = nullptr;
  int device = 0;
  uint64_t id = 0;
  const Program* program = nullptr;
  LaunchConfig config;
  Options options;
  std::vector<uint8_t> params;
  std::unique_ptr<Block> param_block;
  std::vector<uint32_t> queue;  // clusters not yet started
  std::vector<std::unique_ptr<Cluster>> running;
  uint32_t clusters_total = 0, clusters_done = 0;
  bool started = false, done = false, failed = false;
  bool dependents_released = false;
  uint32_t launch_dependents_ctas = 0;
  std::vector<std::shared_ptr<Grid>> after;  // stream order
  std::shared_ptr<Grid> programmatic_after;
  std::vector<Report> reports;
  Statistics stats;
  std::vector<uint32_t> warp_uids;
  std::vector<int> agents;  // of the race detector
  std::string output;       // vprintf
  std::mt19937_64 rng;
  std::function<void(Grid&)> on_done;
};

/// Streaming multiprocessor: what is resident, and its tensor memory.
struct Sm {
  int id = 0;
  int gpc = 0;
  uint32_t shared_used = 0, threads_used = 0, regs_used = 0, ctas = 0;
  std::unique_ptr<tensorcore::Tmem> tmem;  // made on first use
  struct TmemWork {
    TaskRef task;
    Warp* warp;
    int issuer_lane;
    int lane, lanes, column, columns;
    bool write;
  };
  std::vector<TmemWork> tmem_work;  // in flight on this tensor memory
  struct TmemUse {
    uint32_t warp_uid = 0, event = 0;
    int issuer_lane = 0;
    Warp* warp = nullptr;
    bool committed = false;  // the accessor's completion was published by a commit
    bool write = false;
  };
  std::vector<TmemUse> tmem_uses;  // per column and quarter of the lanes: the last finished access
                                   // by a tcgen05 instruction
};

struct DeviceConfig {
  int sm_count = 8;
  int compute_major = 10, compute_minor = 0;
  int sms_per_gpc = 16;
};

struct Device {
  int id = 0;
  DeviceConfig config;
  std::vector<Sm> sms;
  std::set<int> peers;
};

struct World {
  GlobalMemory memory;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::shared_ptr<Grid>> grids;  // not yet done
  std::vector<TaskRef> tasks;                // in flight
  std::vector<Warp*> ready;                  // with at least one fragment that can run
  bool polled = false;                       // the statement just executed was a poll
  uint32_t consecutive_polls = 0;            // slices in a row that ended in a poll
  uint64_t step = 0, time_ns = 0, last_event = 0, task_ids = 0, grid_ids = 0;
  uint32_t event = 1;  // numbers generic writes and proxy fences
  std::vector<std::array<uint32_t, kLanes>>
      proxy_fences;             // per warp ever started: event of each lane's last proxy fence
  Block* last_block = nullptr;  // most recent global access
  int idle_rounds = 0;
  std::shared_ptr<RaceState> races;  // null when no grid asked for it
  int sleepers = 0;                  // fragments with a timed wait
  std::mt19937_64 rng;
  std::recursive_mutex mutex;
  std::function<bool()>
      host_may_help;  // asked before a deadlock is reported: may another launch still come?

  Device& device(int id) { return *devices.at(static_cast<size_t>(id)); }
};

}  // namespace sm100sim
