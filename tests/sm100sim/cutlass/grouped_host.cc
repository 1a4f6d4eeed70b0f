// CUTLASS's host code for the grouped variant: makes the kernel's parameters and the tables of
// shapes, pointers, strides and scale layouts that the kernel reads from global memory.
#include "host.h"

constexpr int kGroups = 32;

struct Tables {
  typename ProblemShape::UnderlyingProblemShape shapes[kGroups];
  const void* a[kGroups];
  const void* b[kGroups];
  const void* sfa[kGroups];
  const void* sfb[kGroups];
  const void* c[kGroups];
  void* d[kGroups];
  typename Kernel::InternalStrideA stride_a[kGroups];
  typename Kernel::InternalStrideB stride_b[kGroups];
  typename Kernel::InternalStrideC stride_c[kGroups];
  typename Kernel::InternalStrideD stride_d[kGroups];
  typename Kernel::CollectiveMainloop::InternalLayoutSFA layout_sfa[kGroups];
  typename Kernel::CollectiveMainloop::InternalLayoutSFB layout_sfb[kGroups];
};

extern "C" int table_bytes() { return sizeof(Tables); }

// numbers: groups, sm_count, max_active_clusters. sizes: m, n, k of each group. p: A, B, C, D, SFA,
// SFB of each group. `device` is where the caller will put `table`, `workspace` holds
// workspace_bytes. Results as in dense_host.cc; 2: the workspace is too small.
extern "C" int make_params(Encode encode, const int* numbers, const int* sizes, void* const* p,
                           float beta, void* table, void* device, void* workspace,
                           size_t workspace_bytes, char* params, int capacity, unsigned* shape) {
  g_encode = encode;
  const int groups = numbers[0];
  if (groups > kGroups) return 1;
  using Config = typename Kernel::CollectiveMainloop::Sm1xxBlkScaledConfig;
  Tables* host = new (table) Tables();
  for (int g = 0; g < groups; ++g) {
    const int m = sizes[3 * g], n = sizes[3 * g + 1], k = sizes[3 * g + 2];
    void* const* q = p + 6 * g;
    host->shapes[g] = make_shape(m, n, k);
    host->a[g] = q[0], host->b[g] = q[1], host->c[g] = q[2], host->d[g] = q[3];
    host->sfa[g] = q[4], host->sfb[g] = q[5];
    host->stride_a[g] =
        cutlass::make_cute_packed_stride(typename Kernel::InternalStrideA{}, {m, k, 1});
    host->stride_b[g] =
        cutlass::make_cute_packed_stride(typename Kernel::InternalStrideB{}, {n, k, 1});
    host->stride_c[g] =
        cutlass::make_cute_packed_stride(typename Kernel::InternalStrideC{}, {m, n, 1});
    host->stride_d[g] =
        cutlass::make_cute_packed_stride(typename Kernel::InternalStrideD{}, {m, n, 1});
    host->layout_sfa[g] = Config::tile_atom_to_shape_SFA(make_shape(m, n, k, 1));
    host->layout_sfb[g] = Config::tile_atom_to_shape_SFB(make_shape(m, n, k, 1));
  }
  Tables* there = static_cast<Tables*>(device);
  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  arguments.problem_shape = {groups, there->shapes, host->shapes};
  auto& mainloop = arguments.mainloop;
  mainloop.ptr_A = reinterpret_cast<decltype(mainloop.ptr_A)>(there->a);
  mainloop.ptr_B = reinterpret_cast<decltype(mainloop.ptr_B)>(there->b);
  mainloop.ptr_SFA = reinterpret_cast<decltype(mainloop.ptr_SFA)>(there->sfa);
  mainloop.ptr_SFB = reinterpret_cast<decltype(mainloop.ptr_SFB)>(there->sfb);
  mainloop.dA = there->stride_a;
  mainloop.dB = there->stride_b;
  mainloop.layout_SFA = there->layout_sfa;
  mainloop.layout_SFB = there->layout_sfb;
  auto& epilogue = arguments.epilogue;
  epilogue.thread.alpha = 1.0f;
  epilogue.thread.beta = beta;
  epilogue.ptr_C = reinterpret_cast<decltype(epilogue.ptr_C)>(there->c);
  epilogue.ptr_D = reinterpret_cast<decltype(epilogue.ptr_D)>(there->d);
  epilogue.dC = there->stride_c;
  epilogue.dD = there->stride_d;
  arguments.hw_info.sm_count = numbers[1];
  arguments.hw_info.max_active_clusters = numbers[2];
  if (!Kernel::can_implement(arguments)) return 1;
  if (Kernel::get_workspace_size(arguments) > workspace_bytes) return 2;
  return deliver(Kernel::to_underlying_arguments(arguments, workspace), params, capacity, shape);
}
