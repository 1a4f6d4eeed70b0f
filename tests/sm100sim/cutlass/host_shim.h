// Lets g++ alone compile the host code of CUTLASS's headers (which make the kernel's parameters):
// names that only nvcc knows and that uncalled device functions mention are declared, never
// defined. One pass of g++ takes a fifth of nvcc's four (host, host again, device for two targets).
#pragma once

// Without a CUDA version this header is empty; with one it wants nvcc's warp matrices.
#include "cutlass/arch/wmma.h"
// Which CUDA this is: CUTLASS picks the type of its tensor maps by it.
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <device_launch_parameters.h>

void __syncthreads();
int __syncthreads_and(int);
void __syncwarp(unsigned = 0xffffffffu);
void __threadfence();
unsigned __byte_perm(unsigned, unsigned, unsigned);
int __dp4a(int, int, int);
int __ffs(int);
int __clz(int);
int __popc(unsigned);
__half2 __hfma2(__half2, __half2, __half2);
template <class T>
T __shfl_sync(unsigned, T, int, int = 32);
template <class T>
T __shfl_up_sync(unsigned, T, unsigned, int = 32);
template <class T>
T __shfl_down_sync(unsigned, T, unsigned, int = 32);
template <class T>
T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T>
T atomicAdd(T*, T);
template <class T>
T atomicCAS(T*, T, T);
namespace cutlass::arch {
int LaneId();
int SmId();
}  // namespace cutlass::arch
