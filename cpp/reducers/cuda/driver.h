// Driver is the part of the CUDA driver's interface that tdbg uses, found at
// run time in libcuda.so.1.
//
// Nothing of CUDA is linked, and no header of it is included: the declarations
// are here, with the names of the driver's manual.  So one build serves
// machines with and without a GPU, and imports where there is no driver.
//
// TDBG_CUDA_DRIVER=/path names another library, for tests.
//
// Thread safety: constant after loading; the driver's own calls are safe from
// any thread.
//
// Errors: Load and Installed say what is missing (the library, a function, a
// device), Check names the call and the driver's error.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace tdbg::cuda {

using DeviceAddress = std::uint64_t;  // CUdeviceptr
using Context = struct CUctx_st*;
using Module = struct CUmod_st*;
using Function = struct CUfunc_st*;
using Stream = struct CUstream_st*;
using EventHandle = struct CUevent_st*;
using Graph = struct CUgraph_st*;
using GraphNode = struct CUgraphNode_st*;
using UserObject = struct CUuserObject_st*;

// The values of CUresult that are distinguished here; all others are errors.
enum ResultCode : int {
  kSuccess = 0,
  kErrorInvalidValue = 1,
  kErrorOutOfMemory = 2,
  kErrorNoDevice = 100,
  kErrorInvalidDevice = 101,
  kErrorNotFound = 500,
  kErrorNotReady = 600,
};

inline constexpr int kAttributeMultiprocessorCount = 16;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostPortable = 1;  // Alloc and Register alike.
inline constexpr int kCaptureNone = 0;        // CUstreamCaptureStatus
inline constexpr int kCaptureActive = 1;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr unsigned kUserObjectNoSync = 1;
inline constexpr unsigned kUserObjectMove = 1;

// A framework's handle; two of them are numbers: 1, the default stream, as is
// null, and 2, the default stream of the thread that names it.
inline Stream PerThreadStream() {
  return reinterpret_cast<Stream>(std::uintptr_t{2});
}
inline Stream StreamOf(void* handle) {
  return reinterpret_cast<std::uintptr_t>(handle) == 1
             ? nullptr
             : static_cast<Stream>(handle);
}

// Every function: its name in the library, its name here, its parameters.
// clang-format off
#define TDBG_CUDA_FUNCTIONS(F)                                                 \
  F(cuInit, init, (unsigned flags))                                            \
  F(cuGetErrorName, get_error_name, (int error, const char** name))            \
  F(cuDriverGetVersion, driver_get_version, (int* version))                    \
  F(cuDeviceGetCount, device_get_count, (int* count))                          \
  F(cuDeviceGet, device_get, (int* device, int ordinal))                       \
  F(cuDeviceGetAttribute, device_get_attribute,                                \
    (int* value, int attribute, int device))                                   \
  F(cuDevicePrimaryCtxRetain, primary_context_retain,                          \
    (Context* context, int device))                                            \
  F(cuDevicePrimaryCtxRelease_v2, primary_context_release, (int device))       \
  F(cuCtxPushCurrent_v2, context_push, (Context context))                      \
  F(cuCtxPopCurrent_v2, context_pop, (Context* context))                       \
  F(cuModuleLoadData, module_load_data, (Module* module, const void* image))   \
  F(cuModuleUnload, module_unload, (Module module))                            \
  F(cuModuleGetFunction, module_get_function,                                  \
    (Function* function, Module module, const char* name))                     \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor, occupancy,                    \
    (int* n_blocks, Function function, int block_size,                         \
     std::size_t shared_bytes))                                                \
  F(cuLaunchKernel, launch_kernel,                                             \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,     \
     unsigned block_x, unsigned block_y, unsigned block_z,                     \
     unsigned shared_bytes, Stream stream, void** arguments, void** extra))    \
  F(cuMemAlloc_v2, mem_alloc, (DeviceAddress* address, std::size_t n))         \
  F(cuMemFree_v2, mem_free, (DeviceAddress address))                           \
  F(cuMemHostAlloc, mem_host_alloc, (void** p, std::size_t n, unsigned flags)) \
  F(cuMemFreeHost, mem_free_host, (void* p))                                   \
  F(cuMemHostRegister_v2, mem_host_register,                                   \
    (void* p, std::size_t n, unsigned flags))                                  \
  F(cuMemHostUnregister, mem_host_unregister, (void* p))                       \
  F(cuMemcpyHtoDAsync_v2, memcpy_to_device,                                    \
    (DeviceAddress to, const void* from, std::size_t n, Stream stream))        \
  F(cuMemcpyDtoHAsync_v2, memcpy_to_host,                                      \
    (void* to, DeviceAddress from, std::size_t n, Stream stream))              \
  F(cuMemsetD8Async, memset,                                                   \
    (DeviceAddress to, unsigned char value, std::size_t n, Stream stream))     \
  F(cuStreamCreate, stream_create, (Stream* stream, unsigned flags))           \
  F(cuStreamDestroy_v2, stream_destroy, (Stream stream))                       \
  F(cuStreamQuery, stream_query, (Stream stream))                              \
  F(cuStreamWaitEvent, stream_wait_event,                                      \
    (Stream stream, EventHandle event, unsigned flags))                        \
  F(cuStreamGetCaptureInfo_v2, stream_get_capture_info,                        \
    (Stream stream, int* status, std::uint64_t* id, Graph* graph,              \
     const GraphNode** dependencies, std::size_t* n_dependencies))             \
  F(cuThreadExchangeStreamCaptureMode, exchange_capture_mode, (int* mode))     \
  F(cuEventCreate, event_create, (EventHandle* event, unsigned flags))         \
  F(cuEventDestroy_v2, event_destroy, (EventHandle event))                     \
  F(cuEventRecord, event_record, (EventHandle event, Stream stream))           \
  F(cuEventQuery, event_query, (EventHandle event))                            \
  F(cuUserObjectCreate, user_object_create,                                    \
    (UserObject* object, void* data, void (*destroy)(void*),                   \
     unsigned n_references, unsigned flags))                                   \
  F(cuUserObjectRelease, user_object_release,                                  \
    (UserObject object, unsigned n_references))                                \
  F(cuGraphRetainUserObject, graph_retain_user_object,                         \
    (Graph graph, UserObject object, unsigned n, unsigned flags))
// clang-format on

class Driver {
 public:
  // That of this machine, loaded at the first call and kept; every later call
  // answers the same.
  static Result<const Driver*> Installed();
  // The library at `path`, initialized.  It stays loaded for good: a driver
  // does not outlive its own unloading.
  static Result<Driver> Load(const std::string& path);

  // Ok, or a status that reads "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)".
  [[nodiscard]] Status Check(int result, const char* call) const;

  [[nodiscard]] int n_devices() const { return n_devices_; }
  // The newest CUDA that it serves: "13.0".
  [[nodiscard]] std::string version() const;

#define TDBG_CUDA_MEMBER(symbol, member, parameters) \
  int(*member) parameters = nullptr;
  TDBG_CUDA_FUNCTIONS(TDBG_CUDA_MEMBER)
#undef TDBG_CUDA_MEMBER

 private:
  Driver() = default;
  int n_devices_ = 0;
  int version_ = 0;  // 1000 times the major number, 10 times the minor one.
};

}  // namespace tdbg::cuda
