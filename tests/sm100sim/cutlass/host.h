// What both host programs need: cuTensorMapEncodeTiled, which CUTLASS calls directly, is the
// simulator's, and the launch's shape goes back to Python as plain numbers.
#pragma once

#include <cstring>

#include "kernel.h"

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
// CUTLASS's host code can reach these; with the arguments given here it does not.
extern "C" cudaError_t cudaGetLastError() { return cudaSuccess; }
extern "C" cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
extern "C" cudaError_t cudaGetDeviceCount(int*) { return cudaErrorNotSupported; }
extern "C" cudaError_t cudaGetDevice(int*) { return cudaErrorNotSupported; }
extern "C" cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) {
  return cudaErrorNotSupported;
}

/// Copies the parameters, and grid 3, block 3, cluster 3, shared bytes, parameter bytes.
inline int deliver(const typename Kernel::Params& made, char* params, int capacity,
                   unsigned* shape) {
  if (static_cast<int>(sizeof made) > capacity) return 3;
  std::memcpy(params, static_cast<const void*>(&made), sizeof made);
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
  std::memcpy(shape, out, sizeof out);
  return 0;
}
