// Devices, contexts and the machine behind the table. See simulated.h.

#include "driver/simulated.h"

#include <thread>

#include "driver/state.h"

namespace sm100sim {
namespace driver {
namespace {

std::unique_ptr<State> g_state;
std::recursive_mutex g_mutex;
thread_local int t_device = -1;

cu::Result init(unsigned) { return cu::kSuccess; }
cu::Result version(int* v) {
  *v = 13000;
  return cu::kSuccess;
}
cu::Result error_text(cu::Result error, const char** text) {
  switch (error) {
    case cu::kSuccess:
      *text = "no error";
      break;
    case cu::kInvalidValue:
      *text = "invalid argument";
      break;
    case cu::kOutOfMemory:
      *text = "out of memory";
      break;
    case cu::kInvalidContext:
      *text = "invalid device context";
      break;
    case cu::kInvalidPtx:
      *text = "a PTX JIT compilation failed";
      break;
    case cu::kNotFound:
      *text = "named symbol not found";
      break;
    case cu::kNotReady:
      *text = "device not ready";
      break;
    case cu::kLaunchOutOfResources:
      *text = "too many resources requested for launch";
      break;
    case cu::kLaunchFailed:
      *text = "unspecified launch failure (the simulator has the report)";
      break;
    case cu::kCooperativeLaunchTooLarge:
      *text = "too many blocks in cooperative launch";
      break;
    case cu::kInvalidClusterSize:
      *text = "invalid cluster size";
      break;
    default:
      *text = "error";
      break;
  }
  return cu::kSuccess;
}
cu::Result count(int* n) {
  auto l = lock();
  *n = static_cast<int>(state().world.devices.size());
  return cu::kSuccess;
}
bool known(int device) {
  return device >= 0 && device < static_cast<int>(state().world.devices.size());
}
cu::Result get(cu::Device* d, int ordinal) {
  auto l = lock();
  if (!known(ordinal)) return 101;
  *d = ordinal;
  return cu::kSuccess;
}
cu::Result attribute(int* v, int a, cu::Device d) {
  auto l = lock();
  if (!known(d)) return 101;
  const DeviceConfig& c = state().world.device(d).config;
  switch (a) {
    case cu::kMaxThreadsPerBlock:
      *v = 1024;
      break;
    case cu::kMaxSharedPerBlock:
      *v = 48 * 1024;
      break;
    case cu::kWarpSize:
      *v = 32;
      break;
    case cu::kMultiprocessorCount:
      *v = c.sm_count;
      break;
    case cu::kMaxThreadsPerMultiprocessor:
      *v = kThreadsPerSm;
      break;
    case cu::kUnifiedAddressing:
      *v = 1;
      break;
    case cu::kComputeCapabilityMajor:
      *v = c.compute_major;
      break;
    case cu::kComputeCapabilityMinor:
      *v = c.compute_minor;
      break;
    case cu::kMaxSharedPerMultiprocessor:
      *v = kSharedPerSm;
      break;
    case cu::kMaxRegistersPerMultiprocessor:
      *v = kRegsPerSm;
      break;
    case cu::kCooperativeLaunch:
      *v = 1;
      break;
    case cu::kMaxSharedPerBlockOptin:
      *v = kSharedOptIn;
      break;
    case cu::kMaxBlocksPerMultiprocessor:
      *v = kCtasPerSm;
      break;
    case cu::kReservedSharedPerBlock:
      *v = kReservedShared;
      break;
    case cu::kClusterLaunch:
      *v = 1;
      break;
    default:
      return refuse(cu::kInvalidValue,
                    "device attribute " + std::to_string(a) + " is not simulated");
  }
  return cu::kSuccess;
}
cu::Result can_access(int* can, cu::Device a, cu::Device b) {
  *can = a != b;
  return cu::kSuccess;
}
cu::Result retain(cu::Context* c, cu::Device d) {
  auto l = lock();
  if (!known(d)) return 101;
  *c = reinterpret_cast<cu::Context>(state().contexts[static_cast<size_t>(d)].get());
  return cu::kSuccess;
}
cu::Result release(cu::Device) { return cu::kSuccess; }
cu::Result set_current(cu::Context c) {
  t_device = c == nullptr ? -1 : reinterpret_cast<ContextState*>(c)->device;
  return cu::kSuccess;
}
cu::Result get_current(cu::Context* c) {
  auto l = lock();
  *c = t_device < 0
           ? nullptr
           : reinterpret_cast<cu::Context>(state().contexts[static_cast<size_t>(t_device)].get());
  return cu::kSuccess;
}
cu::Result get_device(cu::Device* d) {
  if (t_device < 0) return cu::kInvalidContext;
  *d = t_device;
  return cu::kSuccess;
}
cu::Result ctx_synchronize() {
  if (t_device < 0) return cu::kInvalidContext;
  const int device = t_device;
  const bool fine = drive([device] {
    for (const auto& s : state().streams) {
      if (s->device == device && !s->queue.empty()) return false;
    }
    return state().default_streams[static_cast<size_t>(device)]->queue.empty();
  });
  return fine ? cu::kSuccess : cu::kLaunchFailed;
}
cu::Result enable_peer(cu::Context peer, unsigned) {
  auto l = lock();
  if (t_device < 0) return cu::kInvalidContext;
  const int other = reinterpret_cast<ContextState*>(peer)->device;
  return state().world.device(t_device).peers.insert(other).second ? cu::kSuccess
                                                                   : cu::kPeerAccessAlreadyEnabled;
}

}  // namespace

State& state() {
  if (g_state == nullptr) configure_driver({DeviceConfig{}}, Options{});
  return *g_state;
}
std::unique_lock<std::recursive_mutex> lock() { return std::unique_lock(g_mutex); }
int current_device() { return t_device; }

cu::Result refuse(cu::Result code, const std::string& why) {
  state().refusal = why;
  return code;
}

void pump(StreamState& s) {
  while (!s.queue.empty()) {
    Work& w = s.queue.front();
    if (w.wait && !w.wait()) return;
    if (w.launch) {
      if (!w.grid) w.grid = w.launch({});
      if (!w.grid->done) {
        // A programmatic successor may be resident before this one has ended.
        if (s.queue.size() > 1 && s.queue[1].launch && s.queue[1].programmatic && !s.queue[1].grid)
          s.queue[1].grid = s.queue[1].launch({w.grid});
        return;
      }
    }
    if (w.act) w.act();
    s.queue.pop_front();
  }
}
void pump_all() {
  for (auto& s : state().default_streams) pump(*s);
  for (auto& s : state().streams) pump(*s);
}

cu::Result submit(StreamState& s, Work work) {
  state().last_call = std::chrono::steady_clock::now();
  if (s.capturing) {
    s.captured.work.push_back(std::move(work));
    return cu::kSuccess;
  }
  s.queue.push_back(std::move(work));
  pump(s);
  return cu::kSuccess;
}

bool drive(const std::function<bool()>& done) {
  for (;;) {
    bool stuck = false;
    {
      auto l = lock();
      pump_all();
      if (done()) break;
      if (!run_some(state().world, 2048, &stuck)) pump_all();
      if (done()) break;
      stuck |= state().world.grids.empty();
    }
    // Another host thread may be about to launch what this one waits for.
    if (stuck)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    else
      std::this_thread::yield();
  }
  auto l = lock();
  return !state().failed;
}

}  // namespace driver

const jax_megamoe::cuda::Driver& simulated_driver() {
  using namespace driver;
  static const cu::Driver table = [] {
    cu::Driver t{};
    t.init = init;
    t.driver_get_version = version;
    t.get_error_name = error_text;
    t.get_error_string = error_text;
    t.device_get_count = count;
    t.device_get = get;
    t.device_get_attribute = attribute;
    t.device_can_access_peer = can_access;
    t.device_primary_ctx_retain = retain;
    t.device_primary_ctx_release = release;
    t.ctx_set_current = set_current;
    t.ctx_get_current = get_current;
    t.ctx_get_device = get_device;
    t.ctx_synchronize = ctx_synchronize;
    t.ctx_enable_peer_access = enable_peer;
    fill_memory(t);
    fill_modules(t);
    fill_streams(t);
    return t;
  }();
  return table;
}

void configure_driver(const std::vector<DeviceConfig>& devices, const Options& options) {
  using namespace driver;
  auto l = lock();
  g_state = std::make_unique<State>();
  g_state->options = options;
  for (const DeviceConfig& c : devices) {
    auto d = std::make_unique<sm100sim::Device>();
    d->id = static_cast<int>(g_state->world.devices.size());
    d->config = c;
    d->sms.resize(static_cast<size_t>(c.sm_count));
    for (int i = 0; i < c.sm_count; ++i) d->sms[static_cast<size_t>(i)].id = i;
    g_state->contexts.push_back(std::make_unique<ContextState>(ContextState{d->id}));
    g_state->default_streams.push_back(std::make_unique<StreamState>());
    g_state->default_streams.back()->device = d->id;
    g_state->world.devices.push_back(std::move(d));
  }
  // With several devices a host thread may still be on its way to launch the partner of a spinning
  // kernel.
  g_state->world.host_may_help = [] {
    return state().world.devices.size() > 1 &&
           std::chrono::steady_clock::now() - state().last_call < std::chrono::seconds(2);
  };
}

Options& driver_options() { return driver::state().options; }

std::vector<Report> take_reports() {
  auto l = driver::lock();
  std::vector<Report> out = std::move(driver::state().reports);
  driver::state().reports.clear();
  for (const auto& g : driver::state().launches) {
    out.insert(out.end(), g->reports.begin(), g->reports.end());
    g->reports.clear();
  }
  return out;
}
std::vector<std::shared_ptr<Grid>> take_launches() {
  auto l = driver::lock();
  return std::move(driver::state().launches);
}
std::string last_refusal() {
  auto l = driver::lock();
  return driver::state().refusal;
}

}  // namespace sm100sim
