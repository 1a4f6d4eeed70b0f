// See access.h.

#include "memory/access.h"

namespace sm100sim {
namespace {

[[noreturn]] void out_of_bounds(Space space, uint64_t address, uint64_t bytes, int lane,
                                const std::string& more) {
  throw Fault("out-of-bounds",
              format("access of %llu bytes at 0x%llx of %s memory is out of bounds: ",
                     static_cast<unsigned long long>(bytes),
                     static_cast<unsigned long long>(address), space_name(space)) +
                  more,
              lane, address);
}

Place global_place(World& world, int device, uint64_t address, uint64_t bytes, int lane) {
  Block* b = world.last_block;
  if (b == nullptr || !b->contains(address, bytes)) {
    b = world.memory.find(address);
    if (b == nullptr || !b->contains(address, bytes))
      out_of_bounds(Space::kGlobal, address, bytes, lane, world.memory.nearest(address));
    world.last_block = b;
  }
  if (b->device >= 0 && b->device != device && !world.device(device).peers.count(b->device)) {
    throw Fault("no-peer-access",
                format("address 0x%llx lies on device %d, which device %d has no peer access to "
                       "(cuCtxEnablePeerAccess)",
                       static_cast<unsigned long long>(address), b->device, device),
                lane, address);
  }
  return {b, address - b->base, nullptr};
}

}  // namespace

Cta& cta_of_rank(const Exec& e, uint32_t rank, int lane, uint64_t address) {
  if (rank >= e.cta.cluster->ctas.size()) {
    throw Fault("out-of-bounds",
                format("shared::cluster address 0x%llx names CTA %u of a cluster of %zu",
                       static_cast<unsigned long long>(address), rank, e.cta.cluster->ctas.size()),
                lane, address);
  }
  Cta& cta = *e.cta.cluster->ctas[rank];
  if (cta.finished)
    throw Fault(
        "exited-cta",
        format("shared memory of CTA %u of the cluster is accessed after that CTA has ended", rank),
        lane, address);
  return cta;
}

Place resolve_global(World& world, const Grid& grid, uint64_t address, uint64_t bytes,
                     const char* what) {
  (void)what;
  return global_place(world, grid.device, address, bytes, -1);
}

Place resolve(Exec& e, Space space, uint64_t address, uint32_t bytes, int lane, uint32_t align) {
  if (address & (align - 1)) {
    throw Fault("misaligned",
                format("address 0x%llx of %s memory is not a multiple of %u",
                       static_cast<unsigned long long>(address), space_name(space), align),
                lane, address);
  }
  if (space == Space::kGeneric) {
    if (address - kSharedWindow < kWindowBytes) {
      space = Space::kSharedCluster;
      address -= kSharedWindow;
    } else if (address - kLocalWindow < kWindowBytes) {
      space = Space::kLocal;
      address -= kLocalWindow;
    } else if (address - kParamWindow < kWindowBytes) {
      space = Space::kParam;
    } else {
      space = Space::kGlobal;
    }
  }
  switch (space) {
    case Space::kShared:
    case Space::kSharedCluster: {
      address &= 0xffffffff;
      const uint32_t rank = static_cast<uint32_t>(address >> kRankShift);
      Cta* cta = &e.cta;
      if (space == Space::kSharedCluster) {
        if (rank != e.cta.rank) cta = &cta_of_rank(e, rank, lane, address);
      } else if (rank != 0 && rank != e.cta.rank) {
        throw Fault("out-of-bounds",
                    format("address 0x%llx names CTA %u of the cluster, but the instruction "
                           "accesses shared::cta",
                           static_cast<unsigned long long>(address), rank),
                    lane, address);
      }
      const uint64_t offset = address & kSharedOffsetMask;
      if (!cta->shared->contains(offset, bytes)) {
        out_of_bounds(space, address, bytes, lane,
                      format("the CTA has %llu bytes (the first 1024 are the system's)",
                             static_cast<unsigned long long>(cta->shared->size)));
      }
      return {cta->shared.get(), offset, cta};
    }
    case Space::kLocal: {
      if (!e.cta.local || bytes > e.cta.local_bytes || address > e.cta.local_bytes - bytes)
        out_of_bounds(space, address, bytes, lane,
                      format("a thread has %u bytes", e.cta.local_bytes));
      return {e.cta.local.get(),
              static_cast<uint64_t>(e.thread_of(lane)) * e.cta.local_bytes + address, nullptr};
    }
    case Space::kParam:
      if (!e.grid.param_block->contains(address, bytes))
        out_of_bounds(space, address, bytes, lane,
                      format("the kernel has %zu bytes of parameters", e.grid.params.size()));
      return {e.grid.param_block.get(), address - kParamWindow, nullptr};
    default:
      return global_place(e.world, e.grid.device, address, bytes, lane);
  }
}

void refuse_generic(Exec& e, const Place& p, uint32_t bytes, bool write, int lane,
                    uint64_t address) {
  const uint8_t bits = shadow_bits(p.shadow(), bytes);
  if (bits & kBarrier)
    throw Fault("mbarrier",
                "an ordinary access touches an mbarrier object: only mbarrier instructions may "
                "(mbarrier.inval ends its life)",
                lane, address);
  if (bits & kInFlight) {
    throw Fault("in-flight",
                std::string(write ? "a write to" : "a read of") +
                    " bytes that an asynchronous operation is still writing: its completion has "
                    "not been waited for",
                lane, address);
  }
  if (write && (bits & kReadOnly))
    throw Fault("read-only",
                "a write to read-only memory (constants, parameters, or the system's first 1024 "
                "bytes of shared memory)",
                lane, address);
  for (const TaskRef& t : e.world.tasks) {
    for (const Hold& h : t->holds) {
      if (h.block == p.block && !h.write && h.offset < p.offset + bytes &&
          p.offset < h.offset + h.bytes) {
        throw Fault(
            "overwrite-in-flight",
            std::string("a write to bytes that a ") + t->what + " in flight still has to read",
            lane, address);
      }
    }
  }
  // Readers are counted per 16 bytes; another part of the chunk is being read, which is fine.
}

void check_async(Exec& e, const Place& p, uint64_t bytes, bool write, int lane, const char* what) {
  if (bytes == 0) return;
  for (uint64_t w = p.offset / 4; w <= (p.offset + bytes - 1) / 4; ++w) {
    const Block::Write& record = p.block->writes[w];
    if (record.event == 0) continue;
    const uint32_t writer = record.thread / kLanes;
    if (e.world.proxy_fences[writer][record.thread % kLanes] > record.event) continue;
    const uint64_t address = p.block->base + 4 * w;
    if (e.world.proxy_fences[e.warp.uid][static_cast<size_t>(lane)] > record.event) {
      if (p.cta != nullptr && record.thread != e.warp.uid * kLanes + static_cast<uint32_t>(lane)) {
        e.warn("issuer-proxy-fence",
               "shared memory written by other threads is accessed by an asynchronous operation "
               "after a proxy fence of the issuing thread only; the text wants one in every writer",
               lane, address);
        return;
      }
      continue;
    }
    throw Fault("proxy",
                format("%s %s bytes that were written through the generic proxy without a "
                       "fence.proxy.async in between",
                       what, write ? "overwrites" : "reads"),
                lane, address);
  }
}

void count_global(Exec& e, const Block& block, uint64_t bytes, bool write) {
  Statistics& s = e.grid.stats;
  const bool peer = block.device != e.grid.device;
  (write ? (peer ? s.peer_written : s.global_written) : (peer ? s.peer_read : s.global_read)) +=
      bytes;
}

}  // namespace sm100sim
