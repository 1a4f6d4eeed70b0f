// Walking a box: rows along dimension 0, each cut at the tensor's edge and at swizzle chunks. See
// box.h.
#include "tma/box.h"

#include <algorithm>

#include "numerics/words.h"

namespace sm100sim::tma {
namespace {

struct Walk {
  const TensorMap& map;
  Direction direction;
  CopyPlan& plan;
  int chunk;  // bytes that the swizzle keeps together
};

void add(CopyPlan& plan, Run run) {
  if (!plan.runs.empty()) {
    Run& last = plan.runs.back();
    const bool addressed = run.kind == RunKind::kCopy || run.kind == RunKind::kClipped;
    if (last.kind == run.kind && run.kind != RunKind::kPack6 &&
        last.shared + last.bytes == run.shared &&
        (!addressed || last.global + last.bytes == run.global)) {
      last.bytes += run.bytes;
      return;
    }
  }
  plan.runs.push_back(run);
}

void touch(CopyPlan& plan, uint32_t low, uint32_t high) {
  if (plan.shared_high == 0) plan.shared_low = low;
  plan.shared_low = std::min(plan.shared_low, low);
  plan.shared_high = std::max(plan.shared_high, high);
}

// `bytes` contiguous shared bytes from linear address `linear`, swizzled piece by piece.
void emit(Walk& walk, uint32_t linear, uint64_t global, uint32_t bytes, RunKind kind) {
  while (bytes) {
    const uint32_t room = walk.chunk - linear % walk.chunk;
    const uint32_t piece = walk.map.swizzle == Swizzle::kNone ? bytes : std::min(bytes, room);
    const uint32_t physical = swizzle_address(walk.map.swizzle, linear);
    add(walk.plan, {physical, global, piece, kind});
    touch(walk.plan, physical, physical + piece);
    linear += piece;
    global += piece;
    bytes -= piece;
  }
}

// One row of the box: elements [first, first + box[0]) of dimension 0, global byte address of
// element 0 of that line.
void row(Walk& walk, uint32_t linear, int64_t first, uint64_t line, bool line_inside) {
  const TensorMap& map = walk.map;
  const int64_t count = map.box[0];
  const int64_t dim = static_cast<int64_t>(map.dim[0]);
  const bool load = walk.direction == Direction::kLoad;
  const RunKind fill = !load                    ? RunKind::kClipped
                       : map.fill == Fill::kNan ? RunKind::kFillNan
                                                : RunKind::kFillZero;
  const int bits = global_bits(map.type), shared = shared_bits(map.type);
  int64_t low = std::clamp<int64_t>(-first, 0, count),
          high = std::clamp<int64_t>(dim - first, 0, count);
  if (!line_inside || low >= high) low = high = 0;
  auto global_of = [&](int64_t element) {
    return line + static_cast<uint64_t>((first + element) * bits / 8);
  };
  if (shared == bits) {
    auto bytes_of = [&](int64_t elements) { return static_cast<uint32_t>(elements * bits / 8); };
    emit(walk, linear, 0, bytes_of(low), fill);
    emit(walk, linear + bytes_of(low), global_of(low), bytes_of(high - low), RunKind::kCopy);
    emit(walk, linear + bytes_of(high), global_of(high), bytes_of(count - high), fill);
    return;
  }
  // Padded types: 16 elements fill one 16-byte chunk; dimension 0 and the coordinate are multiples
  // of 128, so a chunk is whole.
  for (int64_t element = 0; element < count; element += 16) {
    const uint32_t at = linear + static_cast<uint32_t>(element);
    const uint32_t data = static_cast<uint32_t>(16 * bits / 8);
    const bool inside = element >= low && element < high;
    if (walk.direction == Direction::kStore) {
      const uint32_t physical = swizzle_address(map.swizzle, at);
      add(walk.plan, {physical, global_of(element), inside ? data : 16,
                      inside ? RunKind::kPack6 : RunKind::kClipped});
      touch(walk.plan, physical, physical + 16);
      continue;
    }
    emit(walk, at, inside ? global_of(element) : 0, data, inside ? RunKind::kCopy : fill);
    emit(walk, at + data, 0, 16 - data, RunKind::kUndefined);
  }
}

void check(const TensorMap& map, const TensorCopy& copy, CopyPlan& plan) {
  auto& errors = plan.errors;
  const bool four_rows = copy.mode == Mode::kGather4 || copy.mode == Mode::kScatter4;
  if (copy.mode == Mode::kIm2col) {
    errors.push_back(
        "load mode im2col found; this simulator has tiled copies, gather4 and scatter4 only");
    return;
  }
  if (map.interleave != Interleave::kNone) {
    errors.push_back("tensor map with interleave found; this simulator has interleave none only");
    return;
  }
  const int wanted = four_rows ? 5 : map.rank;
  if (copy.coordinate_count != wanted)
    errors.push_back(words("{} coordinates found; {} accepted (tensor map of rank {})",
                           copy.coordinate_count, wanted, map.rank));
  if (four_rows && map.rank != 2)
    errors.push_back(words("gather4/scatter4: tensor map of rank {} found, 2 accepted", map.rank));
  if (four_rows && map.box[1] != 1)
    errors.push_back(words("gather4/scatter4: boxDim[1] = {} found, 1 accepted", map.box[1]));
  if (copy.mode == Mode::kGather4 && copy.direction != Direction::kLoad &&
      copy.direction != Direction::kPrefetch)
    errors.push_back("gather4 found on a store; use scatter4");
  if (copy.mode == Mode::kScatter4 && copy.direction != Direction::kStore)
    errors.push_back("scatter4 found where only a store may have it; use gather4 for loads");
  if (copy.direction != Direction::kPrefetch && copy.shared % 128)
    errors.push_back(
        words("shared-memory address {:#x} found; a multiple of 128 accepted for tensor copies",
              copy.shared));
  const bool store = copy.direction == Direction::kStore || copy.direction == Direction::kReduce;
  if (store) {
    for (int i = 0; i < copy.coordinate_count && i < 5; ++i)
      if (copy.coordinates[i] < 0)
        errors.push_back(words("coordinate {} = {} found; stores accept non-negative ones only", i,
                               copy.coordinates[i]));
    if (map.type == ElementType::k16U4Align16)
      errors.push_back("16U4_ALIGN16B found on a store; it is for loads only");
    if (map.swizzle == Swizzle::k128BAtom32BFlip8B)
      errors.push_back("swizzle with 8-byte flip found on a store; it is for loads only");
  } else if (map.type == ElementType::k16U6Align16 && map.swizzle == Swizzle::k128BAtom64B) {
    errors.push_back(
        "16U6_ALIGN16B with 128B_ATOM_64B found on a load; that swizzle is for stores of this type "
        "only");
  }
  if (copy.direction == Direction::kReduce && map.type >= ElementType::k16U4Align8)
    errors.push_back(words("{} found on a reduction; packed types have none", name(map.type)));
  if (global_bits(map.type) < 8) {
    const int multiple = map.type == ElementType::k16U4Align8 ? 2 : 128;
    if (copy.coordinates[0] % multiple)
      errors.push_back(words("coordinate 0 = {} found; a multiple of {} accepted for {}",
                             copy.coordinates[0], multiple, name(map.type)));
  }
}

uint64_t nan_pattern(ElementType type, int* bytes) {
  *bytes = global_bits(type) / 8;
  switch (*bytes) {
    case 2:
      return 0x7FFF;
    case 8:
      return 0x7FFFFFFFFFFFFFFF;
    default:
      return 0x7FFFFFFF;
  }
}

}  // namespace

CopyPlan plan_tensor_copy(const TensorMap& map, const TensorCopy& copy) {
  CopyPlan plan;
  check(map, copy, plan);
  if (!plan.ok()) return plan;
  if (map.fill == Fill::kNan) plan.fill_pattern = nan_pattern(map.type, &plan.fill_bytes);
  const int flip = map.swizzle == Swizzle::k128BAtom32BFlip8B ? 8 : 16;
  Walk walk{map, copy.direction == Direction::kReduce ? Direction::kStore : copy.direction, plan,
            flip};
  if (copy.direction == Direction::kPrefetch) walk.direction = Direction::kLoad;
  const uint32_t row_bytes = map.box[0] * shared_bits(map.type) / 8;
  const uint64_t row_transaction = static_cast<uint64_t>(map.box[0]) * global_bits(map.type) / 8;

  if (copy.mode != Mode::kTile) {
    for (int i = 0; i < 4; ++i) {
      const int64_t at = copy.coordinates[1 + i];
      const bool inside = at >= 0 && at < static_cast<int64_t>(map.dim[1]);
      row(walk, copy.shared + i * row_bytes, copy.coordinates[0],
          map.address + static_cast<uint64_t>(at) * map.stride[1], inside);
    }
    plan.transaction_bytes = 4 * row_transaction;
    return plan;
  }

  // Element strides: every s-th element of a dimension from the start, ceil(box / s) of them.
  uint32_t count[kMaxRank] = {1, 1, 1, 1, 1};
  uint64_t rows = 1;
  for (int i = 1; i < map.rank; ++i) {
    count[i] = (map.box[i] + map.element_stride[i] - 1) / map.element_stride[i];
    rows *= count[i];
  }
  uint32_t index[kMaxRank] = {};
  for (uint64_t r = 0; r < rows; ++r) {
    bool inside = true;
    uint64_t line = map.address;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t at =
          copy.coordinates[i] + static_cast<int64_t>(index[i]) * map.element_stride[i];
      inside = inside && at >= 0 && at < static_cast<int64_t>(map.dim[i]);
      line += static_cast<uint64_t>(at) * map.stride[i];
    }
    row(walk, copy.shared + static_cast<uint32_t>(r) * row_bytes, copy.coordinates[0], line,
        inside);
    for (int i = 1; i < map.rank; ++i) {
      if (++index[i] < count[i]) break;
      index[i] = 0;
    }
  }
  plan.transaction_bytes = rows * row_transaction;
  return plan;
}

CopyPlan plan_bulk_copy(uint32_t shared, uint64_t global, uint64_t bytes) {
  CopyPlan plan;
  if (shared % 16)
    plan.errors.push_back(words(
        "shared-memory address {:#x} found; a multiple of 16 accepted for bulk copies", shared));
  if (global % 16)
    plan.errors.push_back(
        words("global address {:#x} found; a multiple of 16 accepted for bulk copies", global));
  if (bytes % 16 || bytes >> 32)
    plan.errors.push_back(
        words("size {} found; a multiple of 16 below 2^32 accepted for bulk copies", bytes));
  if (!plan.ok()) return plan;
  plan.transaction_bytes = bytes;
  if (bytes) plan.runs.push_back({shared, global, static_cast<uint32_t>(bytes), RunKind::kCopy});
  plan.shared_low = shared;
  plan.shared_high = shared + static_cast<uint32_t>(bytes);
  return plan;
}

}  // namespace sm100sim::tma
