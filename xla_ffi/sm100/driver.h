// The subset of the CUDA driver API that this project uses, as a table of function pointers with
// the driver's own signatures and result codes. Nothing links against libcuda: the table is filled
// from it at run time, or by the simulator of tests/sm100sim. Types are declared here,
// ABI-compatible with cuda.h 12.9 and later (a test of the simulator compares them), so that
// neither side needs the CUDA headers to compile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jax_megamoe::cuda {

using Result = int;  // CUresult
using Device = int;
using DevicePtr = unsigned long long;
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using Graph = struct CUgraph_st*;
using GraphExec = struct CUgraphExec_st*;

inline constexpr Result kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
                        kInvalidContext = 201, kInvalidImage = 200, kInvalidPtx = 218,
                        kPeerAccessAlreadyEnabled = 704, kNotFound = 500, kNotReady = 600,
                        kInvalidHandle = 400, kLaunchOutOfResources = 701, kLaunchFailed = 719,
                        kCooperativeLaunchTooLarge = 720, kNotSupported = 801,
                        kInvalidClusterSize = 912;

// CUdevice_attribute
enum DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxSharedPerBlock = 8,
  kWarpSize = 10,
  kMultiprocessorCount = 16,
  kMaxThreadsPerMultiprocessor = 39,
  kUnifiedAddressing = 41,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedPerMultiprocessor = 81,
  kMaxRegistersPerMultiprocessor = 82,
  kCooperativeLaunch = 95,
  kMaxSharedPerBlockOptin = 97,
  kMaxBlocksPerMultiprocessor = 106,
  kReservedSharedPerBlock = 111,
  kClusterLaunch = 120,
};

// CUfunction_attribute
enum FunctionAttribute : int {
  kFuncMaxThreadsPerBlock = 0,
  kFuncSharedBytes = 1,
  kFuncLocalBytes = 3,
  kFuncNumRegs = 4,
  kFuncMaxDynamicShared = 8,
  kFuncNonPortableClusterSize = 14,
};

// CUlaunchAttributeID
enum LaunchAttributeId : int {
  kAttrIgnore = 0,
  kAttrCooperative = 2,
  kAttrClusterDimension = 4,
  kAttrClusterSchedulingPolicy = 5,
  kAttrProgrammaticStreamSerialization = 6,
  kAttrPriority = 8,
};

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  char pad[4];
  union {
    alignas(8) char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int cooperative;
    int programmatic;
    int priority;
  } value;
};

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct alignas(128) TensorMap {  // CUtensorMap; cuda.h 13 aligns to 128, the hardware asks for 64
  uint64_t opaque[16];
};

struct Driver {
  Result (*init)(unsigned flags);
  Result (*driver_get_version)(int* version);
  Result (*get_error_name)(Result error, const char** text);
  Result (*get_error_string)(Result error, const char** text);
  Result (*device_get_count)(int* count);
  Result (*device_get)(Device* device, int ordinal);
  Result (*device_get_attribute)(int* value, int attribute, Device device);
  Result (*device_can_access_peer)(int* can, Device device, Device peer);
  Result (*device_primary_ctx_retain)(Context* context, Device device);
  Result (*device_primary_ctx_release)(Device device);
  Result (*ctx_set_current)(Context context);
  Result (*ctx_get_current)(Context* context);
  Result (*ctx_get_device)(Device* device);
  Result (*ctx_synchronize)();
  Result (*ctx_enable_peer_access)(Context peer, unsigned flags);

  Result (*mem_alloc)(DevicePtr* pointer, size_t bytes);
  Result (*mem_free)(DevicePtr pointer);
  Result (*mem_host_alloc)(void** pointer, size_t bytes, unsigned flags);
  Result (*mem_free_host)(void* pointer);
  Result (*mem_host_get_device_pointer)(DevicePtr* pointer, void* host, unsigned flags);
  Result (*memset_d8_async)(DevicePtr to, unsigned char value, size_t count, Stream stream);
  Result (*memset_d32_async)(DevicePtr to, unsigned value, size_t count, Stream stream);
  Result (*memcpy_htod_async)(DevicePtr to, const void* from, size_t bytes, Stream stream);
  Result (*memcpy_dtoh_async)(void* to, DevicePtr from, size_t bytes, Stream stream);
  Result (*memcpy_dtod_async)(DevicePtr to, DevicePtr from, size_t bytes, Stream stream);

  Result (*module_load_data)(Module* module, const void* image);
  Result (*module_unload)(Module module);
  Result (*module_get_function)(Function* function, Module module, const char* name);
  Result (*module_get_global)(DevicePtr* pointer, size_t* bytes, Module module, const char* name);
  Result (*func_set_attribute)(Function function, int attribute, int value);
  Result (*func_get_attribute)(int* value, int attribute, Function function);
  Result (*occupancy_max_active_blocks)(int* blocks, Function function, int block_size,
                                        size_t dynamic_shared);
  Result (*occupancy_max_active_clusters)(int* clusters, Function function,
                                          const LaunchConfig* config);
  Result (*tensor_map_encode_tiled)(TensorMap* map, int type, unsigned rank, void* address,
                                    const uint64_t* dim, const uint64_t* stride,
                                    const uint32_t* box, const uint32_t* element_stride,
                                    int interleave, int swizzle, int l2_promotion, int oob_fill);
  Result (*launch_kernel_ex)(const LaunchConfig* config, Function function, void** params,
                             void** extra);

  Result (*stream_create)(Stream* stream, unsigned flags);
  Result (*stream_destroy)(Stream stream);
  Result (*stream_synchronize)(Stream stream);
  Result (*stream_query)(Stream stream);
  Result (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  Result (*event_create)(Event* event, unsigned flags);
  Result (*event_destroy)(Event event);
  Result (*event_record)(Event event, Stream stream);
  Result (*event_query)(Event event);
  Result (*event_synchronize)(Event event);

  Result (*stream_begin_capture)(Stream stream, int mode);
  Result (*stream_end_capture)(Stream stream, Graph* graph);
  Result (*graph_instantiate)(GraphExec* exec, Graph graph, unsigned long long flags);
  Result (*graph_launch)(GraphExec exec, Stream stream);
  Result (*graph_exec_destroy)(GraphExec exec);
  Result (*graph_destroy)(Graph graph);
};

// The driver's symbol for each entry, in the order of the table (the _v2 and _ptsz spellings are
// what cuda.h's macros expand to).
inline constexpr const char* kSymbols[] = {"cuInit",
                                           "cuDriverGetVersion",
                                           "cuGetErrorName",
                                           "cuGetErrorString",
                                           "cuDeviceGetCount",
                                           "cuDeviceGet",
                                           "cuDeviceGetAttribute",
                                           "cuDeviceCanAccessPeer",
                                           "cuDevicePrimaryCtxRetain",
                                           "cuDevicePrimaryCtxRelease_v2",
                                           "cuCtxSetCurrent",
                                           "cuCtxGetCurrent",
                                           "cuCtxGetDevice",
                                           "cuCtxSynchronize",
                                           "cuCtxEnablePeerAccess",
                                           "cuMemAlloc_v2",
                                           "cuMemFree_v2",
                                           "cuMemHostAlloc",
                                           "cuMemFreeHost",
                                           "cuMemHostGetDevicePointer_v2",
                                           "cuMemsetD8Async",
                                           "cuMemsetD32Async",
                                           "cuMemcpyHtoDAsync_v2",
                                           "cuMemcpyDtoHAsync_v2",
                                           "cuMemcpyDtoDAsync_v2",
                                           "cuModuleLoadData",
                                           "cuModuleUnload",
                                           "cuModuleGetFunction",
                                           "cuModuleGetGlobal_v2",
                                           "cuFuncSetAttribute",
                                           "cuFuncGetAttribute",
                                           "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                                           "cuOccupancyMaxActiveClusters",
                                           "cuTensorMapEncodeTiled",
                                           "cuLaunchKernelEx",
                                           "cuStreamCreate",
                                           "cuStreamDestroy_v2",
                                           "cuStreamSynchronize",
                                           "cuStreamQuery",
                                           "cuStreamWaitEvent",
                                           "cuEventCreate",
                                           "cuEventDestroy_v2",
                                           "cuEventRecord",
                                           "cuEventQuery",
                                           "cuEventSynchronize",
                                           "cuStreamBeginCapture_v2",
                                           "cuStreamEndCapture",
                                           "cuGraphInstantiateWithFlags",
                                           "cuGraphLaunch",
                                           "cuGraphExecDestroy",
                                           "cuGraphDestroy"};
static_assert(sizeof(kSymbols) / sizeof(kSymbols[0]) == sizeof(Driver) / sizeof(void*));

}  // namespace jax_megamoe::cuda
