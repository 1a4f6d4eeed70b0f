// Streams, events and graphs of the driver face. A stream is a queue taken in order; a captured
// graph is the recorded queue.

#include "driver/state.h"

namespace sm100sim::driver {

StreamState* stream_of(cu::Stream stream) {
  if (stream != nullptr && reinterpret_cast<uintptr_t>(stream) > 2) {
    for (auto& s : state().streams) {
      if (s.get() == reinterpret_cast<StreamState*>(stream)) return s.get();
    }
    return nullptr;
  }
  return current_device() < 0
             ? nullptr
             : state().default_streams[static_cast<size_t>(current_device())].get();
}

namespace {

cu::Result create(cu::Stream* out, unsigned) {
  auto l = lock();
  if (current_device() < 0) return cu::kInvalidContext;
  state().streams.push_back(std::make_unique<StreamState>());
  state().streams.back()->device = current_device();
  *out = reinterpret_cast<cu::Stream>(state().streams.back().get());
  return cu::kSuccess;
}
cu::Result synchronize(cu::Stream stream) {
  StreamState* s;
  {
    auto l = lock();
    s = stream_of(stream);
  }
  if (s == nullptr) return cu::kInvalidHandle;
  return drive([s] { return s->queue.empty(); }) ? cu::kSuccess : cu::kLaunchFailed;
}
cu::Result destroy(cu::Stream stream) {
  const cu::Result r = synchronize(stream);
  auto l = lock();
  std::erase_if(state().streams,
                [&](const auto& s) { return s.get() == reinterpret_cast<StreamState*>(stream); });
  return r;
}
void slice() {
  bool stuck = false;
  pump_all();
  run_some(state().world, 1024, &stuck);
  pump_all();
}
cu::Result query(cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  slice();
  if (state().failed) return cu::kLaunchFailed;
  return s->queue.empty() ? cu::kSuccess : cu::kNotReady;
}

cu::Result event_create(cu::Event* out, unsigned) {
  auto l = lock();
  state().events.push_back(std::make_unique<EventState>());
  *out = reinterpret_cast<cu::Event>(state().events.back().get());
  return cu::kSuccess;
}
EventState& event_of(cu::Event event) { return *reinterpret_cast<EventState*>(event); }
cu::Result event_destroy(cu::Event) { return cu::kSuccess; }  // kept: a queue may still name it
cu::Result record(cu::Event event, cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  EventState* e = &event_of(event);
  const uint64_t number = ++e->recorded;
  Work w;
  w.act = [e, number] { e->done = std::max(e->done, number); };
  return submit(*s, std::move(w));
}
cu::Result wait_event(cu::Stream stream, cu::Event event, unsigned) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  EventState* e = &event_of(event);
  const uint64_t number = e->recorded;
  Work w;
  w.wait = [e, number] { return e->done >= number; };
  return submit(*s, std::move(w));
}
cu::Result event_query(cu::Event event) {
  auto l = lock();
  slice();
  if (state().failed) return cu::kLaunchFailed;
  return event_of(event).done >= event_of(event).recorded ? cu::kSuccess : cu::kNotReady;
}
cu::Result event_synchronize(cu::Event event) {
  EventState* e = &event_of(event);
  return drive([e] { return e->done >= e->recorded; }) ? cu::kSuccess : cu::kLaunchFailed;
}

cu::Result begin_capture(cu::Stream stream, int) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr || s->capturing) return cu::kInvalidValue;
  s->capturing = true;
  s->captured = {};
  return cu::kSuccess;
}
cu::Result end_capture(cu::Stream stream, cu::Graph* out) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr || !s->capturing) return cu::kInvalidValue;
  s->capturing = false;
  state().graphs.push_back(std::make_unique<GraphState>(std::move(s->captured)));
  *out = reinterpret_cast<cu::Graph>(state().graphs.back().get());
  return cu::kSuccess;
}
cu::Result instantiate(cu::GraphExec* out, cu::Graph graph, unsigned long long) {
  *out = reinterpret_cast<cu::GraphExec>(graph);
  return cu::kSuccess;
}
cu::Result graph_launch(cu::GraphExec exec, cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  for (const Work& w : reinterpret_cast<GraphState*>(exec)->work) submit(*s, w);
  return cu::kSuccess;
}
cu::Result exec_destroy(cu::GraphExec) { return cu::kSuccess; }
cu::Result graph_destroy(cu::Graph) { return cu::kSuccess; }

}  // namespace

void fill_streams(cu::Driver& t) {
  t.stream_create = create;
  t.stream_destroy = destroy;
  t.stream_synchronize = synchronize;
  t.stream_query = query;
  t.stream_wait_event = wait_event;
  t.event_create = event_create;
  t.event_destroy = event_destroy;
  t.event_record = record;
  t.event_query = event_query;
  t.event_synchronize = event_synchronize;
  t.stream_begin_capture = begin_capture;
  t.stream_end_capture = end_capture;
  t.graph_instantiate = instantiate;
  t.graph_launch = graph_launch;
  t.graph_exec_destroy = exec_destroy;
  t.graph_destroy = graph_destroy;
}

}  // namespace sm100sim::driver
