// How the tensor core reaches memory: two small interfaces that the machine implements, so that
// bounds, poison, work in flight and races are checked in one place. `cta` is 0 for the executing
// CTA with cta_group::1; with cta_group::2 it is 0 for the even rank of the pair and 1 for the odd
// one.
#pragma once

#include <cstdint>

namespace sm100sim::tensorcore {

class SharedPort {
 public:
  virtual ~SharedPort() = default;
  // Copies `bytes` (at most 16, never across a 16-byte boundary) from the CTA's shared window.
  // Returns the mask of poisoned bytes.
  virtual uint16_t read(int cta, uint32_t address, void* out, int bytes) = 0;
};

class TmemPort {
 public:
  virtual ~TmemPort() = default;
  // Consecutive columns of one lane. `poison` holds 4 bits a word, bit i for byte i.
  virtual void read(int cta, int lane, int column, int columns, uint32_t* words,
                    uint8_t* poison) = 0;
  virtual void write(int cta, int lane, int column, int columns, const uint32_t* words,
                     const uint8_t* poison) = 0;
};

// What an operation will touch, for checks of work in flight.
struct SharedRange {
  int cta;
  uint32_t address;
  uint32_t bytes;
};
struct TmemRect {
  int cta;
  int lane, lanes;
  int column, columns;
  bool write;
};

}  // namespace sm100sim::tensorcore
