// What a tensor map says, and the checks of cuTensorMapEncodeTiled (CUDA driver API 13.0, "Tensor
// Map Object Management"). The 128 bytes are our own: the driver's encoding is not published, so a
// map is made here and read here. How a box turns into byte moves is box.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace sm100sim::tma {

inline constexpr int kMaxRank = 5;

// Values are the driver's enumerators.
enum class ElementType : uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBf16,
  kF32Ftz,
  kTf32,
  kTf32Ftz,
  k16U4Align8,
  k16U4Align16,
  k16U6Align16
};
enum class Interleave : uint8_t { kNone, k16B, k32B };
enum class Swizzle : uint8_t {
  kNone,
  k32B,
  k64B,
  k128B,
  k128BAtom32B,
  k128BAtom32BFlip8B,
  k128BAtom64B
};
enum class Fill : uint8_t { kZero, kNan };

struct TensorMap {
  ElementType type = ElementType::kU8;
  int rank = 1;
  uint64_t address = 0;
  std::array<uint64_t, kMaxRank> dim{};     // elements
  std::array<uint64_t, kMaxRank> stride{};  // bytes; stride[0] is unused: dimension 0 is contiguous
  std::array<uint32_t, kMaxRank> box{};
  std::array<uint32_t, kMaxRank> element_stride{};
  Interleave interleave = Interleave::kNone;
  Swizzle swizzle = Swizzle::kNone;
  uint8_t l2_promotion = 0;
  Fill fill = Fill::kZero;
};

// The arguments as the driver gets them (enumerators as plain integers, so that illegal values can
// be judged).
struct EncodeArguments {
  uint32_t type, rank;
  uint64_t address;
  const uint64_t* dim;
  const uint64_t* stride;  // rank - 1 values
  const uint32_t* box;
  const uint32_t* element_stride;
  uint32_t interleave, swizzle, l2_promotion, fill;
};

struct EncodeResult {
  int code;         // CUresult: 0, or 1 = CUDA_ERROR_INVALID_VALUE
  std::string why;  // argument, found, accepted; empty when the code is 0
};

// Writes 128 bytes at `object`, which must be 64-byte aligned.
EncodeResult encode_tiled(void* object, const EncodeArguments& arguments);

// Reads them back; nothing when the bytes are no map, or one that a kernel changed against the
// rules of encode_tiled (the string says what is wrong).
std::optional<TensorMap> decode(const void* object, std::string* why);

// tensormap.replace.tile: rewrites one field of a map in place. Values are PTX's: byte strides,
// element counts, the rank minus one, and the codes of "tensormap.replace" Table "new_val". False
// and words when the bytes are no map or the value has no meaning; the driver's rules are judged by
// decode().
enum class MapField : uint8_t {
  kGlobalAddress,
  kRank,
  kBoxDim,
  kGlobalDim,
  kGlobalStride,
  kElementStride,
  kElementType,
  kInterleave,
  kSwizzleMode,
  kSwizzleAtomicity,
  kFillMode,
};
bool replace_field(void* object, MapField field, int ordinal, uint64_t value, std::string* why);

// Bits of one element in global memory, and in shared memory (they differ for the padded types: 4
// -> 8, 6 -> 8).
int global_bits(ElementType type);
int shared_bits(ElementType type);
const char* name(ElementType type);

// Address bits that a swizzle XORs, and the span of bytes it permutes.
uint32_t swizzle_address(Swizzle swizzle, uint32_t address);
int swizzle_span(Swizzle swizzle);                // 0 for none
uint32_t swizzle_pattern_bytes(Swizzle swizzle);  // after which the pattern repeats

}  // namespace sm100sim::tma
