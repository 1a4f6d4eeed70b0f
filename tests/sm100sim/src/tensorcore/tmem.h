// The tensor memory of one SM: 128 lanes x 512 columns of 32-bit words, each byte with a poison
// bit, and the allocation map of tcgen05.alloc/dealloc. Blocking, permits and pairs of CTAs are the
// machine's; this says only what is free.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace sm100sim::tensorcore {

inline constexpr int kTmemLanes = 128;
inline constexpr int kTmemColumns = 512;

class Tmem {
 public:
  Tmem();
  // Everything poisoned, nothing allocated.
  void reset();

  uint32_t* words(int lane) { return &words_[lane * kTmemColumns]; }
  const uint32_t* words(int lane) const { return &words_[lane * kTmemColumns]; }
  uint8_t* poison(int lane) { return &poison_[lane * kTmemColumns]; }
  const uint8_t* poison(int lane) const { return &poison_[lane * kTmemColumns]; }

  // Column of the lowest free run that fits at a multiple of `columns`, or -1 when there is none
  // (the caller waits). `owner` is any id.
  int allocate(int columns, int owner);
  // Frees what `allocate` gave to this owner at this column and poisons it. False and words
  // otherwise.
  bool deallocate(int column, int columns, int owner, std::string* why);
  // Owner of a column, -1 when free.
  int owner(int column) const { return owner_[column]; }
  int allocated_columns(int owner) const;

 private:
  std::vector<uint32_t> words_;
  std::vector<uint8_t> poison_;
  std::array<int, kTmemColumns> owner_;
  std::array<int, kTmemColumns> size_;  // of the allocation that starts here, else 0
};

// nCols of tcgen05.alloc/dealloc: a power of two in 32..512. Empty when right, else words.
std::string check_allocation_size(uint32_t columns);

// A tensor-memory address: lane in bits 31:16, column in bits 15:0.
constexpr int address_lane(uint32_t address) { return static_cast<int>(address >> 16); }
constexpr int address_column(uint32_t address) { return static_cast<int>(address & 0xFFFF); }

}  // namespace sm100sim::tensorcore
