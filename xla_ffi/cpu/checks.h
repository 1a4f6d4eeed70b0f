// Checks of the buffers and attributes of a call: type, rank, shape, layout version.
//
// Python checks the same at trace time with better words; these stand between a hand-written
// ffi_call and a wild pointer. A message names the argument, what was found, what is accepted and a
// way out.
#pragma once

#include <stdint.h>

#include <initializer_list>
#include <string>

#include "moe.h"
#include "xla/ffi/api/ffi.h"

namespace megamoe::cpu {

class Checker {
 public:
  explicit Checker(const char* target) : target_(target) {}

  // A dimension that is already known, or `kAny`.
  static constexpr int64_t kAny = -1;
  // `letters` describes the dimensions, as in "[T, H]".
  void buffer(const char* name, const xla::ffi::AnyBuffer& buffer, xla::ffi::DataType type,
              std::initializer_list<int64_t> dims, const char* letters, const char* way_out);
  void require(bool ok, const std::string& message);

  bool ok() const { return error_.empty(); }
  xla::ffi::Error error() const { return xla::ffi::Error::InvalidArgument(error_); }

 private:
  const char* target_;
  std::string error_;  // the first failure
};

struct WeightBuffers {
  xla::ffi::AnyBuffer gate_up, gate_up_scale, down, down_scale, gate_up_bias, down_bias;
};

// Fills in the sizes and pointers that both targets share; tokens and hidden are known, from the
// operand named `tokens_name`.
void check_routing_and_weights(Checker& check, Problem& problem, const char* tokens_name,
                               const xla::ffi::AnyBuffer& topk_idx,
                               const xla::ffi::AnyBuffer& topk_weights,
                               const WeightBuffers& weights);
void check_attributes(Checker& check, Problem& problem, float limit, float alpha, float beta,
                      int32_t layout_version);

}  // namespace megamoe::cpu
