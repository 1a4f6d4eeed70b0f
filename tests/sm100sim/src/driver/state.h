// What the driver face keeps: streams with their queues, events, functions, graphs. Shared by its
// .cc files only.
#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "driver/simulated.h"

namespace sm100sim::driver {

namespace cu = jax_megamoe::cuda;

struct EventState {
  uint64_t recorded = 0, done = 0;  // sequence numbers
};
struct FunctionState {
  const Program* program = nullptr;
  int device = 0;
  int max_dynamic_shared = 48 * 1024;
  bool non_portable = false;
};
struct ModuleState {
  std::unique_ptr<ModuleImage> image;
  std::map<std::string, std::unique_ptr<FunctionState>> functions;
};

/// One entry of a stream: a kernel, or something done at once when its turn comes; `wait` holds the
/// stream until it is true.
struct Work {
  std::function<std::shared_ptr<Grid>(std::vector<std::shared_ptr<Grid>> after)> launch;
  std::function<void()> act;
  std::function<bool()> wait;
  bool programmatic = false;
  std::shared_ptr<Grid> grid;
};
struct GraphState {
  std::vector<Work> work;
};
struct StreamState {
  int device = 0;
  std::deque<Work> queue;
  bool capturing = false;
  GraphState captured;
};
struct ContextState {
  int device = 0;
};

struct State {
  World world;
  Options options;
  std::vector<std::unique_ptr<ContextState>> contexts;
  std::vector<std::unique_ptr<StreamState>> default_streams;
  std::vector<std::unique_ptr<StreamState>> streams;
  std::vector<std::unique_ptr<EventState>> events;
  std::vector<std::unique_ptr<ModuleState>> modules;
  std::vector<std::unique_ptr<GraphState>> graphs;
  std::vector<std::shared_ptr<Grid>> launches;
  std::vector<Report> reports;
  std::string refusal;
  bool failed = false;  // sticky, as after a real fault
  std::chrono::steady_clock::time_point last_call = std::chrono::steady_clock::now();
};

State& state();
std::unique_lock<std::recursive_mutex> lock();
int current_device();
StreamState* stream_of(cu::Stream stream);
/// Puts work on a stream (or into its capture) and lets the stream go on.
cu::Result submit(StreamState& stream, Work work);
void pump(StreamState& stream);
void pump_all();
/// Runs the machine until `done`; false when a launch failed.
bool drive(const std::function<bool()>& done);
cu::Result refuse(cu::Result code, const std::string& why);

void fill_memory(cu::Driver& table);
void fill_modules(cu::Driver& table);
void fill_streams(cu::Driver& table);

}  // namespace sm100sim::driver
