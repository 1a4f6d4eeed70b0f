// Bytes and what is known about each of them. A Block is one allocation: data, and a shadow byte
// per data byte. Spaces and windows map addresses to blocks. Who may access when is checked by the
// callers (instructions, tasks) with the flags kept here.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace sm100sim {

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kSharedCluster, kLocal, kParam, kConst };
const char* space_name(Space s);

// Generic windows. Device allocations lie at kDeviceBase + (device << 40); pinned host memory at
// its own host address.
inline constexpr uint64_t kSharedWindow = 0x0200'0000'0000ull;
inline constexpr uint64_t kLocalWindow = 0x0300'0000'0000ull;
inline constexpr uint64_t kParamWindow = 0x0400'0000'0000ull;
inline constexpr uint64_t kWindowBytes = 0x0100'0000'0000ull;
inline constexpr uint64_t kDeviceBase = 0x1000'0000'0000ull;
inline constexpr uint32_t kRankShift = 24;  // shared::cluster address = rank << 24 | offset
inline constexpr uint32_t kSharedOffsetMask = (1u << kRankShift) - 1;
inline constexpr uint32_t kReservedShared = 1024;  // of every CTA, at the start of its window

// Shadow bits.
inline constexpr uint8_t kPoison = 1;    // undefined content
inline constexpr uint8_t kInFlight = 2;  // destination of an asynchronous write in flight
inline constexpr uint8_t kBarrier = 4;   // part of a live mbarrier object
inline constexpr uint8_t kReadOnly = 8;  // const space, parameters

struct Block {
  uint64_t base = 0, size = 0;
  uint8_t* data = nullptr;
  std::unique_ptr<uint8_t[]> owned;
  std::unique_ptr<uint8_t[]> shadow;
  // Asynchronous readers in flight (counted per 16 bytes), and the last generic write per 4 bytes:
  // event number (0: none that an asynchronous access would have to be ordered with) and thread.
  // Zero pages until touched.
  struct Write {
    uint32_t event;
    uint32_t thread;
  };
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<uint8_t[], Free> readers;
  std::unique_ptr<Write[], Free> writes;
  int device = -1;
  uint32_t id = 0;
  bool is_shared = false;
  std::string label;

  bool contains(uint64_t address, uint64_t bytes) const {
    return address >= base && bytes <= size && address - base <= size - bytes;
  }
  void note_write(uint64_t offset, uint64_t bytes, uint32_t event, uint32_t thread) {
    for (uint64_t w = offset / 4; w <= (offset + bytes - 1) / 4; ++w) writes[w] = {event, thread};
  }
  void add_readers(uint64_t offset, uint64_t bytes, int delta);
  bool has_readers(uint64_t offset, uint64_t bytes) const;
};

/// A block whose bytes are all poison (or, with `host`, all defined and owned by somebody else).
std::unique_ptr<Block> make_block(uint64_t base, uint64_t size, uint8_t* host = nullptr);

/// Global memory of all devices and pinned host memory: one ordered map of blocks.
class GlobalMemory {
 public:
  Block* allocate(int device, uint64_t bytes, uint64_t align, std::string label);
  Block* adopt_host(uint8_t* host, uint64_t bytes);
  bool free(uint64_t base);
  Block* find(uint64_t address) const;          // the block that contains the address
  std::string nearest(uint64_t address) const;  // words for an out-of-bounds report
  uint64_t used(int device) const;

 private:
  std::map<uint64_t, std::unique_ptr<Block>> blocks_;
  std::map<int, uint64_t> next_;
  uint32_t ids_ = 1;
};

}  // namespace sm100sim
