// Who may be resident: launch checks, room on the SMs, the queue of clusters, the end of CTAs,
// clusters and grids. A cluster starts as a whole, inside one GPC; which one of the queue, and
// when, is a hostile choice.

#include <algorithm>
#include <cstring>

#include "async/tmem_work.h"
#include "checks/race.h"
#include "machine/engine.h"
#include "machine/exec.h"

namespace sm100sim {
namespace {

constexpr int kInvalidValue = 1, kLaunchOutOfResources = 701, kCooperativeTooLarge = 720,
              kInvalidClusterSize = 912;

uint32_t threads_of(const LaunchConfig& c) { return c.block[0] * c.block[1] * c.block[2]; }
uint32_t cluster_size(const LaunchConfig& c) { return c.cluster[0] * c.cluster[1] * c.cluster[2]; }
uint32_t shared_of(const Program& p, const LaunchConfig& c) {
  return c.dynamic_shared ? p.module->dynamic_start(p) + c.dynamic_shared : p.static_shared;
}
uint32_t regs_of(const Program& p, const LaunchConfig& c) {
  return p.regs_per_thread * ((threads_of(c) + 31) / 32 * 32);
}

struct Room {
  uint32_t shared, threads, regs, ctas;
};

bool fits(const Sm& sm, const Room& used, const Program& p, const LaunchConfig& c) {
  return sm.shared_used + used.shared + shared_of(p, c) <= kSharedPerSm &&
         sm.threads_used + used.threads + threads_of(c) <= kThreadsPerSm &&
         sm.regs_used + used.regs + regs_of(p, c) <= kRegsPerSm && sm.ctas + used.ctas < kCtasPerSm;
}

/// SMs for one cluster, all in one GPC; empty when there is no room. `extra` is what other clusters
/// would take (occupancy query).
std::vector<int> place(const std::vector<Sm>& sms, int per, const Program& p, const LaunchConfig& c,
                       std::vector<Room>& extra, uint64_t hint) {
  const int n = static_cast<int>(cluster_size(c)), total = static_cast<int>(sms.size());
  const int gpcs = (total + per - 1) / per;
  for (int k = 0; k < gpcs; ++k) {
    const int g = static_cast<int>((static_cast<uint64_t>(k) + hint) % static_cast<uint64_t>(gpcs));
    const int first = g * per, count = std::min(per, total - first);
    std::vector<int> chosen;
    std::vector<Room> trial = extra;
    // Emptiest SMs first. The CTAs of a cluster lie on different SMs, unless the GPC has fewer.
    std::vector<bool> taken(sms.size());
    for (int round = 0; round < static_cast<int>(kCtasPerSm) && static_cast<int>(chosen.size()) < n;
         ++round) {
      for (int j = 0; j < count && static_cast<int>(chosen.size()) < n; ++j) {
        const int s = first + static_cast<int>((static_cast<uint64_t>(j) + hint) %
                                               static_cast<uint64_t>(count));
        if (static_cast<int>(sms[static_cast<size_t>(s)].ctas +
                             trial[static_cast<size_t>(s)].ctas) > round)
          continue;
        if (taken[static_cast<size_t>(s)] && n <= count) continue;
        if (!fits(sms[static_cast<size_t>(s)], trial[static_cast<size_t>(s)], p, c)) continue;
        Room& r = trial[static_cast<size_t>(s)];
        r.shared += shared_of(p, c), r.threads += threads_of(c), r.regs += regs_of(p, c), ++r.ctas;
        chosen.push_back(s);
        taken[static_cast<size_t>(s)] = true;
      }
    }
    if (static_cast<int>(chosen.size()) == n) {
      extra = std::move(trial);
      return chosen;
    }
  }
  return {};
}

void fill(Reg& r, uint64_t v) {
  for (uint64_t& lane : r.v) lane = v;
  r.pl = 0;
}

void init_specials(Warp& w) {
  const Cta& cta = *w.cta;
  const Grid& g = *cta.grid;
  const LaunchConfig& c = g.config;
  w.specials.resize(kSpecials);
  for (Reg& r : w.specials) fill(r, 0);
  const auto at = [&](Special s) -> Reg& { return w.specials[static_cast<size_t>(s)]; };
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t t = static_cast<uint32_t>(w.index * kLanes + lane);
    at(Special::kTidX).v[lane] = t % c.block[0];
    at(Special::kTidY).v[lane] = t / c.block[0] % c.block[1];
    at(Special::kTidZ).v[lane] = t / (c.block[0] * c.block[1]);
    at(Special::kLaneid).v[lane] = static_cast<uint64_t>(lane);
    at(Special::kLanemaskEq).v[lane] = 1u << lane;
    at(Special::kLanemaskLt).v[lane] = (1u << lane) - 1;
    at(Special::kLanemaskLe).v[lane] = (2ull << lane) - 1;
    at(Special::kLanemaskGt).v[lane] = 0xffffffffu & ~((2ull << lane) - 1);
    at(Special::kLanemaskGe).v[lane] = 0xffffffffu & ~((1ull << lane) - 1);
  }
  const auto set3 = [&](Special first, const uint32_t* v) {
    for (int k = 0; k < 3; ++k)
      fill(w.specials[static_cast<size_t>(first) + static_cast<size_t>(k)], v[k]);
  };
  uint32_t nclusters[3], in_cluster[3];
  for (int k = 0; k < 3; ++k) {
    nclusters[k] = c.grid[k] / c.cluster[k];
    in_cluster[k] = cta.index[k] % c.cluster[k];
  }
  set3(Special::kNtidX, c.block);
  set3(Special::kCtaidX, cta.index);
  set3(Special::kNctaidX, c.grid);
  set3(Special::kClusteridX, cta.cluster->index);
  set3(Special::kNclusteridX, nclusters);
  set3(Special::kClusterCtaidX, in_cluster);
  set3(Special::kClusterNctaidX, c.cluster);
  fill(at(Special::kWarpid), static_cast<uint64_t>(w.index));
  fill(at(Special::kNwarpid), kThreadsPerSm / 32);
  fill(at(Special::kClusterCtarank), cta.rank);
  fill(at(Special::kClusterNctarank), cluster_size(c));
  fill(at(Special::kIsExplicitCluster), c.explicit_cluster);
  fill(at(Special::kSmid), static_cast<uint64_t>(cta.sm->id));
  fill(at(Special::kNsmid), g.world->device(g.device).sms.size());
  fill(at(Special::kGridid), g.id);
  fill(at(Special::kDynamicSmemSize), c.dynamic_shared);
  fill(at(Special::kTotalSmemSize), shared_of(*g.program, c) - kReservedShared);
  fill(at(Special::kAggrSmemSize), shared_of(*g.program, c));
  fill(at(Special::kReservedSmemOffset), kReservedShared);
  fill(at(Special::kWarpSize), 32);
  fill(at(Special::kSmemBase), static_cast<uint64_t>(cta.rank) << kRankShift);
  fill(at(Special::kDynamicShared), (static_cast<uint64_t>(cta.rank) << kRankShift) +
                                        g.program->module->dynamic_start(*g.program));
}

void start_cta(World& world, Grid& grid, Cluster& cluster, uint32_t rank, Sm& sm) {
  const LaunchConfig& c = grid.config;
  auto cta = std::make_unique<Cta>();
  cta->grid = &grid;
  cta->cluster = &cluster;
  cta->sm = &sm;
  cta->rank = rank;
  const uint32_t r[3] = {rank % c.cluster[0], rank / c.cluster[0] % c.cluster[1],
                         rank / (c.cluster[0] * c.cluster[1])};
  for (int k = 0; k < 3; ++k) cta->index[k] = cluster.index[k] * c.cluster[k] + r[k];
  cta->linear = cta->index[0] + c.grid[0] * (cta->index[1] + c.grid[1] * cta->index[2]);
  cta->threads = cta->live_threads = threads_of(c);
  cta->shared = make_block(0, shared_of(*grid.program, c));
  cta->shared->is_shared = true;
  cta->shared->label = "shared memory";
  cta->shared->device = grid.device;
  std::memset(cta->shared->shadow.get(), kReadOnly, kReservedShared);  // of the system
  cta->local_bytes = local_bytes_with_calls(*grid.program->module, *grid.program);
  if (cta->local_bytes > 0) {
    cta->local = make_block(0, static_cast<uint64_t>(cta->local_bytes) * cta->threads);
    cta->local->label = "local memory";
  }
  sm.shared_used += shared_of(*grid.program, c);
  sm.threads_used += threads_of(c);
  sm.regs_used += regs_of(*grid.program, c);
  ++sm.ctas;
  cta->started = true;
  cluster.live_threads += cta->threads;
  for (uint32_t w = 0; w * kLanes < cta->threads; ++w) {
    auto warp = std::make_unique<Warp>();
    warp->cta = cta.get();
    warp->index = static_cast<int>(w);
    const uint32_t lanes = std::min<uint32_t>(kLanes, cta->threads - w * kLanes);
    warp->live = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
    warp->uid = static_cast<uint32_t>(world.proxy_fences.size());
    world.proxy_fences.emplace_back();
    grid.warp_uids.push_back(warp->uid);
    warp->setmaxnreg = grid.program->regs_per_thread;
    init_specials(*warp);
    race_warp_start(world, *warp);
    spawn(*warp, warp->live, 0, make_frame(grid.program, nullptr, 0), nullptr);
    cta->warps.push_back(std::move(warp));
  }
  cluster.ctas.push_back(std::move(cta));
}

bool dependencies_met(const Grid& grid) {
  for (const auto& g : grid.after) {
    if (!g->done) return false;
  }
  return !grid.programmatic_after || grid.programmatic_after->done ||
         grid.programmatic_after->dependents_released;
}

void finish_grid(World& world, Grid& grid) {
  grid.done = true;
  race_grid_end(world, grid);
  // The end of a grid orders all it wrote before everything that starts later, in every proxy.
  for (uint32_t uid : grid.warp_uids) world.proxy_fences[uid].fill(UINT32_MAX);
  const auto at = std::find_if(world.grids.begin(), world.grids.end(),
                               [&](const auto& g) { return g.get() == &grid; });
  const std::shared_ptr<Grid> keep = *at;
  world.grids.erase(at);
  wake_kind(world, WaitKind::kGridDependency);
  event(world);
  if (keep->on_done) keep->on_done(*keep);
}

}  // namespace

int ctas_per_sm(const Program& p, const LaunchConfig& c) {
  Sm empty;
  Room used{};
  int n = 0;
  while (n < static_cast<int>(kCtasPerSm) && fits(empty, used, p, c)) {
    used.shared += shared_of(p, c), used.threads += threads_of(c), used.regs += regs_of(p, c),
        ++used.ctas;
    ++n;
  }
  return n;
}

int max_active_clusters(const Device& device, const Program& p, const LaunchConfig& c) {
  std::vector<Room> extra(device.sms.size());
  const std::vector<Sm> empty(device.sms.size());
  int n = 0;
  while (!place(empty, device.config.sms_per_gpc, p, c, extra, 0).empty()) ++n;
  return n;
}

void check_launch(const Device& device, const Program& p, const LaunchConfig& c) {
  const uint32_t threads = threads_of(c);
  if (!p.entry) throw LaunchRefused(kInvalidValue, p.name + " is not a kernel");
  for (int k = 0; k < 3; ++k) {
    if (c.grid[k] == 0 || c.block[k] == 0 || c.cluster[k] == 0)
      throw LaunchRefused(kInvalidValue, "a grid, block or cluster dimension is 0");
    if (c.grid[k] % c.cluster[k] != 0)
      throw LaunchRefused(kInvalidClusterSize,
                          format("grid dimension %d is %u, not a multiple of the cluster's %u", k,
                                 c.grid[k], c.cluster[k]));
    if (p.cluster[0] && p.cluster[k] != c.cluster[k])
      throw LaunchRefused(kInvalidClusterSize,
                          format("the kernel was compiled for cluster dimension %u, %u asked",
                                 p.cluster[k], c.cluster[k]));
  }
  if (threads > 1024)
    throw LaunchRefused(kInvalidValue, format("%u threads per block, at most 1024", threads));
  if (threads > p.max_threads)
    throw LaunchRefused(kLaunchOutOfResources,
                        format("%u threads per block, the kernel was compiled for at most %u",
                               threads, p.max_threads));
  if (p.required_threads && threads != p.required_threads)
    throw LaunchRefused(kInvalidValue, format("%u threads per block, the kernel requires %u",
                                              threads, p.required_threads));
  if (shared_of(p, c) - kReservedShared > kSharedOptIn)
    throw LaunchRefused(kInvalidValue, format("%u bytes of shared memory, at most %u",
                                              shared_of(p, c) - kReservedShared, kSharedOptIn));
  if (cluster_size(c) > 16)
    throw LaunchRefused(kInvalidClusterSize,
                        format("%u CTAs per cluster, at most 16", cluster_size(c)));
  const int clusters = max_active_clusters(device, p, c);
  if (clusters == 0)
    throw LaunchRefused(cluster_size(c) > 1 ? kInvalidClusterSize : kLaunchOutOfResources,
                        "not even one cluster fits on the device");
  const uint64_t total = static_cast<uint64_t>(c.grid[0]) * c.grid[1] * c.grid[2] / cluster_size(c);
  if (c.cooperative && total > static_cast<uint64_t>(clusters)) {
    throw LaunchRefused(kCooperativeTooLarge,
                        format("cooperative launch of %llu clusters, %d can be resident",
                               static_cast<unsigned long long>(total), clusters));
  }
}

std::shared_ptr<Grid> launch(World& world, const Program& program, std::vector<uint8_t> params,
                             const LaunchConfig& config, const Options& options,
                             std::vector<std::shared_ptr<Grid>> after,
                             std::function<void(Grid&)> on_done) {
  auto grid = std::make_shared<Grid>();
  grid->world = &world;
  grid->device = program.module->device;
  grid->id = ++world.grid_ids;
  grid->program = &program;
  grid->config = config;
  grid->options = options;
  check_launch(world.device(grid->device), program, config);
  if (params.size() != program.param_bytes)
    throw LaunchRefused(kInvalidValue, format("%zu bytes of parameters, the kernel takes %u",
                                              params.size(), program.param_bytes));
  grid->params = std::move(params);
  grid->param_block = make_block(kParamWindow, std::max<size_t>(grid->params.size(), 1));
  std::copy(grid->params.begin(), grid->params.end(), grid->param_block->data);
  std::memset(grid->param_block->shadow.get(), kReadOnly, grid->param_block->size);
  grid->param_block->label = "kernel parameters";
  grid->clusters_total = config.grid[0] * config.grid[1] * config.grid[2] / cluster_size(config);
  for (uint32_t i = 0; i < grid->clusters_total; ++i) grid->queue.push_back(i);
  if (config.programmatic && !after.empty()) {
    grid->programmatic_after = after.back();
    after.pop_back();
  }
  grid->after = std::move(after);
  grid->on_done = std::move(on_done);
  if (world.grids.empty()) world.rng.seed(options.seed * 0x9E3779B97F4A7C15ull + 12345);
  if (options.races) race_enable(world);
  world.grids.push_back(grid);
  event(world);
  return grid;
}

bool start_clusters(World& world, bool now) {
  for (size_t gi = 0; gi < world.grids.size(); ++gi) {
    Grid& grid = *world.grids[gi];
    if (grid.queue.empty() || !dependencies_met(grid)) continue;
    Device& device = world.device(grid.device);
    std::vector<Room> extra(device.sms.size());
    const std::vector<int> sms =
        place(device.sms, device.config.sms_per_gpc, *grid.program, grid.config, extra,
              grid.options.policy == Policy::kEager ? 0 : world.rng());
    if (sms.empty()) continue;
    const size_t n = grid.queue.size();
    const size_t at = grid.options.policy == Policy::kEager    ? 0
                      : grid.options.policy == Policy::kLatest ? n - 1
                                                               : world.rng() % n;
    auto cluster = std::make_unique<Cluster>();
    cluster->grid = &grid;
    cluster->id = grid.queue[at];
    grid.queue.erase(grid.queue.begin() + static_cast<long>(at));
    const LaunchConfig& c = grid.config;
    const uint32_t nx = c.grid[0] / c.cluster[0], ny = c.grid[1] / c.cluster[1];
    cluster->index[0] = cluster->id % nx;
    cluster->index[1] = cluster->id / nx % ny;
    cluster->index[2] = cluster->id / (nx * ny);
    Cluster& ref = *cluster;
    grid.running.push_back(std::move(cluster));
    grid.started = true;
    for (uint32_t r = 0; r < cluster_size(c); ++r)
      start_cta(world, grid, ref, r, device.sms[static_cast<size_t>(sms[r])]);
    event(world);
    return true;
  }
  (void)now;
  return false;
}

void release_cta(Cta& cta) {
  if (!cta.started || cta.finished) return;
  cta.finished = true;
  const Grid& g = *cta.grid;
  Sm& sm = *cta.sm;
  sm.shared_used -= shared_of(*g.program, g.config);
  sm.threads_used -= threads_of(g.config);
  sm.regs_used -= regs_of(*g.program, g.config);
  --sm.ctas;
  std::string why;
  for (const TmemLease& lease : cta.tmem) {
    sm.tmem->deallocate(static_cast<int>(lease.column), static_cast<int>(lease.columns),
                        tmem_owner(cta), &why);
  }
  cta.tmem.clear();
  std::erase_if(sm.tmem_work, [&](const Sm::TmemWork& w) { return w.warp->cta == &cta; });
  for (Sm::TmemUse& use : sm.tmem_uses) {
    if (use.warp != nullptr && use.warp->cta == &cta) use = {};
  }
}

void finish_threads(World& world, Warp& warp) {
  Cta& cta = *warp.cta;
  Cluster& cluster = *cta.cluster;
  Grid& grid = *cta.grid;
  event(world);
  if (cta.live_threads > 0) return recheck_barriers(cta);
  if (!cta.tmem.empty()) {
    Report r;
    r.kind = "tmem-leak";
    r.message = format(
        "the CTA ends with %u columns of tensor memory allocated (tcgen05.dealloc is missing)",
        cta.tmem[0].columns);
    r.kernel = grid.program->name;
    r.device = grid.device;
    r.cta = static_cast<int>(cta.linear);
    return fail_grid(world, grid, std::move(r));
  }
  for (const TaskRef& t : world.tasks) {
    for (const Hold& h : t->holds) {
      if (h.block != cta.shared.get()) continue;
      Report r;
      r.kind = "exit-pending";
      r.message = format("the CTA ends while a %s still %s its shared memory at 0x%llx", t->what,
                         h.write ? "writes" : "reads", static_cast<unsigned long long>(h.offset));
      r.kernel = grid.program->name;
      r.device = grid.device;
      r.cta = static_cast<int>(cta.linear);
      if (t->program != nullptr && t->statement >= 0) {
        const Statement& s = t->program->source->body[static_cast<size_t>(t->statement)];
        r.ptx_line = s.where.ptx;
        r.ptx_text = s.text;
      }
      // A store out of shared memory keeps it alive on hardware (CUTLASS's epilogue skips the last
      // wait).
      const std::string what = t->what;
      const bool store = what.find("store (") != std::string::npos ||
                         what.find("reduction (") != std::string::npos;
      if (h.write || !store || grid.options.rules == Rules::kStrict)
        return fail_grid(world, grid, std::move(r));
      r.warning = true;
      r.rule = "exit-with-store";
      const bool known =
          std::any_of(grid.reports.begin(), grid.reports.end(), [&](const Report& old) {
            return old.warning && old.rule == r.rule && old.ptx_line == r.ptx_line;
          });
      if (!known) grid.reports.push_back(std::move(r));
      break;
    }
  }
  release_cta(cta);
  wake_kind(world, WaitKind::kTmemAlloc);
  recheck_barriers(cta);
  reap_cluster(world, cluster);
}

void reap_cluster(World& world, Cluster& cluster) {
  if (cluster.live_threads > 0 || cluster.open_tasks > 0) return;
  Grid& grid = *cluster.grid;
  for (const auto& cta : cluster.ctas) race_forget(world, cta->shared.get());
  ++grid.clusters_done;
  std::erase_if(grid.running, [&](const auto& p) { return p.get() == &cluster; });
  if (grid.clusters_done == grid.clusters_total) finish_grid(world, grid);
}

}  // namespace sm100sim
