// The table of functions that one instruction-set path offers to the driver, and what they
// exchange.
//
// A path file is compiled for instructions that this machine may lack, so it must not instantiate
// anything the linker could share with baseline code: this header and everything else a path file
// includes hold plain structs and C headers only, and a path's own code has internal linkage. The
// one symbol a path file exports is its table.
#pragma once

#include <stdint.h>

namespace megamoe::cpu {

inline constexpr int kMaxTopK = 32;
inline constexpr int kMaxBlockRows = 128;  // rows of one expert that are multiplied together
inline constexpr int kAccColumns = 64;     // outputs of four panels

// A tile: rows first..first+rows-1 of a block, interleaved so that the values of one k (of one pair
// of k for bfloat16 dots) lie side by side. `scaled` tiles hold code * 2^(scale - 127); in the
// others, whose scales are too extreme for that, the codes stand alone and the scales are applied
// group by group.
struct Tile {
  int32_t first, rows;
  bool scaled;
};

struct RowBlock {
  const uint8_t* packed;  // tile t starts at byte tiles[t].first * k * Path::element_bytes
  const Tile* tiles;
  int32_t tile_count, rows;
  const uint8_t* const* scales;  // per row: its k/32 scale bytes
};

// Two or four panels of a weight matrix, not necessarily neighbours.
struct Panels {
  int32_t count;
  const uint8_t* codes[4];
  const uint8_t* scales[4];
  const uint8_t* ahead[4];  // the codes that this thread is likely to read next
};

struct Activation {
  float limit, alpha, beta;  // limit +inf: none
};

struct Path {
  const char* name;
  int32_t tile_rows;      // rows of the tallest tile
  int32_t element_bytes;  // of one packed value: 4 (float32) or 2 (bfloat16)

  // Step 1: a row of `groups` * 32 bfloat16 to E4M3 codes and UE8M0 bytes.
  void (*quantize_row)(const uint16_t* x, int64_t groups, uint8_t* codes, uint8_t* scales);
  // Whether a row may stand in a scaled tile.
  bool (*scalable)(const uint8_t* codes, const uint8_t* scales, int64_t groups);
  // Writes `rows` rows as a tile at `out`.
  void (*pack_tile)(const uint8_t* const* codes, const uint8_t* const* scales, int64_t groups,
                    bool scaled, int32_t rows, uint8_t* out);
  // Steps 2 and 6 up to the sum: acc[row][64] = the block's rows times the panels, 16 columns each.
  void (*multiply)(const Panels& weights, const RowBlock& rows, int64_t groups, float* acc);
  // The rest of step 2 and steps 3 to 5 for 32 columns of a row. Biases may be null.
  void (*activate)(const float* gate, const float* up, const float* gate_bias, const float* up_bias,
                   const Activation& activation, float weight, uint8_t* codes, uint8_t* scale);
  // The rest of step 6 for 32 columns of a row. The bias may be null.
  void (*finish)(const float* acc, const float* bias, float weight, uint16_t* out);
  // Step 7 for n columns (a multiple of 32) of a token: the sum of `count` rows, in order.
  void (*combine)(const uint16_t* const* rows, int32_t count, int64_t n, uint16_t* y);

  // What bounds the path on this machine, for benchmarks (probe.inl): multiply-adds done by
  // `rounds` rounds of dots on registers, and bytes read of memory.
  int64_t (*probe_dots)(int64_t rounds);
  int64_t (*probe_read)(const uint8_t* p, int64_t bytes);
};

}  // namespace megamoe::cpu
