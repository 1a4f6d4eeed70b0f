// tcgen05.cp (shared memory to tensor memory, with multicast to warps and decompression) and
// tcgen05.shift: pure moves.
#pragma once

#include <cstdint>
#include <vector>

#include "tensorcore/descriptor.h"
#include "tensorcore/ports.h"

namespace sm100sim::tensorcore {

enum class CopyShape : uint8_t {
  k128x256b,
  k4x256b,
  k128x128b,
  k64x128bWarpx2_02_13,
  k64x128bWarpx2_01_23,
  k32x128bWarpx4,
};
enum class CopySource : uint8_t {
  kPlain,
  kB6x16P32,
  kB4x16P64
};  // .b8x16.b6x16_p32, .b8x16.b4x16_p64

struct TmemCopy {
  CopyShape shape;
  CopySource source = CopySource::kPlain;
  uint32_t address = 0;     // tensor memory
  uint64_t descriptor = 0;  // shared memory
};

Errors check(const TmemCopy& copy);
// The part of one CTA (both CTAs of a pair do the same with their own memories).
void run(const TmemCopy& copy, int cta, SharedPort& shared, TmemPort& tmem);
void footprint(const TmemCopy& copy, int cta, std::vector<SharedRange>* shared,
               std::vector<TmemRect>* tmem);

// Lanes that row `row` of a shape is written to (1, 2 or 4 of them); returns how many.
int copy_lanes(CopyShape shape, int row, int lanes[4]);
int copy_rows(CopyShape shape);
int copy_chunks(CopyShape shape);  // 16-byte chunks a row

// tcgen05.shift.down: 8 columns of the 32 lanes from the address move by one lane, lane i+1 to lane
// i; the last keeps its value (and is what tcgen05.cp.4x256b refreshes afterwards). The direction
// is read from that pairing: the text says only "downwards, except the last".
Errors check_shift(uint32_t address);
void run_shift(uint32_t address, int cta, TmemPort& tmem);

}  // namespace sm100sim::tensorcore
