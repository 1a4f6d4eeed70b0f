"""xla_ffi/sm100/driver.h declares driver types itself: a compiler compares them with cuda.h."""

from __future__ import annotations

import pathlib
import subprocess

from sm100sim import nvcc

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "xla_ffi"
SAME_SIZE = {
    "LaunchConfig": "CUlaunchConfig",
    "LaunchAttribute": "CUlaunchAttribute",
    "TensorMap": "CUtensorMap",
}
SAME_OFFSET = [
    ("LaunchConfig", "shared_bytes", "CUlaunchConfig", "sharedMemBytes"),
    ("LaunchConfig", "stream", "CUlaunchConfig", "hStream"),
    ("LaunchConfig", "attributes", "CUlaunchConfig", "attrs"),
    ("LaunchConfig", "attribute_count", "CUlaunchConfig", "numAttrs"),
    ("LaunchAttribute", "value", "CUlaunchAttribute", "value"),
]
SAME_VALUE = {
    "kInvalidValue": "CUDA_ERROR_INVALID_VALUE",
    "kOutOfMemory": "CUDA_ERROR_OUT_OF_MEMORY",
    "kInvalidContext": "CUDA_ERROR_INVALID_CONTEXT",
    "kInvalidPtx": "CUDA_ERROR_INVALID_PTX",
    "kNotFound": "CUDA_ERROR_NOT_FOUND",
    "kNotReady": "CUDA_ERROR_NOT_READY",
    "kInvalidHandle": "CUDA_ERROR_INVALID_HANDLE",
    "kLaunchOutOfResources": "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "kPeerAccessAlreadyEnabled": "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
    "kLaunchFailed": "CUDA_ERROR_LAUNCH_FAILED",
    "kCooperativeLaunchTooLarge": "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
    "kNotSupported": "CUDA_ERROR_NOT_SUPPORTED",
    "kInvalidClusterSize": "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    "kMultiprocessorCount": "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
    "kComputeCapabilityMajor": "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
    "kMaxSharedPerBlockOptin": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "kMaxSharedPerMultiprocessor": "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "kMaxRegistersPerMultiprocessor": "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR",
    "kMaxThreadsPerMultiprocessor": "CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR",
    "kMaxBlocksPerMultiprocessor": "CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR",
    "kReservedSharedPerBlock": "CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK",
    "kCooperativeLaunch": "CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH",
    "kUnifiedAddressing": "CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING",
    "kClusterLaunch": "CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH",
    "kFuncMaxDynamicShared": "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
    "kFuncNonPortableClusterSize": "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED",
    "kFuncNumRegs": "CU_FUNC_ATTRIBUTE_NUM_REGS",
    "kFuncLocalBytes": "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES",
    "kAttrCooperative": "CU_LAUNCH_ATTRIBUTE_COOPERATIVE",
    "kAttrClusterDimension": "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION",
    "kAttrClusterSchedulingPolicy": "CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE",
    "kAttrProgrammaticStreamSerialization": "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    "kAttrPriority": "CU_LAUNCH_ATTRIBUTE_PRIORITY",
}


def test_types_and_values_are_those_of_cuda_h(tmp_path: pathlib.Path) -> None:
    lines = ["#include <cuda.h>", "#include <cstddef>", '#include "sm100/driver.h"']
    lines.append("namespace m = jax_megamoe::cuda;")
    lines += [
        f"static_assert(sizeof(m::{ours}) == sizeof({theirs}) && alignof(m::{ours}) >= "
        f'alignof({theirs}), "{ours}");'
        for ours, theirs in SAME_SIZE.items()
    ]
    lines += [
        f'static_assert(offsetof(m::{a}, {b}) == offsetof({c}, {d}), "{b}");'
        for a, b, c, d in SAME_OFFSET
    ]
    lines += [
        f'static_assert(int(m::{ours}) == int({theirs}), "{ours}");'
        for ours, theirs in SAME_VALUE.items()
    ]
    source = tmp_path / "compare.cc"
    source.write_text("\n".join(lines))
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{FOLDER}"]
    command += [f"-I{nvcc.cuda_home() / 'include'}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
