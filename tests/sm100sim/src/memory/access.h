// Access to memory by instructions and by asynchronous operations: address to bytes, and every
// check that belongs to the access itself (bounds, alignment, peers, in-flight data, mbarrier
// objects, proxies). Values and poison are the caller's.
#pragma once

#include "machine/exec.h"
#include "memory/space.h"

namespace sm100sim {

struct Place {
  Block* block;
  uint64_t offset;
  Cta* cta;  // whose shared memory, else null
  uint8_t* data() const { return block->data + offset; }
  uint8_t* shadow() const { return block->shadow.get() + offset; }
};

/// Where `bytes` at `address` of `space` lie for this lane; throws Fault when outside or
/// misaligned.
Place resolve(Exec& e, Space space, uint64_t address, uint32_t bytes, int lane, uint32_t align);

/// Generic-proxy access: what is in flight or is an mbarrier must not be touched.
inline void check_generic(Exec& e, const Place& p, uint32_t bytes, bool write, int lane,
                          uint64_t address);
void refuse_generic(Exec& e, const Place& p, uint32_t bytes, bool write, int lane,
                    uint64_t address);

/// Notes a generic write for the proxy check and the counters.
inline void note_generic_write(Exec& e, const Place& p, uint32_t bytes, int lane) {
  p.block->note_write(p.offset, bytes, e.world.event,
                      e.warp.uid * kLanes + static_cast<uint32_t>(lane));
}

inline uint8_t shadow_bits(const uint8_t* shadow, uint32_t bytes) {
  uint8_t all = 0;
  for (uint32_t k = 0; k < bytes; ++k) all |= shadow[k];
  return all;
}

inline void check_generic(Exec& e, const Place& p, uint32_t bytes, bool write, int lane,
                          uint64_t address) {
  const uint8_t bits = shadow_bits(p.shadow(), bytes);
  if ((bits & (kInFlight | kBarrier)) || (write && (bits & kReadOnly)) ||
      (write && p.block->has_readers(p.offset, bytes))) [[unlikely]] {
    refuse_generic(e, p, bytes, write, lane, address);
  }
}

/// Proxy check of an asynchronous access at its issue: generic writes to these bytes must have been
/// fenced.
void check_async(Exec& e, const Place& p, uint64_t bytes, bool write, int lane, const char* what);

/// Global memory for an asynchronous operation of `grid`: block and offset, or a Fault.
Place resolve_global(World& world, const Grid& grid, uint64_t address, uint64_t bytes,
                     const char* what);

/// The CTA of the executing cluster that a shared::cluster address names.
Cta& cta_of_rank(const Exec& e, uint32_t rank, int lane, uint64_t address);

void count_global(Exec& e, const Block& block, uint64_t bytes, bool write);

}  // namespace sm100sim
