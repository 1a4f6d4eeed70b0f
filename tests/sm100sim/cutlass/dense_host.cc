// CUTLASS's host code for the variants with one problem: makes the kernel's parameters.
#include "host.h"

// numbers: m, n, k, sm_count, max_active_clusters. p: A, B, C, D, SFA, SFB. 1: CUTLASS refuses the
// problem; 2: it wants a workspace; 3: the parameters are too large.
extern "C" int make_params(Encode encode, const int* numbers, void* const* p, float beta,
                           char* params, int capacity, unsigned* shape) {
  g_encode = encode;
  const int m = numbers[0], n = numbers[1], k = numbers[2];
  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {m, n, k, 1};
  arguments.mainloop.ptr_A = reinterpret_cast<decltype(arguments.mainloop.ptr_A)>(p[0]);
  arguments.mainloop.ptr_B = reinterpret_cast<decltype(arguments.mainloop.ptr_B)>(p[1]);
  arguments.mainloop.dA = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1});
  arguments.mainloop.dB = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1});
#if VARIANT >= 3
  using Config = typename Kernel::CollectiveMainloop::Sm1xxBlkScaledConfig;
  arguments.mainloop.ptr_SFA = reinterpret_cast<decltype(arguments.mainloop.ptr_SFA)>(p[4]);
  arguments.mainloop.ptr_SFB = reinterpret_cast<decltype(arguments.mainloop.ptr_SFB)>(p[5]);
  arguments.mainloop.layout_SFA = Config::tile_atom_to_shape_SFA(make_shape(m, n, k, 1));
  arguments.mainloop.layout_SFB = Config::tile_atom_to_shape_SFB(make_shape(m, n, k, 1));
#endif
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = beta;
  arguments.epilogue.ptr_C = static_cast<float const*>(p[2]);
  arguments.epilogue.dC = cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, {m, n, 1});
  arguments.epilogue.ptr_D = static_cast<float*>(p[3]);
  arguments.epilogue.dD = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
  arguments.hw_info.sm_count = numbers[3];
  arguments.hw_info.max_active_clusters = numbers[4];
  if (!Kernel::can_implement(arguments)) return 1;
  if (Kernel::get_workspace_size(arguments) != 0) return 2;
  return deliver(Kernel::to_underlying_arguments(arguments, nullptr), params, capacity, shape);
}
