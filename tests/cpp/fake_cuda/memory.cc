// Devices, contexts, modules and memory of the fake driver.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cuda_emulator/emulator.h"
#include "fake_cuda/state.h"

using fakecuda::CurrentContext;
using fakecuda::State;

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidHandle = 400;
constexpr int kIllegalAddress = 700;
constexpr int kCaptureUnsupported = 900;

std::uintptr_t Address(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

}  // namespace

FAKECUDA_EXPORT int cuInit(unsigned) {
  FAKECUDA_CALL(false);
  if (state.n_devices == 0) return 100;
  state.is_initialized = true;
  return 0;
}

FAKECUDA_EXPORT int cuGetErrorName(int error, const char** name) {
  switch (error) {
    case 0:
      *name = "CUDA_SUCCESS";
      return 0;
    case 1:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return 0;
    case 2:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return 0;
    case 400:
      *name = "CUDA_ERROR_INVALID_HANDLE";
      return 0;
    case 700:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return 0;
    case 719:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return 0;
    default:
      *name = nullptr;
      return kInvalidValue;
  }
}

FAKECUDA_EXPORT int cuDriverGetVersion(int* version) {
  FAKECUDA_CALL(false);
  *version = 12040;
  return 0;
}

FAKECUDA_EXPORT int cuDeviceGetCount(int* count) {
  FAKECUDA_CALL(false);
  *count = state.n_devices;
  return 0;
}

FAKECUDA_EXPORT int cuDeviceGet(int* device, int ordinal) {
  FAKECUDA_CALL(false);
  if (ordinal < 0 || ordinal >= state.n_devices) return kInvalidDevice;
  *device = ordinal;
  return 0;
}

FAKECUDA_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  FAKECUDA_CALL(false);
  if (attribute != 16) return kInvalidValue;
  *value = 2;
  return 0;
}

FAKECUDA_EXPORT int cuDevicePrimaryCtxRetain(CUctx_st** context, int device) {
  FAKECUDA_CALL(false);
  CUctx_st& primary = state.contexts[device];
  primary.device = device;
  ++primary.n_retained;
  *context = &primary;
  return 0;
}

FAKECUDA_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  FAKECUDA_CALL(false);
  if (state.contexts[device].n_retained == 0) return 201;
  --state.contexts[device].n_retained;
  return 0;
}

FAKECUDA_EXPORT int cuCtxPushCurrent_v2(CUctx_st* context) {
  FAKECUDA_CALL(false);
  fakecuda::ContextStack().push_back(context);
  return 0;
}

FAKECUDA_EXPORT int cuCtxPopCurrent_v2(CUctx_st** context) {
  FAKECUDA_CALL(false);
  if (fakecuda::ContextStack().empty()) return 201;
  if (context != nullptr) *context = CurrentContext();
  fakecuda::ContextStack().pop_back();
  return 0;
}

FAKECUDA_EXPORT int cuModuleLoadData(CUmod_st** module, const void* image) {
  FAKECUDA_CALL(true);
  if (image == nullptr) return 200;
  if (state.IsForbidden()) return kCaptureUnsupported;
  *module = new CUmod_st{.context = CurrentContext(), .functions = {}};
  state.modules.insert(*module);
  return 0;
}

FAKECUDA_EXPORT int cuModuleUnload(CUmod_st* module) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  if (state.modules.erase(module) == 0) return kInvalidHandle;
  delete module;
  return 0;
}

FAKECUDA_EXPORT int cuModuleGetFunction(CUfunc_st** function, CUmod_st* module,
                                        const char* name) {
  FAKECUDA_CALL(true);
  if (!state.modules.contains(module)) return kInvalidHandle;
  if (!tdbg::cuda_emulator::HasKernel(name)) return 500;
  auto& slot = module->functions[name];
  if (slot == nullptr) {
    slot = std::make_unique<CUfunc_st>(
        CUfunc_st{.name = name, .context = module->context});
  }
  *function = slot.get();
  return 0;
}

FAKECUDA_EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n_blocks,
                                                                CUfunc_st*, int,
                                                                std::size_t) {
  FAKECUDA_CALL(true);
  *n_blocks = 1;
  return 0;
}

// --- Memory ------------------------------------------------------------------

FAKECUDA_EXPORT int cuMemAlloc_v2(std::uint64_t* address, std::size_t n) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  if (n == 0) return kInvalidValue;
  void* p = std::aligned_alloc(512, (n + 511) / 512 * 512);
  if (p == nullptr) return 2;
  // Nobody may take it for zeros; of much, the beginning will do.
  std::memset(p, 0xa5, std::min<std::size_t>(n, 1 << 20));
  state.device_memory[Address(p)] = {.n = n, .context = CurrentContext()};
  *address = Address(p);
  return 0;
}

FAKECUDA_EXPORT int cuMemFree_v2(std::uint64_t address) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  const auto found = state.device_memory.find(address);
  if (found == state.device_memory.end()) return kInvalidValue;
  state.Drain(&lock, found->second.context);
  state.device_memory.erase(address);
  std::free(reinterpret_cast<void*>(address));
  return 0;
}

FAKECUDA_EXPORT int cuMemHostAlloc(void** p, std::size_t n, unsigned) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  *p = std::aligned_alloc(512, (n + 511) / 512 * 512);
  if (*p == nullptr) return 2;
  state.pinned[Address(*p)] = {.n = n, .context = CurrentContext()};
  return 0;
}

FAKECUDA_EXPORT int cuMemFreeHost(void* p) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  const auto found = state.pinned.find(Address(p));
  if (found == state.pinned.end()) return kInvalidValue;
  state.Drain(&lock, found->second.context);
  state.pinned.erase(Address(p));
  std::free(p);
  return 0;
}

FAKECUDA_EXPORT int cuMemHostRegister_v2(void* p, std::size_t n, unsigned) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  if (state.registered.contains(Address(p))) return 712;
  state.registered[Address(p)] = {.n = n, .context = CurrentContext()};
  return 0;
}

FAKECUDA_EXPORT int cuMemHostUnregister(void* p) {
  FAKECUDA_CALL(true);
  if (state.IsForbidden()) return kCaptureUnsupported;
  const auto found = state.registered.find(Address(p));
  if (found == state.registered.end()) return 713;
  state.Drain(&lock, found->second.context);
  state.registered.erase(Address(p));
  return 0;
}

namespace {

// Host memory that is not locked would make the copy wait, which tdbg must not.
bool IsLocked(const State& state, const void* p, std::size_t n) {
  return State::Contains(state.pinned, Address(p), n) ||
         State::Contains(state.registered, Address(p), n);
}

int Copy(State* state, void* to, const void* from, std::size_t n,
         CUstream_st* handle) {
  CUstream_st* stream = state->StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  state->copied += static_cast<long>(n);
  state->Enqueue(stream, [to, from, n] { std::memcpy(to, from, n); });
  return 0;
}

}  // namespace

FAKECUDA_EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from,
                                         std::size_t n, CUstream_st* stream) {
  FAKECUDA_CALL(true);
  if (!State::Contains(state.device_memory, to, n)) return kInvalidValue;
  if (!IsLocked(state, from, n)) return kInvalidValue;
  return Copy(&state, reinterpret_cast<void*>(to), from, n, stream);
}

FAKECUDA_EXPORT int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from,
                                         std::size_t n, CUstream_st* stream) {
  FAKECUDA_CALL(true);
  if (!State::Contains(state.device_memory, from, n)) return kInvalidValue;
  if (!IsLocked(state, to, n)) return kInvalidValue;
  return Copy(&state, to, reinterpret_cast<const void*>(from), n, stream);
}

FAKECUDA_EXPORT int cuMemsetD8Async(std::uint64_t to, unsigned char value,
                                    std::size_t n, CUstream_st* handle) {
  FAKECUDA_CALL(true);
  if (!State::Contains(state.device_memory, to, n)) return kInvalidValue;
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr) return kInvalidHandle;
  state.Enqueue(stream, [to, value, n] {
    std::memset(reinterpret_cast<void*>(to), value, n);
  });
  return 0;
}

FAKECUDA_EXPORT int cuLaunchKernel(CUfunc_st* function, unsigned grid, unsigned,
                                   unsigned, unsigned block, unsigned, unsigned,
                                   unsigned shared_bytes, CUstream_st* handle,
                                   void** arguments, void**) {
  FAKECUDA_CALL(true);
  CUstream_st* stream = state.StreamOf(handle);
  if (stream == nullptr || function->context != stream->context) {
    return kInvalidHandle;
  }
  if (grid == 0 || block == 0 || block > 1024) return kInvalidValue;
  static_assert(kIllegalAddress == 700);
  fakecuda::Operation operation =
      fakecuda::LaunchOf(function, grid, block, shared_bytes, arguments);
  if (!operation) return 98;
  state.Enqueue(stream, std::move(operation));
  return 0;
}
