// See copy.h.

#include "async/copy.h"

#include <cstring>

#include "async/mbarrier_ops.h"
#include "checks/race.h"

namespace sm100sim {
namespace {

void land(const Segment& s, const uint8_t* data, const uint8_t* shadow, uint64_t pattern,
          int pattern_bytes) {
  uint8_t* to = s.to.data();
  uint8_t* mark = s.to.shadow();
  switch (s.kind) {
    case Segment::kCopy:
      std::memcpy(to, data, s.bytes);
      for (uint64_t k = 0; k < s.bytes; ++k) mark[k] = shadow[k] & kPoison;
      break;
    case Segment::kPack6:
      // Four 6-bit codes in four bytes become three bytes.
      for (uint64_t k = 0; k < s.bytes / 3; ++k) {
        uint32_t v = 0;
        uint8_t bad = 0;
        for (unsigned j = 0; j < 4; ++j) {
          v |= static_cast<uint32_t>(data[4 * k + j] & 63) << (6 * j);
          bad |= shadow[4 * k + j] & kPoison;
        }
        for (unsigned j = 0; j < 3; ++j) {
          to[3 * k + j] = static_cast<uint8_t>(v >> (8 * j));
          mark[3 * k + j] = bad;
        }
      }
      break;
    case Segment::kZero:
      std::memset(to, 0, s.bytes);
      std::memset(mark, 0, s.bytes);
      break;
    case Segment::kPattern:
      for (uint64_t k = 0; k < s.bytes; ++k)
        to[k] = static_cast<uint8_t>(pattern >> (8 * (k % static_cast<unsigned>(pattern_bytes))));
      std::memset(mark, 0, s.bytes);
      break;
    case Segment::kUndefined:
      std::memset(to, 0xCD, s.bytes);
      std::memset(mark, kPoison, s.bytes);
      break;
  }
}

uint64_t source_bytes(const Segment& s) {
  return s.kind == Segment::kCopy ? s.bytes : s.kind == Segment::kPack6 ? s.bytes / 3 * 4 : 0;
}

void hold_sources(Exec& e, int lane, const char* what, const std::vector<Segment>& segments,
                  Task& task) {
  for (const Segment& s : segments) {
    const uint64_t n = source_bytes(s);
    if (n == 0) continue;
    check_async(e, s.from, n, false, lane, what);
    const uint8_t bits = shadow_bits(s.from.shadow(), static_cast<uint32_t>(n));
    if (bits & kBarrier)
      throw Fault("mbarrier", std::string("a ") + what + " reads the bytes of an mbarrier", lane,
                  s.from.offset);
    if (e.world.races) race_async(e, task, s.from, n, false, lane);
    task.holds.push_back({s.from.block, s.from.offset, n, false});
  }
}

void complete(World& world, const std::vector<Signal>& signals, const Task& task, uint64_t part,
              uint64_t parts) {
  for (const Signal& s : signals) {
    const uint64_t bytes = s.bytes * (part + 1) / parts - s.bytes * part / parts;
    Mbarrier& m = live_mbarrier(*s.cta, s.offset);
    race_task_release(world, task, m.released, m.proxied);
    apply(world, *s.cta, s.offset, 0, static_cast<int64_t>(bytes), 0, false);
  }
}

}  // namespace

TaskRef make_task(Exec& e, const char* what, int lane) {
  auto task = std::make_shared<Task>();
  task->what = what;
  task->grid = &e.grid;
  task->cluster = e.cta.cluster;
  task->program = e.program;
  task->cta_linear = e.cta.linear;
  task->statement = e.instr->statement;
  task->warp = e.warp.index;
  task->lane = lane;
  race_task_start(e, *task);
  return task;
}

void mark_destination(Exec& e, int lane, const char* what, const std::vector<Segment>& segments,
                      Task& task) {
  for (const Segment& s : segments) {
    const uint8_t bits = shadow_bits(s.to.shadow(), static_cast<uint32_t>(s.bytes));
    const uint64_t address = s.to.block->base + s.to.offset;
    if (bits & kInFlight)
      throw Fault("in-flight",
                  std::string("a ") + what +
                      " writes bytes that another asynchronous operation is still writing",
                  lane, address);
    if (bits & kBarrier)
      throw Fault("mbarrier", std::string("a ") + what + " writes over an mbarrier", lane, address);
    if (bits & kReadOnly)
      throw Fault("read-only", std::string("a ") + what + " writes read-only memory", lane,
                  address);
    if (s.to.block->has_readers(s.to.offset, s.bytes)) {
      Exec copy = e;
      refuse_generic(copy, s.to, static_cast<uint32_t>(s.bytes), true, lane, address);
    }
    check_async(e, s.to, s.bytes, true, lane, what);
    if (e.world.races) race_async(e, task, s.to, s.bytes, true, lane);
    s.to.block->note_write(s.to.offset, s.bytes, 0, 0);
    std::memset(s.to.data(), 0xCD, s.bytes);
    std::memset(s.to.shadow(), kPoison | kInFlight, s.bytes);
    task.holds.push_back({s.to.block, s.to.offset, s.bytes, true});
  }
}

void start_load(Exec& e, int lane, const char* what, std::vector<Segment> segments,
                std::vector<Signal> signals, uint64_t pattern, int pattern_bytes) {
  const TaskRef task = make_task(e, what, lane);
  for (const Signal& s : signals) live_mbarrier(*s.cta, s.offset, lane);
  hold_sources(e, lane, what, segments, *task);
  mark_destination(e, lane, what, segments, *task);
  World* world = &e.world;
  auto shared_segments = std::make_shared<std::vector<Segment>>(std::move(segments));
  auto shared_signals = std::make_shared<std::vector<Signal>>(std::move(signals));
  const size_t n = shared_segments->size();
  const uint64_t parts = e.options().policy == Policy::kRandom && n > 1
                             ? 1 + e.world.rng() % std::min<size_t>(n, 3)
                             : 1;
  Task* raw = task.get();
  for (uint64_t part = 0; part < parts; ++part) {
    task->steps.push_back([=] {
      for (size_t k = n * part / parts; k < n * (part + 1) / parts; ++k) {
        const Segment& s = (*shared_segments)[k];
        land(s, s.from.block ? s.from.data() : nullptr, s.from.block ? s.from.shadow() : nullptr,
             pattern, pattern_bytes);
      }
      complete(*world, *shared_signals, *raw, part, parts);
    });
  }
  add_task(e.world, task);
}

void start_store(Exec& e, int lane, const char* what, std::vector<Segment> segments,
                 const Reduction& reduction) {
  const TaskRef task = make_task(e, what, lane);
  hold_sources(e, lane, what, segments, *task);
  race_split(e, *task);
  if (reduction.apply == nullptr) {
    mark_destination(e, lane, what, segments, *task);
  } else {
    for (const Segment& s : segments) {
      check_async(e, s.to, s.bytes, true, lane, what);
      if (e.world.races) race_async(e, *task, s.to, s.bytes, true, lane, true);
    }
  }
  auto moved = std::make_shared<std::vector<Segment>>(std::move(segments));
  auto buffer = std::make_shared<std::vector<uint8_t>>();
  Task* raw = task.get();
  task->steps.push_back([=] {
    for (const Segment& s : *moved) {
      const uint64_t n = source_bytes(s);
      buffer->insert(buffer->end(), s.from.data(), s.from.data() + n);
      buffer->insert(buffer->end(), s.from.shadow(), s.from.shadow() + n);
    }
    // The sources are free from here on (wait_group.read).
    std::erase_if(raw->holds, [](const Hold& h) {
      if (!h.write) h.block->add_readers(h.offset, h.bytes, -1);
      return !h.write;
    });
  });
  task->steps.push_back([=] {
    size_t at = 0;
    for (const Segment& s : *moved) {
      const uint64_t n = source_bytes(s);
      const uint8_t* data = buffer->data() + at;
      const uint8_t* shadow = data + n;
      at += 2 * n;
      if (reduction.apply == nullptr) {
        land(s, data, shadow, 0, 1);
        continue;
      }
      for (uint64_t k = 0; k < s.bytes; k += static_cast<uint64_t>(reduction.bytes)) {
        reduction.apply(s.to.data() + k, data + k, reduction.op, reduction.type);
        const bool bad = (shadow_bits(shadow + k, static_cast<uint32_t>(reduction.bytes)) |
                          shadow_bits(s.to.shadow() + k, static_cast<uint32_t>(reduction.bytes))) &
                         kPoison;
        std::memset(s.to.shadow() + k, bad ? kPoison : 0, static_cast<size_t>(reduction.bytes));
      }
    }
  });
  add_task(e.world, task);
  e.warp.bulk[static_cast<size_t>(lane)].open.push_back({task, 1});
}

}  // namespace sm100sim
