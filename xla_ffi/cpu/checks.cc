// The messages and the order of the checks: first the tokens, then routing, weights, biases,
// attributes.
#include "checks.h"

#include <cmath>
#include <sstream>

#include "layout.h"

namespace megamoe::cpu {
namespace {

using xla::ffi::AnyBuffer;
using xla::ffi::DataType;

const char* type_name(DataType type) {
  switch (type) {
    case DataType::BF16:
      return "bfloat16";
    case DataType::F32:
      return "float32";
    case DataType::S32:
      return "int32";
    case DataType::S8:
      return "int8";
    case DataType::U8:
      return "uint8";
    case DataType::F8E4M3FN:
      return "float8_e4m3fn";
    case DataType::F16:
      return "float16";
    case DataType::F64:
      return "float64";
    case DataType::S64:
      return "int64";
    case DataType::F8E8M0FNU:
      return "float8_e8m0fnu";
    case DataType::F4E2M1FN:
      return "float4_e2m1fn";
    default:
      return nullptr;
  }
}

std::string describe_type(DataType type) {
  const char* name = type_name(type);
  return name != nullptr ? name : "XLA type number " + std::to_string(static_cast<int>(type));
}

template <class Dims>
std::string describe_shape(const Dims& dims) {
  std::ostringstream out;
  out << "[";
  const char* separator = "";
  for (const int64_t d : dims) {
    out << separator;
    if (d == Checker::kAny) {
      out << "any";
    } else {
      out << d;
    }
    separator = ", ";
  }
  out << "]";
  return out.str();
}

constexpr char kPrepare[] = "pass the arrays that prepare_weights(weights, \"cpu\") returns";
constexpr char kRouting[] = "give every token the same number K of expert ids and of weights";

template <class T>
const T* pointer(const AnyBuffer& buffer) {
  return static_cast<const T*>(buffer.untyped_data());
}

// A bias is [E, width], or [E, 0] for none.
const float* check_bias(Checker& check, const char* name, const AnyBuffer& bias, int64_t experts,
                        int64_t width, const char* letters) {
  const auto dims = bias.dimensions();
  const bool none = dims.size() == 2 && dims[1] == 0;
  check.buffer(name, bias, DataType::F32, {experts, none ? 0 : width}, letters,
               "cast it to float32, and pass shape [E, 0] where there is no bias");
  return none || !check.ok() ? nullptr : pointer<float>(bias);
}

}  // namespace

void Checker::require(bool ok, const std::string& message) {
  if (!ok && error_.empty()) error_ = std::string(target_) + ": " + message;
}

void Checker::buffer(const char* name, const AnyBuffer& buffer, DataType type,
                     std::initializer_list<int64_t> dims, const char* letters,
                     const char* way_out) {
  if (!ok()) return;
  const auto found = buffer.dimensions();
  bool same = found.size() == dims.size();
  size_t i = 0;
  for (const int64_t d : dims) {
    if (same && d != kAny) same = found[i] == d;
    ++i;
  }
  if (same && buffer.element_type() == type) return;
  require(false, std::string("argument ") + name + ": found " +
                     describe_type(buffer.element_type()) + describe_shape(found) +
                     ", accepted is " + describe_type(type) + describe_shape(dims) + " (" +
                     letters + "); " + way_out);
}

void check_routing_and_weights(Checker& check, Problem& p, const char* tokens_name,
                               const AnyBuffer& topk_idx, const AnyBuffer& topk_weights,
                               const WeightBuffers& w) {
  constexpr int64_t kAny = Checker::kAny;
  check.require(p.hidden > 0 && p.hidden % kGroup == 0,
                "argument " + std::string(tokens_name) + ": found H = " + std::to_string(p.hidden) +
                    ", accepted are positive multiples of 32; pad the hidden dimension with zeros");

  check.buffer("topk_idx", topk_idx, DataType::S32, {p.tokens, kAny}, "[T, K]", kRouting);
  if (!check.ok()) return;
  p.topk = topk_idx.dimensions()[1];
  check.require(p.topk >= 1 && p.topk <= kMaxTopK,
                "argument topk_idx: found K = " + std::to_string(p.topk) +
                    ", accepted are 1 to 32 experts per token; split the slots over several calls");
  check.buffer("topk_weights", topk_weights, DataType::F32, {p.tokens, p.topk}, "[T, K]", kRouting);

  const int64_t hidden_panels = p.hidden / kPanelRows, hidden_groups = p.hidden / kGroup;
  check.buffer("gate_up_proj", w.gate_up, DataType::S8, {kAny, kAny, hidden_groups, kCodeBytes},
               "[E, 2I/16, H/32, 256]", kPrepare);
  if (!check.ok()) return;
  p.experts = w.gate_up.dimensions()[0];
  const int64_t panels = w.gate_up.dimensions()[1];
  p.intermediate = panels * kPanelRows / 2;
  check.require(p.experts > 0 && p.experts <= INT32_MAX,
                "argument gate_up_proj: found E = " + std::to_string(p.experts) +
                    " experts, accepted is at least 1; pass the local experts' weights");
  check.require(
      panels > 0 && panels % 4 == 0,
      "argument gate_up_proj: found " + std::to_string(panels) +
          " panels of 16 rows, so I = " + std::to_string(p.intermediate) +
          "; accepted are positive multiples of 32; pad the intermediate dimension with zeros");
  const int64_t inter_groups = p.intermediate / kGroup;
  check.buffer("gate_up_proj_scale_inv", w.gate_up_scale, DataType::U8,
               {p.experts, panels, hidden_groups, kScaleBytes}, "[E, 2I/16, H/32, 16]", kPrepare);
  check.buffer("down_proj", w.down, DataType::S8,
               {p.experts, hidden_panels, inter_groups, kCodeBytes}, "[E, H/16, I/32, 256]",
               kPrepare);
  check.buffer("down_proj_scale_inv", w.down_scale, DataType::U8,
               {p.experts, hidden_panels, inter_groups, kScaleBytes}, "[E, H/16, I/32, 16]",
               kPrepare);
  p.gate_up_bias = check_bias(check, "gate_up_proj_bias", w.gate_up_bias, p.experts,
                              2 * p.intermediate, "[E, 2I] or [E, 0]");
  p.down_bias =
      check_bias(check, "down_proj_bias", w.down_bias, p.experts, p.hidden, "[E, H] or [E, 0]");
  if (!check.ok()) return;

  p.topk_idx = pointer<int32_t>(topk_idx);
  p.topk_weights = pointer<float>(topk_weights);
  p.gate_up = pointer<uint8_t>(w.gate_up);
  p.gate_up_scale = pointer<uint8_t>(w.gate_up_scale);
  p.down = pointer<uint8_t>(w.down);
  p.down_scale = pointer<uint8_t>(w.down_scale);
}

void check_attributes(Checker& check, Problem& p, float limit, float alpha, float beta,
                      int32_t layout_version) {
  check.require(
      layout_version == kLayoutVersion,
      "attribute layout_version: found " + std::to_string(layout_version) + ", accepted is " +
          std::to_string(kLayoutVersion) +
          "; convert the weights with unprepare_weights of the version that made them, then "
          "prepare_weights(weights, \"cpu\")");
  check.require(limit >= 0.0f, "attribute swiglu_limit: found " + std::to_string(limit) +
                                   ", accepted are numbers from 0 up; use inf for no limit");
  check.require(std::isfinite(alpha), "attribute swiglu_alpha: found " + std::to_string(alpha) +
                                          ", accepted are finite numbers; 1.0 is plain SwiGLU");
  check.require(std::isfinite(beta), "attribute swiglu_beta: found " + std::to_string(beta) +
                                         ", accepted are finite numbers; 0.0 is plain SwiGLU");
  p.activation = {limit, alpha, beta};
}

}  // namespace megamoe::cpu
