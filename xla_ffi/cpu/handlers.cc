// Binding of the two FFI targets: decode the frame, check, run on XLA's thread pool.
//
// Nothing may escape but an ffi::Error: no exception crosses XLA's C interface, and lack of memory
// is an error like any other.
#include "handlers.h"

#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "checks.h"
#include "moe.h"
#include "paths.h"
#include "scratch.h"
#include "xla/ffi/api/ffi.h"

namespace megamoe::cpu {
namespace {

namespace ffi = xla::ffi;

class XlaExecutor final : public Executor {
 public:
  explicit XlaExecutor(ffi::ThreadPool& pool) : pool_(pool), threads_(pool.num_threads()) {}
  int64_t threads() const override { return threads_; }
  void schedule(std::function<void()> task) override { pool_.Schedule(std::move(task)); }

 private:
  ffi::ThreadPool& pool_;
  const int64_t threads_;
};

ffi::Error execute(const Problem& problem, ffi::ThreadPool& pool) {
  const PathChoice& choice = chosen_path();
  if (choice.path == nullptr) return ffi::Error::InvalidArgument(choice.error);
  if (problem.tokens == 0) return ffi::Error::Success();
  XlaExecutor executor(pool);
  std::unique_ptr<Scratch> scratch = take_scratch();
  run(problem, *choice.path, executor, *scratch);
  give_scratch(std::move(scratch));
  return ffi::Error::Success();
}

template <class F>
ffi::Error guarded(const char* target, const F& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      std::string(target) +
                          ": out of host memory for the activations; call it with fewer tokens");
  } catch (const std::exception& e) {
    return ffi::Error::Internal(std::string(target) + ": " + e.what());
  }
}

ffi::Error moe(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer topk_idx,
               ffi::AnyBuffer topk_weights, ffi::AnyBuffer gate_up, ffi::AnyBuffer gate_up_scale,
               ffi::AnyBuffer down, ffi::AnyBuffer down_scale, ffi::AnyBuffer gate_up_bias,
               ffi::AnyBuffer down_bias, ffi::Result<ffi::AnyBuffer> y, float limit, float alpha,
               float beta, int32_t layout_version) {
  constexpr char kTarget[] = "jax_megamoe.cpu.moe";
  return guarded(kTarget, [&]() -> ffi::Error {
    Checker check(kTarget);
    Problem p{};
    check.buffer("x", x, ffi::BF16, {Checker::kAny, Checker::kAny}, "[T, H]",
                 "reshape the tokens to two dimensions and cast them to bfloat16");
    if (!check.ok()) return check.error();
    p.tokens = x.dimensions()[0];
    p.hidden = x.dimensions()[1];
    check_routing_and_weights(check, p, "x", topk_idx, topk_weights,
                              {gate_up, gate_up_scale, down, down_scale, gate_up_bias, down_bias});
    check_attributes(check, p, limit, alpha, beta, layout_version);
    check.buffer("result y", *y, ffi::BF16, {p.tokens, p.hidden}, "[T, H]",
                 "declare the result like x");
    if (!check.ok()) return check.error();
    p.x = static_cast<const uint16_t*>(x.untyped_data());
    p.y = static_cast<uint16_t*>(y->untyped_data());
    return execute(p, pool);
  });
}

ffi::Error rows(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer scale,
                ffi::AnyBuffer topk_idx, ffi::AnyBuffer topk_weights, ffi::AnyBuffer gate_up,
                ffi::AnyBuffer gate_up_scale, ffi::AnyBuffer down, ffi::AnyBuffer down_scale,
                ffi::AnyBuffer gate_up_bias, ffi::AnyBuffer down_bias,
                ffi::Result<ffi::AnyBuffer> rows, float limit, float alpha, float beta,
                int32_t layout_version) {
  constexpr char kTarget[] = "jax_megamoe.cpu.rows";
  return guarded(kTarget, [&]() -> ffi::Error {
    Checker check(kTarget);
    Problem p{};
    check.buffer("q", q, ffi::F8E4M3FN, {Checker::kAny, Checker::kAny}, "[T, H]",
                 "quantise the tokens with quantize_fp8");
    if (!check.ok()) return check.error();
    p.tokens = q.dimensions()[0];
    p.hidden = q.dimensions()[1];
    check.buffer("scale", scale, ffi::U8, {p.tokens, p.hidden / 32}, "[T, H/32]",
                 "pass the bits of quantize_fp8's scales (a view, not a cast)");
    check_routing_and_weights(check, p, "q", topk_idx, topk_weights,
                              {gate_up, gate_up_scale, down, down_scale, gate_up_bias, down_bias});
    check_attributes(check, p, limit, alpha, beta, layout_version);
    check.buffer("result rows", *rows, ffi::BF16, {p.tokens, p.topk, p.hidden}, "[T, K, H]",
                 "declare one bfloat16 row for each slot");
    if (!check.ok()) return check.error();
    p.q = static_cast<const uint8_t*>(q.untyped_data());
    p.q_scale = static_cast<const uint8_t*>(scale.untyped_data());
    p.rows = static_cast<uint16_t*>(rows->untyped_data());
    return execute(p, pool);
  });
}

// What both targets take after the tokens: routing, weights, biases.
template <class Binding>
auto bind_rest(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Attr<float>("swiglu_limit")
      .template Attr<float>("swiglu_alpha")
      .template Attr<float>("swiglu_beta")
      .template Attr<int32_t>("layout_version");
}

ffi::Error empty(ffi::RemainingArgs, ffi::RemainingRets) { return ffi::Error::Success(); }

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_megamoe_cpu_moe, moe,
    bind_rest(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_megamoe_cpu_rows, rows,
    bind_rest(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_megamoe_cpu_empty, empty,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets());

}  // namespace megamoe::cpu
