// Memory of the driver face: allocations, pinned host memory, copies and sets in stream order.

#include <cstring>

#include "driver/state.h"

namespace sm100sim::driver {
namespace {

Block* block_of(uint64_t address, uint64_t bytes) {
  Block* b = state().world.memory.find(address);
  return b != nullptr && b->contains(address, bytes) ? b : nullptr;
}

cu::Result alloc(cu::DevicePtr* p, size_t bytes) {
  auto l = lock();
  if (current_device() < 0) return cu::kInvalidContext;
  if (bytes == 0) return cu::kInvalidValue;
  *p = state().world.memory.allocate(current_device(), bytes, 512, "cuMemAlloc")->base;
  return cu::kSuccess;
}
cu::Result free_device(cu::DevicePtr p) {
  auto l = lock();
  state().world.last_block = nullptr;
  return state().world.memory.free(p) ? cu::kSuccess : cu::kInvalidValue;
}
cu::Result host_alloc(void** p, size_t bytes, unsigned) {
  auto l = lock();
  uint8_t* memory = new (std::align_val_t(4096)) uint8_t[bytes];
  std::memset(memory, 0, bytes);
  state().world.memory.adopt_host(memory, bytes);
  *p = memory;
  return cu::kSuccess;
}
cu::Result free_host(void* p) {
  auto l = lock();
  state().world.last_block = nullptr;
  if (!state().world.memory.free(reinterpret_cast<uint64_t>(p))) return cu::kInvalidValue;
  ::operator delete[](p, std::align_val_t(4096));
  return cu::kSuccess;
}
cu::Result host_pointer(cu::DevicePtr* p, void* host, unsigned) {
  *p = reinterpret_cast<cu::DevicePtr>(host);
  return cu::kSuccess;
}

void define(Block& b, uint64_t at, size_t bytes) {
  std::memset(b.shadow.get() + at, 0, bytes);
  b.note_write(at, bytes, 0, 0);
}

cu::Result set(cu::DevicePtr to, unsigned value, size_t count, size_t unit, cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  if (count == 0) return cu::kSuccess;
  if (block_of(to, count * unit) == nullptr)
    return refuse(cu::kInvalidValue, "memset outside an allocation");
  Work w;
  w.act = [=] {
    Block* b = block_of(to, count * unit);
    if (b == nullptr) return;
    for (size_t k = 0; k < count; ++k)
      std::memcpy(b->data + (to - b->base) + k * unit, &value, unit);
    define(*b, to - b->base, count * unit);
  };
  return submit(*s, std::move(w));
}
cu::Result set8(cu::DevicePtr to, unsigned char v, size_t n, cu::Stream s) {
  return set(to, v, n, 1, s);
}
cu::Result set32(cu::DevicePtr to, unsigned v, size_t n, cu::Stream s) {
  return set(to, v, n, 4, s);
}

cu::Result to_device(cu::DevicePtr to, const void* from, size_t bytes, cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  if (bytes == 0) return cu::kSuccess;
  if (block_of(to, bytes) == nullptr)
    return refuse(cu::kInvalidValue, "copy outside an allocation");
  // Pageable memory is read before the call returns; so is everything here.
  std::vector<uint8_t> data(static_cast<const uint8_t*>(from),
                            static_cast<const uint8_t*>(from) + bytes);
  Work w;
  w.act = [=, data = std::move(data)] {
    Block* b = block_of(to, bytes);
    if (b == nullptr) return;
    std::memcpy(b->data + (to - b->base), data.data(), bytes);
    define(*b, to - b->base, bytes);
  };
  return submit(*s, std::move(w));
}
cu::Result to_host(void* to, cu::DevicePtr from, size_t bytes, cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  if (bytes == 0) return cu::kSuccess;
  if (block_of(from, bytes) == nullptr)
    return refuse(cu::kInvalidValue, "copy outside an allocation");
  Work w;
  w.act = [=] {
    Block* b = block_of(from, bytes);
    if (b == nullptr) return;
    const uint64_t at = from - b->base;
    for (size_t k = 0; k < bytes; ++k) {
      if ((b->shadow[at + k] & kPoison) == 0) continue;
      Report r;
      r.kind = "undefined-output";
      r.warning = true;
      r.message = format("the host copies undefined bytes, the first at 0x%llx (offset %zu)",
                         static_cast<unsigned long long>(from + k), k);
      r.address = from + k;
      state().reports.push_back(std::move(r));
      break;
    }
    std::memcpy(to, b->data + at, bytes);
  };
  return submit(*s, std::move(w));
}
cu::Result between(cu::DevicePtr to, cu::DevicePtr from, size_t bytes, cu::Stream stream) {
  auto l = lock();
  StreamState* s = stream_of(stream);
  if (s == nullptr) return cu::kInvalidHandle;
  if (bytes == 0) return cu::kSuccess;
  if (block_of(to, bytes) == nullptr || block_of(from, bytes) == nullptr)
    return refuse(cu::kInvalidValue, "copy outside an allocation");
  Work w;
  w.act = [=] {
    Block *d = block_of(to, bytes), *f = block_of(from, bytes);
    if (d == nullptr || f == nullptr) return;
    std::memmove(d->data + (to - d->base), f->data + (from - f->base), bytes);
    define(*d, to - d->base, bytes);
    for (size_t k = 0; k < bytes; ++k)
      d->shadow[to - d->base + k] = f->shadow[from - f->base + k] & kPoison;
  };
  return submit(*s, std::move(w));
}

}  // namespace

void fill_memory(cu::Driver& t) {
  t.mem_alloc = alloc;
  t.mem_free = free_device;
  t.mem_host_alloc = host_alloc;
  t.mem_free_host = free_host;
  t.mem_host_get_device_pointer = host_pointer;
  t.memset_d8_async = set8;
  t.memset_d32_async = set32;
  t.memcpy_htod_async = to_device;
  t.memcpy_dtoh_async = to_host;
  t.memcpy_dtod_async = between;
}

}  // namespace sm100sim::driver
