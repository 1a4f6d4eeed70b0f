// The simulator behind the driver table: one process-wide machine whose devices, seed, policy and
// rules a test configures first. Every call may come from any host thread; they take turns. Kernels
// move while some thread waits (synchronise, query) or is idle in such a call: there is no thread
// of our own, so a run is a function of the seed and of the order of calls.
#pragma once

#include <string>
#include <vector>

#include "machine/engine.h"
#include "sm100/driver.h"

namespace sm100sim {

/// The table; its functions work on the machine of the last `configure_driver`.
const jax_megamoe::cuda::Driver& simulated_driver();

/// Starts a fresh machine. All handles of an earlier one become invalid.
void configure_driver(const std::vector<DeviceConfig>& devices, const Options& options);
Options& driver_options();

/// Errors and warnings of all launches since the last call, and what kernels printed.
std::vector<Report> take_reports();
std::vector<std::shared_ptr<Grid>> take_launches();
std::string last_refusal();

}  // namespace sm100sim
