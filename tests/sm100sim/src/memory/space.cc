// See space.h. Allocations are padded apart by an unmapped page, so that an overrun never lands in
// a neighbour.

#include "memory/space.h"

#include <cstdio>

namespace sm100sim {

const char* space_name(Space s) {
  static const char* const kNames[] = {"generic", "global", "shared::cta", "shared::cluster",
                                       "local",   "param",  "const"};
  return kNames[static_cast<int>(s)];
}

std::unique_ptr<Block> make_block(uint64_t base, uint64_t size, uint8_t* host) {
  auto block = std::make_unique<Block>();
  block->base = base;
  block->size = size;
  block->shadow = std::make_unique<uint8_t[]>(size + 16);
  block->readers.reset(static_cast<uint8_t*>(std::calloc(size / 16 + 2, 1)));
  block->writes.reset(static_cast<Block::Write*>(std::calloc(size / 4 + 2, sizeof(Block::Write))));
  if (host != nullptr) {
    block->data = host;
  } else {
    block->owned = std::make_unique_for_overwrite<uint8_t[]>(size + 16);
    block->data = block->owned.get();
    std::memset(block->data, 0xCD, size);
    std::memset(block->shadow.get(), kPoison, size);
  }
  return block;
}

void Block::add_readers(uint64_t offset, uint64_t bytes, int delta) {
  if (bytes == 0) return;
  for (uint64_t g = offset / 16; g <= (offset + bytes - 1) / 16; ++g)
    readers[g] = static_cast<uint8_t>(readers[g] + delta);
}

bool Block::has_readers(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0) return false;
  for (uint64_t g = offset / 16; g <= (offset + bytes - 1) / 16; ++g) {
    if (readers[g] != 0) return true;
  }
  return false;
}

Block* GlobalMemory::allocate(int device, uint64_t bytes, uint64_t align, std::string label) {
  uint64_t& next = next_[device];
  if (next == 0) next = kDeviceBase + (static_cast<uint64_t>(device) << 40) + (1u << 20);
  const uint64_t base = (next + align - 1) / align * align;
  next = base + bytes + 4096;
  auto block = make_block(base, bytes);
  block->device = device;
  block->id = ids_++;
  block->label = std::move(label);
  Block* raw = block.get();
  blocks_[base] = std::move(block);
  return raw;
}

Block* GlobalMemory::adopt_host(uint8_t* host, uint64_t bytes) {
  const uint64_t base = reinterpret_cast<uint64_t>(host);
  auto block = make_block(base, bytes, host);
  block->id = ids_++;
  block->label = "pinned host memory";
  Block* raw = block.get();
  blocks_[base] = std::move(block);
  return raw;
}

bool GlobalMemory::free(uint64_t base) { return blocks_.erase(base) > 0; }

Block* GlobalMemory::find(uint64_t address) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return nullptr;
  Block* block = std::prev(it)->second.get();
  return address - block->base < block->size ? block : nullptr;
}

std::string GlobalMemory::nearest(uint64_t address) const {
  auto it = blocks_.upper_bound(address);
  if (it == blocks_.begin()) return "no allocation lies below it";
  const Block& b = *std::prev(it)->second;
  char text[200];
  std::snprintf(
      text, sizeof text,
      "the nearest allocation below is %s of %llu bytes at 0x%llx, which ends %llu bytes before",
      b.label.empty() ? "a block" : b.label.c_str(), static_cast<unsigned long long>(b.size),
      static_cast<unsigned long long>(b.base),
      static_cast<unsigned long long>(address - b.base - b.size));
  return text;
}

uint64_t GlobalMemory::used(int device) const {
  uint64_t sum = 0;
  for (const auto& [base, block] : blocks_) sum += block->device == device ? block->size : 0;
  return sum;
}

}  // namespace sm100sim
