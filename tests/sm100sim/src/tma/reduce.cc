// Element-wise reductions of cp.reduce.async.bulk and its tensor form. See box.h.
#include <bit>
#include <cstring>

#include "numerics/arith.h"
#include "numerics/words.h"
#include "tma/box.h"

namespace sm100sim::tma {
namespace {

using numerics::Format;

template <typename T>
void integer(ReduceOp op, void* destination, const void* source) {
  T old, value, out = 0;
  std::memcpy(&old, destination, sizeof old);
  std::memcpy(&value, source, sizeof value);
  switch (op) {
    case ReduceOp::kAdd:
      out = static_cast<T>(static_cast<uint64_t>(old) + static_cast<uint64_t>(value));
      break;
    case ReduceOp::kMin:
      out = value < old ? value : old;
      break;
    case ReduceOp::kMax:
      out = value > old ? value : old;
      break;
    case ReduceOp::kInc:
      out = old >= value ? 0 : old + 1;
      break;
    case ReduceOp::kDec:
      out = old == 0 || old > value ? value : old - 1;
      break;
    case ReduceOp::kAnd:
      out = old & value;
      break;
    case ReduceOp::kOr:
      out = old | value;
      break;
    case ReduceOp::kXor:
      out = old ^ value;
      break;
  }
  std::memcpy(destination, &out, sizeof out);
}

void half(ReduceOp op, Format format, void* destination, const void* source) {
  uint16_t old, value;
  std::memcpy(&old, destination, 2);
  std::memcpy(&value, source, 2);
  const uint16_t out =
      op == ReduceOp::kAdd
          ? numerics::add_half(format, old, value)
          : static_cast<uint16_t>(numerics::min_max(format, old, value, op == ReduceOp::kMax));
  std::memcpy(destination, &out, 2);
}

}  // namespace

bool reduce_type(ElementType type, ReduceOp op, ReduceType* out, std::string* why) {
  const bool bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
  bool found = true;
  switch (type) {
    case ElementType::kU32:
      *out = bitwise ? ReduceType::kB32 : ReduceType::kU32;
      break;
    case ElementType::kS32:
      *out = bitwise ? ReduceType::kB32 : ReduceType::kS32;
      break;
    case ElementType::kU64:
      *out = bitwise ? ReduceType::kB64 : ReduceType::kU64;
      break;
    case ElementType::kS64:
      *out = bitwise ? ReduceType::kB64 : ReduceType::kS64;
      break;
    case ElementType::kF16:
      *out = ReduceType::kF16;
      break;
    case ElementType::kBf16:
      *out = ReduceType::kBf16;
      break;
    case ElementType::kF32:
      *out = ReduceType::kF32;
      break;
    case ElementType::kF32Ftz:
      *out = ReduceType::kF32Ftz;
      break;
    case ElementType::kF64:
      *out = ReduceType::kF64;
      break;
    default:
      found = false;
  }
  if (found) found = reduce_legal(op, *out);
  if (!found && why) *why = words("{} elements have no such reduction", name(type));
  return found;
}

bool reduce_legal(ReduceOp op, ReduceType type) {
  switch (op) {
    case ReduceOp::kAdd:
      return type != ReduceType::kB32 && type != ReduceType::kB64 && type != ReduceType::kS64;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return type == ReduceType::kU32 || type == ReduceType::kS32 || type == ReduceType::kU64 ||
             type == ReduceType::kS64 || type == ReduceType::kF16 || type == ReduceType::kBf16;
    case ReduceOp::kInc:
    case ReduceOp::kDec:
      return type == ReduceType::kU32;
    default:
      return type == ReduceType::kB32 || type == ReduceType::kB64;
  }
}

int reduce_bytes(ReduceType type) {
  switch (type) {
    case ReduceType::kF16:
    case ReduceType::kBf16:
      return 2;
    case ReduceType::kU64:
    case ReduceType::kS64:
    case ReduceType::kB64:
    case ReduceType::kF64:
      return 8;
    default:
      return 4;
  }
}

void reduce_element(ReduceOp op, ReduceType type, void* destination, const void* source) {
  switch (type) {
    case ReduceType::kU32:
    case ReduceType::kB32:
      return integer<uint32_t>(op, destination, source);
    case ReduceType::kS32:
      return integer<int32_t>(op, destination, source);
    case ReduceType::kU64:
    case ReduceType::kB64:
      return integer<uint64_t>(op, destination, source);
    case ReduceType::kS64:
      return integer<int64_t>(op, destination, source);
    case ReduceType::kF16:
      return half(op, Format::kF16, destination, source);
    case ReduceType::kBf16:
      return half(op, Format::kBf16, destination, source);
    case ReduceType::kF32:
    case ReduceType::kF32Ftz: {
      uint32_t old, value;
      std::memcpy(&old, destination, 4);
      std::memcpy(&value, source, 4);
      old = numerics::add_f32(old, value, {.ftz = type == ReduceType::kF32Ftz});
      std::memcpy(destination, &old, 4);
      return;
    }
    case ReduceType::kF64: {
      double old, value;
      std::memcpy(&old, destination, 8);
      std::memcpy(&value, source, 8);
      old += value;
      std::memcpy(destination, &old, 8);
      return;
    }
  }
}

}  // namespace sm100sim::tma
