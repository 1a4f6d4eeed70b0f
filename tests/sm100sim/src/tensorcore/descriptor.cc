// Decoding and judging descriptors. See descriptor.h.
#include "tensorcore/descriptor.h"

#include <tuple>

#include "numerics/words.h"

namespace sm100sim::tensorcore {
namespace {

using numerics::Format;

int field(uint64_t bits, int low, int width) {
  return static_cast<int>(bits >> low & ((uint64_t{1} << width) - 1));
}

void want_zero(uint64_t bits, int low, int width, const char* what, Errors* errors) {
  const int found = field(bits, low, width);
  if (found)
    errors->push_back(
        words("{}: bits {}-{} hold {:#x}; they must be 0", what, low, low + width - 1, found));
}

bool narrow_format(int code, Format* out) {
  switch (code) {
    case 0:
      *out = Format::kE4m3;
      return true;
    case 1:
      *out = Format::kE5m2;
      return true;
    case 3:
      *out = Format::kE2m3;
      return true;
    case 4:
      *out = Format::kE3m2;
      return true;
    case 5:
      *out = Format::kE2m1;
      return true;
    default:
      return false;
  }
}

bool half_format(int code, Format* out) {
  *out = code == 1 ? Format::kBf16 : Format::kF16;
  return code <= 1;
}

void element_types(uint32_t bits, const InstructionContext& context, InstructionDescriptor* out,
                   Errors* errors) {
  const int a = field(bits, 7, 3), b = field(bits, 10, 3);
  bool fine = true;
  switch (context.kind) {
    case Kind::kF16:
      fine = half_format(a, &out->a) && half_format(b, &out->b);
      break;
    case Kind::kTf32:
      fine = a == 2 && b == 2, out->a = out->b = Format::kTf32;
      break;
    case Kind::kF8f6f4:
    case Kind::kMxf8f6f4:
      fine = narrow_format(a, &out->a) && narrow_format(b, &out->b);
      break;
    case Kind::kI8:
      fine = a <= 1 && b <= 1, out->a_signed = a == 1, out->b_signed = b == 1;
      break;
    case Kind::kMxf4:
    case Kind::kMxf4nvf4:
      fine = a == 1 && b == 1, out->a = out->b = Format::kE2m1;
      break;
  }
  if (!fine)
    errors->push_back(
        words("idesc: element types a = {}, b = {} (bits 7-9, 10-12) do not exist in kind::{}", a,
              b, name(context.kind)));
}

void result_type(uint32_t bits, Kind kind, InstructionDescriptor* out, Errors* errors) {
  const int d = field(bits, 4, 2);
  bool fine = d == 1;
  if (kind == Kind::kF16)
    fine = d == 1 || (d == 0 && out->a == Format::kF16 && out->b == Format::kF16);
  if (kind == Kind::kF8f6f4) fine = d <= 1;
  if (kind == Kind::kI8) fine = d == 2;
  out->d = d == 0 ? Format::kF16 : Format::kF32;
  if (!fine)
    errors->push_back(
        words("idesc: result type {} (bits 4-5) does not go with these element types in kind::{}",
              d, name(kind)));
}

void scales(uint32_t bits, const InstructionContext& context, InstructionDescriptor* out,
            Errors* errors) {
  const Kind kind = context.kind;
  ScaleVector vector = context.scale_vector;
  const bool times =
      vector == ScaleVector::k1X || vector == ScaleVector::k2X || vector == ScaleVector::k4X;
  if (times && !context.arch_specific)
    errors->push_back(".scale_vec::NX needs target sm_100a or sm_103a; write .block32 or .block16");
  if (vector == ScaleVector::kDefault) {
    if (kind == Kind::kMxf4nvf4)
      errors->push_back(
          "kind::mxf4nvf4 needs .scale_vec::2X, .scale_vec::4X, .block32 or .block16");
    vector = kind == Kind::kMxf8f6f4 ? ScaleVector::k1X : ScaleVector::k2X;
  }
  if (vector == ScaleVector::kBlock32)
    vector = kind == Kind::kMxf8f6f4 ? ScaleVector::k1X : ScaleVector::k2X;
  if (vector == ScaleVector::kBlock16) vector = ScaleVector::k4X;
  const int count = vector == ScaleVector::k1X ? 1 : vector == ScaleVector::k2X ? 2 : 4;
  const bool legal = (kind == Kind::kMxf8f6f4 && count == 1) ||
                     (kind == Kind::kMxf4 && count == 2) || (kind == Kind::kMxf4nvf4 && count >= 2);
  if (!legal)
    errors->push_back(words("scale vector size {}X does not exist in kind::{}", count, name(kind)));
  out->scales_per_row = count;
  out->scale = field(bits, 23, 1) ? Format::kUe8m0 : Format::kUe4m3;
  if (out->scale == Format::kUe4m3 && !(kind == Kind::kMxf4nvf4 && count == 4))
    errors->push_back(
        words("idesc: scale type UE4M3 (bit 23 = 0) needs kind::mxf4nvf4 with .scale_vec::4X; "
              "kind::{} with {}X found",
              name(kind), count));
  out->scale_a_id = field(bits, 29, 2);
  out->scale_b_id = field(bits, 4, 2);
  for (int id : {out->scale_a_id, out->scale_b_id})
    if ((count == 2 && id % 2) || (count == 4 && id != 0))
      errors->push_back(words("idesc: scale factor id {} found; with {}X {} accepted", id, count,
                              count == 2 ? "0 and 2" : "0"));
}

void shape(const InstructionContext& context, InstructionDescriptor* out, Errors* errors) {
  const Kind kind = context.kind;
  const int m = out->m, n = out->n;
  bool m_fine, n_fine;
  if (context.weight_stationary) {
    m_fine = m == 32 || m == 64 || m == 128;
    n_fine = n == 64 || n == 128 || n == 256;
    if (context.cta_group != 1 || block_scaled(kind))
      errors->push_back(".ws exists for cta_group::1 and kinds without block scaling only");
  } else if (context.cta_group == 1) {
    m_fine = m == 128 || (m == 64 && !block_scaled(kind));
    n_fine = n >= 8 && n <= 256 && n % 8 == 0;
    if (kind == Kind::kI8) n_fine = n_fine && (n <= 32 || n % 16 == 0);
  } else {
    m_fine = m == 128 || m == 256;
    n_fine = n >= 16 && n <= 256 && n % 16 == 0;
    if (kind == Kind::kI8) n_fine = n_fine && n % 32 == 0;
  }
  const bool bytes = kind == Kind::kF8f6f4 || kind == Kind::kMxf8f6f4 || kind == Kind::kI8;
  const int step = context.cta_group == 1 ? 16 : 32;
  if (out->transpose_b && bytes && n % step)
    errors->push_back(
        words("idesc: N = {} found; a transposed 8-bit B needs a multiple of {}", n, step));
  if (!m_fine)
    errors->push_back(words("idesc: M = {} found, not a shape of kind::{} with cta_group::{}{}", m,
                            name(kind), context.cta_group,
                            context.weight_stationary ? " .ws" : ""));
  if (!n_fine)
    errors->push_back(words("idesc: N = {} found, not a shape of kind::{} with cta_group::{}{}", n,
                            name(kind), context.cta_group,
                            context.weight_stationary ? " .ws" : ""));
}

}  // namespace

MatrixDescriptor decode_matrix_descriptor(uint64_t bits, const char* what, Errors* errors) {
  MatrixDescriptor out;
  out.start = static_cast<uint32_t>(field(bits, 0, 14)) << 4;
  out.leading = static_cast<uint32_t>(field(bits, 16, 14)) << 4;
  out.stride = static_cast<uint32_t>(field(bits, 32, 14)) << 4;
  out.base_offset = static_cast<uint32_t>(field(bits, 49, 3));
  out.leading_absolute = field(bits, 52, 1);
  want_zero(bits, 14, 2, what, errors);
  want_zero(bits, 30, 2, what, errors);
  want_zero(bits, 53, 8, what, errors);
  if (const int version = field(bits, 46, 3); version != 1)
    errors->push_back(words("{}: bits 46-48 hold {}; 0b001 accepted on SM100", what, version));
  if (out.leading_absolute)
    errors->push_back(
        words("{}: absolute leading offset (bit 52) found; sm_103a only, not simulated", what));
  const int mode = field(bits, 61, 3);
  if (mode == 3 || mode == 5 || mode == 7)
    errors->push_back(
        words("{}: swizzle mode {} (bits 61-63) found; 0, 1, 2, 4, 6 accepted", what, mode));
  out.swizzle = static_cast<SwizzleMode>(mode);
  return out;
}

const char* name(Kind kind) {
  constexpr const char* kNames[] = {"f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"};
  return kNames[static_cast<int>(kind)];
}

bool block_scaled(Kind kind) { return kind >= Kind::kMxf8f6f4; }

int container_bits(Kind kind) {
  switch (kind) {
    case Kind::kF16:
      return 16;
    case Kind::kTf32:
      return 32;
    case Kind::kMxf4:
    case Kind::kMxf4nvf4:
      return 4;
    default:
      return 8;
  }
}

InstructionDescriptor decode_instruction_descriptor(uint32_t bits,
                                                    const InstructionContext& context,
                                                    Errors* errors) {
  InstructionDescriptor out;
  const Kind kind = context.kind;
  out.kind = kind;
  if (kind == Kind::kI8 && !context.arch_specific)
    errors->push_back("kind::i8 needs target sm_100a");
  if (field(bits, 2, 1))
    errors->push_back("idesc: sparse A (bit 2) found; sparse matrices are not simulated");
  want_zero(bits, 0, 2, "idesc", errors);
  want_zero(bits, 6, 1, "idesc", errors);
  element_types(bits, context, &out, errors);
  out.negate_a = field(bits, 13, 1);
  out.negate_b = field(bits, 14, 1);
  out.transpose_a = field(bits, 15, 1);
  out.transpose_b = field(bits, 16, 1);
  out.n = field(bits, 17, 6) * 8;
  out.m = field(bits, 24, 5) * 16;
  out.k = 256 / container_bits(kind);
  if (block_scaled(kind)) {
    want_zero(bits, 3, 1, "idesc", errors);
    want_zero(bits, 24, 3, "idesc", errors);
    if (field(bits, 31, 1))
      errors->push_back("idesc: K = 96 (bit 31) found; sm_103a only, not simulated");
    scales(bits, context, &out, errors);
  } else {
    result_type(bits, kind, &out, errors);
    out.saturate = field(bits, 3, 1);
    if (out.saturate && kind != Kind::kI8)
      errors->push_back("idesc: saturation (bit 3) found; kind::i8 only");
    want_zero(bits, 23, 1, "idesc", errors);
    want_zero(bits, 29, 1, "idesc", errors);
    if (!context.weight_stationary)
      want_zero(bits, 30, 2, "idesc", errors);
    else if (field(bits, 30, 2))
      errors->push_back("idesc: maximum shift of B (bits 30-31) found; not simulated");
    if (context.scale_vector != ScaleVector::kDefault)
      errors->push_back(
          words("scale vector size found; kind::{} has no scale factors", name(kind)));
  }
  if (kind == Kind::kI8 && (out.negate_a || out.negate_b))
    errors->push_back("idesc: negation found; kind::i8 has none");
  const bool fp4_kind = kind == Kind::kMxf4 || kind == Kind::kMxf4nvf4;
  for (const auto& [transposed, format, which] :
       {std::tuple{out.transpose_a, out.a, "A"}, std::tuple{out.transpose_b, out.b, "B"}})
    if (transposed && (fp4_kind || (kind != Kind::kI8 && numerics::info(format).bits < 8)))
      errors->push_back(
          words("idesc: transposed {} of type {} found; 4- and 6-bit types must be K-major", which,
                numerics::info(format).name));
  shape(context, &out, errors);
  return out;
}

}  // namespace sm100sim::tensorcore
