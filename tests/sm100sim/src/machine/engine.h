// What the outer faces (driver table, Python) may ask of the machine: launch, run, ask for results.
// One thread at a time.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "machine/link.h"
#include "machine/machine.h"

namespace sm100sim {

/// A launch that the driver would refuse; `code` is the CUresult.
struct LaunchRefused : std::runtime_error {
  LaunchRefused(int code, const std::string& message) : std::runtime_error(message), code(code) {}
  int code;
};

inline constexpr uint32_t kSharedPerSm = 228 * 1024, kSharedOptIn = 227 * 1024;
inline constexpr uint32_t kThreadsPerSm = 2048, kRegsPerSm = 65536, kCtasPerSm = 32;

std::shared_ptr<Grid> launch(World& world, const Program& program, std::vector<uint8_t> params,
                             const LaunchConfig& config, const Options& options,
                             std::vector<std::shared_ptr<Grid>> after = {},
                             std::function<void(Grid&)> on_done = {});

/// CTAs of `program` that fit on one SM, and clusters on the whole device when it is empty.
int ctas_per_sm(const Program& program, const LaunchConfig& config);
int max_active_clusters(const Device& device, const Program& program, const LaunchConfig& config);
void check_launch(const Device& device, const Program& program, const LaunchConfig& config);

/// Runs until `grid` (or, when null, every grid) is done. False: nothing can move although grids
/// remain (only when host_may_help).
bool run(World& world, const Grid* grid = nullptr);
/// At most `slices` scheduling decisions; false when there was nothing left to do.
bool run_some(World& world, int slices, bool* stuck);

void fail_grid(World& world, Grid& grid, Report report);
Report deadlock_report(World& world, Grid& grid, const std::string& why);

// machine/residency.cc
bool start_clusters(World& world, bool now);
void finish_threads(World& world, Warp& warp);
void release_cta(Cta& cta);
void reap_cluster(World& world,
                  Cluster& cluster);  // ends it when no thread and no task of it is left
// instructions/barrier.cc
void recheck_barriers(Cta& cta);

}  // namespace sm100sim
