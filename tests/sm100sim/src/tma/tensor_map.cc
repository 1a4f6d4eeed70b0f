// Encoding and the driver's argument checks. See tensor_map.h.
#include "tma/tensor_map.h"

#include <cstring>

#include "numerics/words.h"

namespace sm100sim::tma {
namespace {

constexpr int kInvalidValue = 1;  // CUDA_ERROR_INVALID_VALUE
constexpr uint32_t kMagic = 0x314D5353;

// The opaque 128 bytes. The sum guards against maps that a program made by hand or damaged.
struct Object {
  uint32_t magic;
  uint8_t type, rank, interleave, swizzle, l2_promotion, fill, unused[2];
  uint64_t address;
  uint64_t stride[4];
  uint32_t dim_minus_1[5];
  uint16_t box[5];
  uint8_t element_stride[5];
  uint8_t padding[35];
  uint16_t check;
};
static_assert(sizeof(Object) == 128);

constexpr const char* kNoMap =
    "the 128 bytes are not a tensor map made by cuTensorMapEncodeTiled (wrong address, or "
    "overwritten)";

uint16_t checksum(const Object& object) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&object);
  uint32_t sum = 0xACE1;
  for (size_t i = 0; i < offsetof(Object, check); ++i) sum = (sum * 31 + bytes[i]) & 0xFFFF;
  return static_cast<uint16_t>(sum);
}

bool padded(ElementType type) {
  return type == ElementType::k16U4Align16 || type == ElementType::k16U6Align16;
}

bool floating(ElementType type) {
  switch (type) {
    case ElementType::kF16:
    case ElementType::kF32:
    case ElementType::kF64:
    case ElementType::kBf16:
    case ElementType::kF32Ftz:
    case ElementType::kTf32:
    case ElementType::kTf32Ftz:
      return true;
    default:
      return false;
  }
}

// Empty when cuTensorMapEncodeTiled accepts the arguments.
std::string judge(const void* object, const EncodeArguments& a) {
  if (reinterpret_cast<uintptr_t>(object) % 64)
    return "tensorMap: address not a multiple of 64; align the CUtensorMap to 64 bytes";
  if (a.type > 15) return words("tensorDataType: {} found, 0..15 accepted", a.type);
  const auto type = static_cast<ElementType>(a.type);
  if (a.rank < 1 || a.rank > 5) return words("tensorRank: {} found, 1..5 accepted", a.rank);
  if (a.interleave > 2) return words("interleave: {} found, 0..2 accepted", a.interleave);
  if (a.swizzle > 6) return words("swizzle: {} found, 0..6 accepted", a.swizzle);
  if (a.l2_promotion > 3) return words("l2Promotion: {} found, 0..3 accepted", a.l2_promotion);
  if (a.fill > 1) return words("oobFill: {} found, 0..1 accepted", a.fill);
  const auto interleave = static_cast<Interleave>(a.interleave);
  const auto swizzle = static_cast<Swizzle>(a.swizzle);
  if (interleave != Interleave::kNone && a.rank < 3)
    return words("tensorRank: {} found; an interleaved tensor needs 3, 4 or 5", a.rank);
  if (!a.dim || !a.box || !a.element_stride || (a.rank > 1 && !a.stride))
    return "globalDim, globalStrides, boxDim, elementStrides: a null pointer found; give arrays of "
           "tensorRank values "
           "(globalStrides: tensorRank - 1)";
  const bool wide = padded(type) || interleave == Interleave::k32B;
  const uint64_t alignment = wide ? 32 : 16;
  if (a.address % alignment)
    return words("globalAddress: {:#x} found; a multiple of {} accepted for {}{}", a.address,
                 alignment, name(type),
                 interleave == Interleave::k32B ? " with 32-byte interleave" : "");
  for (uint32_t i = 0; i < a.rank; ++i)
    if (a.dim[i] == 0 || a.dim[i] > (uint64_t{1} << 32))
      return words("globalDim[{}]: {} found, 1..2^32 accepted", i, a.dim[i]);
  if (padded(type) && a.dim[0] % 128)
    return words("globalDim[0]: {} found; a multiple of 128 elements accepted for {}", a.dim[0],
                 name(type));
  if (type == ElementType::k16U4Align8 && a.dim[0] % 2)
    return words("globalDim[0]: {} found; a multiple of 2 elements accepted for {}", a.dim[0],
                 name(type));
  for (uint32_t i = 0; i + 1 < a.rank; ++i)
    if (a.stride[i] % alignment || a.stride[i] >= (uint64_t{1} << 40))
      return words("globalStrides[{}]: {} found; a multiple of {} below 2^40 accepted", i,
                   a.stride[i], alignment);
  for (uint32_t i = 0; i < a.rank; ++i)
    if (a.box[i] == 0 || a.box[i] > 256)
      return words("boxDim[{}]: {} found, 1..256 accepted", i, a.box[i]);
  const uint64_t inner_bytes = static_cast<uint64_t>(a.box[0]) * global_bits(type) / 8;
  if (padded(type) && a.box[0] != 128)
    return words("boxDim[0]: {} found; exactly 128 elements accepted for {}", a.box[0], name(type));
  if (interleave == Interleave::kNone && a.box[0] * static_cast<uint64_t>(global_bits(type)) % 128)
    return words("boxDim[0]: {} elements of {} found; a multiple of 16 bytes accepted", a.box[0],
                 name(type));
  for (uint32_t i = interleave == Interleave::kNone ? 1 : 0; i < a.rank; ++i)
    if (a.element_stride[i] == 0 || a.element_stride[i] > 8)
      return words("elementStrides[{}]: {} found, 1..8 accepted", i, a.element_stride[i]);
  if (interleave == Interleave::k32B && swizzle != Swizzle::k32B)
    return words("swizzle: {} found; only the 32-byte swizzle (1) accepted with 32-byte interleave",
                 a.swizzle);
  if (interleave == Interleave::kNone && swizzle != Swizzle::kNone &&
      inner_bytes > static_cast<uint64_t>(swizzle_span(swizzle)))
    return words("boxDim[0]: {} bytes found; at most {} accepted with swizzle {}; split the box",
                 inner_bytes, swizzle_span(swizzle), a.swizzle);
  if (type == ElementType::k16U6Align16 && interleave != Interleave::kNone)
    return "interleave: only none accepted for 16U6_ALIGN16B";
  if (type == ElementType::k16U4Align16 && swizzle != Swizzle::kNone && swizzle != Swizzle::k128B &&
      swizzle != Swizzle::k128BAtom32B)
    return words("swizzle: {} found; none, 128B and 128B_ATOM_32B accepted for 16U4_ALIGN16B",
                 a.swizzle);
  if (type == ElementType::k16U6Align16 && swizzle != Swizzle::kNone && swizzle != Swizzle::k128B &&
      swizzle != Swizzle::k128BAtom32B && swizzle != Swizzle::k128BAtom64B)
    return words(
        "swizzle: {} found; none, 128B, 128B_ATOM_32B and 128B_ATOM_64B accepted for 16U6_ALIGN16B",
        a.swizzle);
  if (a.fill == 1 && !floating(type))
    return words("oobFill: NaN found; accepted for floating-point types only, not {}", name(type));
  return {};
}

}  // namespace

EncodeResult encode_tiled(void* object, const EncodeArguments& a) {
  if (!object) return {kInvalidValue, "tensorMap: a null pointer found"};
  std::string why = judge(object, a);
  if (!why.empty()) return {kInvalidValue, why};
  Object out{};
  out.magic = kMagic;
  out.type = static_cast<uint8_t>(a.type);
  out.rank = static_cast<uint8_t>(a.rank);
  out.interleave = static_cast<uint8_t>(a.interleave);
  out.swizzle = static_cast<uint8_t>(a.swizzle);
  out.l2_promotion = static_cast<uint8_t>(a.l2_promotion);
  out.fill = static_cast<uint8_t>(a.fill);
  out.address = a.address;
  for (int i = 0; i < kMaxRank; ++i) out.box[i] = out.element_stride[i] = 1;  // unused dimensions
  for (uint32_t i = 0; i < a.rank; ++i) {
    if (i) out.stride[i - 1] = a.stride[i - 1];
    out.dim_minus_1[i] = static_cast<uint32_t>(a.dim[i] - 1);
    out.box[i] = static_cast<uint16_t>(a.box[i]);
    out.element_stride[i] =
        static_cast<uint8_t>(i == 0 && a.interleave == 0 ? 1 : a.element_stride[i]);
  }
  out.check = checksum(out);
  std::memcpy(object, &out, sizeof out);
  return {0, {}};
}

std::optional<TensorMap> decode(const void* bytes, std::string* why) {
  Object in;
  std::memcpy(&in, bytes, sizeof in);
  if (in.magic != kMagic || in.check != checksum(in)) {
    if (why) *why = kNoMap;
    return std::nullopt;
  }
  TensorMap map;
  map.type = static_cast<ElementType>(in.type);
  map.rank = in.rank;
  map.address = in.address;
  for (int i = 0; i < kMaxRank; ++i) {
    map.dim[i] = uint64_t{in.dim_minus_1[i]} + 1;
    map.stride[i] = i ? in.stride[i - 1] : 0;
    map.box[i] = in.box[i];
    map.element_stride[i] = in.element_stride[i];
  }
  map.interleave = static_cast<Interleave>(in.interleave);
  map.swizzle = static_cast<Swizzle>(in.swizzle);
  map.l2_promotion = in.l2_promotion;
  map.fill = static_cast<Fill>(in.fill);
  const std::string wrong = judge(
      nullptr, {in.type, in.rank, in.address, map.dim.data(), map.stride.data() + 1, map.box.data(),
                map.element_stride.data(), in.interleave, in.swizzle, in.l2_promotion, in.fill});
  if (!wrong.empty()) {
    if (why) *why = "tensor map changed by tensormap.replace: " + wrong;
    return std::nullopt;
  }
  return map;
}

bool replace_field(void* object, MapField field, int ordinal, uint64_t value, std::string* why) {
  Object map;
  std::memcpy(&map, object, sizeof map);
  std::string wrong;
  if (map.magic != kMagic || map.check != checksum(map)) wrong = kNoMap;
  const int ordinals = field == MapField::kGlobalStride ? kMaxRank - 1 : kMaxRank;
  if (ordinal < 0 || ordinal >= ordinals)
    wrong = words("ordinal: {} found, 0..{} accepted", ordinal, ordinals - 1);
  // PTX orders the element types differently from the driver: f32.ftz stands before f64.
  constexpr uint8_t kTypes[] = {0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15};
  const int mode = map.swizzle < 3 ? map.swizzle : 3;
  const int atom = map.swizzle <= 3 ? 0 : map.swizzle - 3;
  auto code = [&](uint64_t limit) {
    if (value >= limit) wrong = words("new_val: {} found, 0..{} accepted", value, limit - 1);
    return static_cast<uint8_t>(value);
  };
  auto swizzle_of = [&](uint64_t new_mode, uint64_t new_atom) {
    if (new_mode < 3 && new_atom)
      wrong = words("new_val: {} found; only the 128-byte swizzle has atomicities", value);
    return static_cast<uint8_t>(new_mode < 3 ? new_mode : 3 + new_atom);
  };
  switch (field) {
    case MapField::kGlobalAddress:
      map.address = value;
      break;
    case MapField::kRank:
      map.rank = static_cast<uint8_t>(code(kMaxRank) + 1);
      break;
    case MapField::kBoxDim:
      map.box[ordinal] = static_cast<uint16_t>(value > 0xFFFF ? 0xFFFF : value);
      break;
    case MapField::kGlobalDim:
      map.dim_minus_1[ordinal] = static_cast<uint32_t>(value - 1);
      break;
    case MapField::kGlobalStride:
      map.stride[ordinal] = value;
      break;
    case MapField::kElementStride:
      map.element_stride[ordinal] = static_cast<uint8_t>(value > 0xFF ? 0xFF : value);
      break;
    case MapField::kElementType:
      map.type = kTypes[code(16) & 15];
      break;
    case MapField::kInterleave:
      map.interleave = code(3);
      break;
    case MapField::kSwizzleMode:
      map.swizzle = swizzle_of(code(4), value < 3 ? 0 : atom);
      break;
    case MapField::kSwizzleAtomicity:
      map.swizzle = swizzle_of(mode, code(4));
      break;
    case MapField::kFillMode:
      map.fill = code(2);
      break;
  }
  if (!wrong.empty()) {
    if (why) *why = "tensormap.replace: " + wrong;
    return false;
  }
  map.check = checksum(map);
  std::memcpy(object, &map, sizeof map);
  return true;
}

int global_bits(ElementType type) {
  constexpr int kBits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
  return kBits[static_cast<int>(type)];
}

int shared_bits(ElementType type) { return padded(type) ? 8 : global_bits(type); }

const char* name(ElementType type) {
  constexpr const char* kNames[] = {
      "UINT8",        "UINT16",       "UINT32",        "INT32",        "UINT64",      "INT64",
      "FLOAT16",      "FLOAT32",      "FLOAT64",       "BFLOAT16",     "FLOAT32_FTZ", "TFLOAT32",
      "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"};
  return kNames[static_cast<int>(type)];
}

uint32_t swizzle_address(Swizzle swizzle, uint32_t address) {
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32B:
      return address ^ (address >> 3 & 0x10);
    case Swizzle::k64B:
      return address ^ (address >> 3 & 0x30);
    case Swizzle::k128B:
      return address ^ (address >> 3 & 0x70);
    case Swizzle::k128BAtom32B:
      return address ^ (address >> 2 & 0x60);
    case Swizzle::k128BAtom32BFlip8B:
      return address ^ (address >> 2 & 0x60) ^ (address >> 4 & 0x08);
    case Swizzle::k128BAtom64B:
      return address ^ (address >> 1 & 0x40);
  }
  return address;
}

int swizzle_span(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 0;
    case Swizzle::k32B:
      return 32;
    case Swizzle::k64B:
      return 64;
    default:
      return 128;
  }
}

uint32_t swizzle_pattern_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 256;
    case Swizzle::k64B:
      return 512;
    case Swizzle::k128B:
      return 1024;
    case Swizzle::k128BAtom32B:
    case Swizzle::k128BAtom32BFlip8B:
      return 512;
    case Swizzle::k128BAtom64B:
      return 256;
  }
  return 16;
}

}  // namespace sm100sim::tma
