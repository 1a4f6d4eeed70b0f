// Instantiates one of CUTLASS's own SM100 GEMMs with the collective builders. Compiled twice: to
// PTX with DEVICE defined (the kernel), and to a host library without (CUTLASS's host code makes
// the parameters, calling cuTensorMapEncodeTiled, which is the simulator's). VARIANT: 0 bf16 1-SM,
// 1 bf16 2-SM, 2 e4m3 2-SM, 3 mxf8 x mxf4 1-SM, 4 mxf8 x mxf4 2-SM, 5 mxf4 x mxf4 1-SM.
#include <cuda.h>

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/kernel_hardware_info.hpp"
#include "cutlass/util/packed_stride.hpp"

using namespace cute;

#if VARIANT <= 1
using ElementA = cutlass::bfloat16_t;
using ElementB = cutlass::bfloat16_t;
using Class = cutlass::arch::OpClassTensorOp;
constexpr int kAlignA = 8, kAlignB = 8;
#elif VARIANT == 2
using ElementA = cutlass::float_e4m3_t;
using ElementB = cutlass::float_e4m3_t;
using Class = cutlass::arch::OpClassTensorOp;
constexpr int kAlignA = 16, kAlignB = 16;
#elif VARIANT <= 4
using ElementA = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
using ElementB = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
using Class = cutlass::arch::OpClassBlockScaledTensorOp;
constexpr int kAlignA = 16, kAlignB = 128;
#else
using ElementA = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
using ElementB = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
using Class = cutlass::arch::OpClassBlockScaledTensorOp;
constexpr int kAlignA = 32, kAlignB = 32;
#endif

#if VARIANT == 1 || VARIANT == 2 || VARIANT == 4
using TileShape = Shape<_256, _128, Int<VARIANT == 1 ? 64 : 128>>;
using ClusterShape = Shape<_2, _1, _1>;
#else
using TileShape = Shape<_128, _128, Int<VARIANT == 0 ? 64 : VARIANT == 5 ? 256 : 128>>;
using ClusterShape = Shape<_1, _1, _1>;
#endif

using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100, Class, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, Row, 4, float, Row, 4,
    cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100, Class, ElementA, Row, kAlignA, ElementB, Column, kAlignB, float,
    TileShape, ClusterShape,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;
using Kernel =
    cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue, void>;

#ifdef DEVICE
#include "cutlass/device_kernel.h"
template __global__ void cutlass::device_kernel<Kernel>(const __grid_constant__
                                                        typename Kernel::Params);
#else
using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);
static Encode g_encode;
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* m, CUtensorMapDataType t, cuuint32_t r,
                                           void* a, const cuuint64_t* d, const cuuint64_t* s,
                                           const cuuint32_t* b, const cuuint32_t* e,
                                           CUtensorMapInterleave i, CUtensorMapSwizzle w,
                                           CUtensorMapL2promotion l, CUtensorMapFloatOOBfill f) {
  return g_encode(m, t, r, a, d, s, b, e, i, w, l, f);
}

// numbers: m, n, k, sm_count, max_active_clusters. pointers: A, B, C, D, SFA, SFB. shape out: grid
// 3, block 3, cluster 3, shared bytes, params bytes.
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
  const typename Kernel::Params made = Kernel::to_underlying_arguments(arguments, nullptr);
  if (static_cast<int>(sizeof made) > capacity) return 3;
  memcpy(params, &made, sizeof made);
  const dim3 grid = Kernel::get_grid_shape(made), block = Kernel::get_block_shape();
  const unsigned out[11] = {grid.x,
                            grid.y,
                            grid.z,
                            block.x,
                            block.y,
                            block.z,
                            size<0>(ClusterShape{}),
                            size<1>(ClusterShape{}),
                            size<2>(ClusterShape{}),
                            static_cast<unsigned>(Kernel::SharedStorageSize),
                            sizeof made};
  memcpy(shape, out, sizeof out);
  return 0;
}
#endif
