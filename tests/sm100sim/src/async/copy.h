// Asynchronous copies in flight: what the bulk, tensor and st.async instructions have in common.
// The instructions say which bytes move (segments), this file holds sources, poisons destinations,
// and lets the bytes land later, in one or several parts.
#pragma once

#include <vector>

#include "machine/exec.h"
#include "memory/access.h"

namespace sm100sim {

struct Segment {
  enum Kind : uint8_t { kCopy, kZero, kPattern, kUndefined, kPack6 };
  Kind kind = kCopy;
  Place from{};  // kCopy, kPack6
  Place to{};
  uint64_t bytes = 0;  // at the destination
};

/// Where completion is announced.
struct Signal {
  Cta* cta = nullptr;
  uint32_t offset = 0;
  uint64_t bytes = 0;
};

/// A task with its issuer noted, not yet registered.
TaskRef make_task(Exec& e, const char* what, int lane);

/// Registers a copy into shared memory that completes on mbarriers.
void start_load(Exec& e, int lane, const char* what, std::vector<Segment> segments,
                std::vector<Signal> signals, uint64_t pattern = 0, int pattern_bytes = 1);

/// Registers a copy from shared memory to global that completes by bulk group. `reduce` combines
/// instead of overwriting.
using Reduce = void (*)(void* destination, const void* source, int op, int type);
struct Reduction {
  Reduce apply = nullptr;
  int op = 0, type = 0, bytes = 0;
};
void start_store(Exec& e, int lane, const char* what, std::vector<Segment> segments,
                 const Reduction& reduction = {});

/// The segments' destinations become poison in flight; checks overlap with other work and the proxy
/// rule.
void mark_destination(Exec& e, int lane, const char* what, const std::vector<Segment>& segments,
                      Task& task);

}  // namespace sm100sim
