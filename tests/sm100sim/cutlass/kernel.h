// One of CUTLASS's own SM100 GEMMs, made with its collective builders. Included by kernel.cu, which
// nvcc turns into PTX, and by the host programs, which g++ compiles: both must see the same types.
// VARIANT: 0 bf16 1-SM, 1 bf16 2-SM, 2 e4m3 2-SM, 3 mxf8 x mxf4 1-SM, 4 mxf8 x mxf4 2-SM,
// 5 mxf4 x mxf4 1-SM, 6 mxf8 x mxf4 2-SM grouped.
#pragma once

#include <cuda.h>

#ifndef __CUDACC__
#include "host_shim.h"
#endif
// The parts of collective_builder.hpp and gemm_universal.hpp that these kernels need: parsing all
// of them takes longer than compiling one.
#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "cutlass/detail/sm100_blockscaled_layout.hpp"
#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#if VARIANT <= 2
#include "cutlass/gemm/collective/builders/sm100_umma_builder.inl"
#include "cutlass/gemm/collective/sm100_mma_warpspecialized.hpp"
#elif VARIANT <= 5
#include "cutlass/gemm/collective/builders/sm100_blockscaled_umma_builder.inl"
#include "cutlass/gemm/collective/sm100_blockscaled_mma_warpspecialized.hpp"
#else
#include "cutlass/gemm/collective/builders/sm100_blockscaled_umma_builder.inl"
#include "cutlass/gemm/collective/sm100_blockscaled_mma_array_warpspecialized.hpp"
#endif
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/group_array_problem_shape.hpp"
#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#if VARIANT <= 5
#include "cutlass/gemm/kernel/sm100_gemm_tma_warpspecialized.hpp"
#else
#include "cutlass/gemm/kernel/sm100_gemm_array_tma_warpspecialized.hpp"
#endif
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
#elif VARIANT != 5
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

#if VARIANT == 1 || VARIANT == 2 || VARIANT == 4 || VARIANT == 6
using TileShape = Shape<_256, _128, Int<VARIANT == 1 ? 64 : 128>>;
using ClusterShape = Shape<_2, _1, _1>;
#else
using TileShape = Shape<_128, _128, Int<VARIANT == 0 ? 64 : VARIANT == 5 ? 256 : 128>>;
using ClusterShape = Shape<_1, _1, _1>;
#endif

#if VARIANT == 6
// Grouped: pointers to layouts, so that each group brings its own.
using Row = cutlass::layout::RowMajor*;
using Column = cutlass::layout::ColumnMajor*;
using ProblemShape = cutlass::gemm::GroupProblemShape<Shape<int, int, int>>;
using MainloopSchedule = cutlass::gemm::KernelPtrArrayTmaWarpSpecialized2SmMxf8f6f4Sm100;
using EpilogueSchedule = cutlass::epilogue::PtrArrayTmaWarpSpecialized2Sm;
#else
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using ProblemShape = Shape<int, int, int, int>;
using MainloopSchedule = cutlass::gemm::collective::KernelScheduleAuto;
using EpilogueSchedule = cutlass::epilogue::collective::EpilogueScheduleAuto;
#endif

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100, Class, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, Row, 4, float, Row, 4,
    EpilogueSchedule>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100, Class, ElementA, Row, kAlignA, ElementB, Column, kAlignB, float,
    TileShape, ClusterShape,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    MainloopSchedule>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<ProblemShape, Mainloop, Epilogue, void>;
