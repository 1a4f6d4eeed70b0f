// What bytes a bulk or tensor copy moves: the plan of one instruction for one destination CTA. Pure
// geometry: who moves them, when, and which barrier hears of it is the caller's. Sources: PTX
// ISA 5.5 (tensors), cp.async.bulk*, "Restriction on Tensor Copy instructions"; what is inferred is
// listed in README.md here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tma/tensor_map.h"

namespace sm100sim::tma {

enum class RunKind : uint8_t {
  kCopy,       // bytes move between shared and global (direction from the request)
  kFillZero,   // load: out of range, shared bytes become zero
  kFillNan,    // load: out of range, shared bytes become the type's NaN pattern
               // (CopyPlan::fill_pattern)
  kClipped,    // store: out of range, nothing is written; the shared bytes are not read
  kUndefined,  // load of a padded type: shared bytes left undefined (poison them)
  kPack6,      // store of 6-bit elements: `bytes` global bytes gather the low 6 bits of bytes*4/3
               // shared bytes
};

struct Run {
  uint32_t shared;  // byte address in the CTA's shared window, swizzle applied
  uint64_t global;  // kCopy, kPack6 and kClipped only
  uint32_t bytes;
  RunKind kind;
};

enum class Direction : uint8_t { kLoad, kStore, kReduce, kPrefetch };
enum class Mode : uint8_t { kTile, kGather4, kScatter4, kIm2col };

struct TensorCopy {
  Direction direction;
  Mode mode = Mode::kTile;
  int coordinate_count = 0;     // as written in the instruction: rank, or 5 for gather4/scatter4
  int32_t coordinates[5] = {};  // innermost first; gather4/scatter4: {column, row0..row3}
  uint32_t shared = 0;          // byte offset in the CTA's shared window
};

struct CopyPlan {
  std::vector<Run>
      runs;  // in the order of the box; adjacent bytes merged where both sides stay contiguous
  uint64_t transaction_bytes = 0;  // of complete_tx, or of the bulk group: packed bytes for padded
                                   // types, out-of-range included
  uint64_t fill_pattern = 0;       // of kFillNan, repeated every fill_bytes
  int fill_bytes = 1;
  uint32_t shared_low = 0, shared_high = 0;  // the shared bytes touched lie in [low, high)
  std::vector<std::string> errors;  // a rule of the instruction is broken: no byte may move
  bool ok() const { return errors.empty(); }
};

CopyPlan plan_tensor_copy(const TensorMap& map, const TensorCopy& copy);

// 1-D bulk copies: load, store, shared to shared, prefetch. Checks 16-byte alignment and size;
// moves in one run.
CopyPlan plan_bulk_copy(uint32_t shared, uint64_t global, uint64_t bytes);

// One element of cp.reduce.async.bulk(.tensor): dst = dst op src, in place.
enum class ReduceOp : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
enum class ReduceType : uint8_t {
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kBf16,
  kF32,
  kF64,
  kB32,
  kB64,
  kF32Ftz
};

// The reduction type of a tensor map's elements (tensor reductions take it from the map). False and
// words when it has none.
bool reduce_type(ElementType type, ReduceOp op, ReduceType* out, std::string* why);
// True when PTX has cp.reduce.async.bulk with this pair for shared -> global.
bool reduce_legal(ReduceOp op, ReduceType type);
int reduce_bytes(ReduceType type);
void reduce_element(ReduceOp op, ReduceType type, void* destination, const void* source);

}  // namespace sm100sim::tma
