// The XLA FFI handlers of platform "cpu", by target name.
#pragma once

#include "xla/ffi/api/c_api.h"

namespace megamoe::cpu {

extern "C" XLA_FFI_Error* jax_megamoe_cpu_moe(XLA_FFI_CallFrame* call_frame);
extern "C" XLA_FFI_Error* jax_megamoe_cpu_rows(XLA_FFI_CallFrame* call_frame);
// Does nothing, whatever its operands: what benchmarks hold the others against.
extern "C" XLA_FFI_Error* jax_megamoe_cpu_empty(XLA_FFI_CallFrame* call_frame);

}  // namespace megamoe::cpu
