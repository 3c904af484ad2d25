#include "sampler/gpus.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace tdbg {

// The part of nvml.h that is used.  Its versions keep these declarations.
using NvmlDevice = void*;
struct NvmlUtilization {
  unsigned gpu, memory;
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

struct NvmlLibrary {
  int (*init)();
  int (*shutdown)();
  int (*count)(unsigned*);
  int (*handle)(unsigned, NvmlDevice*);
  int (*uuid)(NvmlDevice, char*, unsigned);
  int (*name)(NvmlDevice, char*, unsigned);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*utilization)(NvmlDevice, NvmlUtilization*);
  int (*clock)(NvmlDevice, int, unsigned*);
  int (*throttle_reasons)(NvmlDevice, unsigned long long*);
  int (*temperature)(NvmlDevice, int, unsigned*);
  int (*power)(NvmlDevice, unsigned*);
  int (*energy)(NvmlDevice, unsigned long long*);
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*);
};

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kNoPermission = 4;
constexpr int kInsufficientSize = 7;
constexpr int kFunctionNotFound = 13;
constexpr int kGpuIsLost = 15;
constexpr int kSmClock = 1;         // NVML_CLOCK_SM
constexpr int kGpuTemperature = 0;  // NVML_TEMPERATURE_GPU
constexpr unsigned kMaxGpus = 256;
constexpr unsigned kMaxProcessesOfGpu = 4096;

// The first of these that the library has; null: none.
template <typename Function>
void Load(void* library, Function* function,
          std::initializer_list<const char*> names) {
  *function = nullptr;
  for (const char* name : names) {
    if (*function == nullptr) {
      *function = reinterpret_cast<Function>(::dlsym(library, name));
    }
  }
}

bool LoadAll(void* library, NvmlLibrary* nvml) {
  Load(library, &nvml->init, {"nvmlInit_v2"});
  Load(library, &nvml->shutdown, {"nvmlShutdown"});
  Load(library, &nvml->count, {"nvmlDeviceGetCount_v2"});
  Load(library, &nvml->handle, {"nvmlDeviceGetHandleByIndex_v2"});
  Load(library, &nvml->uuid, {"nvmlDeviceGetUUID"});
  Load(library, &nvml->name, {"nvmlDeviceGetName"});
  Load(library, &nvml->memory, {"nvmlDeviceGetMemoryInfo"});
  Load(library, &nvml->utilization, {"nvmlDeviceGetUtilizationRates"});
  Load(library, &nvml->clock, {"nvmlDeviceGetClockInfo"});
  Load(library, &nvml->throttle_reasons,
       {"nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons"});
  Load(library, &nvml->temperature, {"nvmlDeviceGetTemperature"});
  Load(library, &nvml->power, {"nvmlDeviceGetPowerUsage"});
  Load(library, &nvml->energy, {"nvmlDeviceGetTotalEnergyConsumption"});
  Load(library, &nvml->processes,
       {"nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2"});
  return nvml->init != nullptr && nvml->shutdown != nullptr &&
         nvml->count != nullptr && nvml->handle != nullptr &&
         nvml->uuid != nullptr;
}

// A text that a device gives; empty if it gives none.
template <typename Function>
std::string TextOf(Function function, NvmlDevice device) {
  std::array<char, 128> text{};
  if (function == nullptr ||
      function(device, text.data(), text.size() - 1) != kSuccess) {
    return {};
  }
  return text.data();
}

// Whether a number of a device is a measurement: drivers write ones for "none".
template <typename T>
bool IsMeasured(T value) {
  return value != static_cast<T>(-1);
}

}  // namespace

struct Gpus::Device {
  NvmlDevice handle;
  std::size_t index;  // In facts().
  // One bit for each call that it does not support.
  std::uint32_t unsupported = 0;
  std::int64_t rests_until = 0;
  bool is_lost = false;

  // Calls an NVML function unless the device is known not to support it.
  template <typename... Parameters, typename... Arguments>
  bool Ask(unsigned bit, int (*function)(NvmlDevice, Parameters...),
           Arguments... arguments) {
    if (is_lost || function == nullptr || (unsupported >> bit & 1U) != 0) {
      return false;
    }
    return IsAnswer(bit, function(handle, arguments...));
  }

  // Remembers what an error means for the next call.
  bool IsAnswer(unsigned bit, int error) {
    if (error == kNotSupported || error == kNoPermission ||
        error == kFunctionNotFound) {
      unsupported |= 1U << bit;
    }
    is_lost = error == kGpuIsLost;
    return error == kSuccess;
  }
};

Gpus::Gpus(std::string library, bool sees_all_pids)
    : library_name_(std::move(library)), sees_all_pids_(sees_all_pids) {}

Gpus::~Gpus() {
  // The library stays loaded: others of the process may use it, and its own
  // threads may run.
  if (library_ != nullptr) library_->shutdown();
}

Status Gpus::Find() {
  void* const opened = ::dlopen(library_name_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    return Status::NotFound("no NVIDIA driver is installed (" + library_name_ +
                            " does not load)");
  }
  auto nvml = std::make_unique<NvmlLibrary>();
  if (!LoadAll(opened, nvml.get())) {
    return Status::Unsupported(library_name_ + " lacks functions of NVML");
  }
  if (const int error = nvml->init(); error != kSuccess) {
    return Status::NotFound("nvmlInit: error " + std::to_string(error));
  }
  library_ = std::move(nvml);
  unsigned n = 0;
  if (library_->count(&n) != kSuccess) n = 0;
  for (unsigned i = 0; i < std::min(n, kMaxGpus); ++i) {
    NvmlDevice handle = nullptr;
    if (library_->handle(i, &handle) != kSuccess) continue;
    GpuFacts facts{.index = i,
                   .uuid = TextOf(library_->uuid, handle),
                   .name = TextOf(library_->name, handle)};
    NvmlMemory memory{};
    if (library_->memory != nullptr &&
        library_->memory(handle, &memory) == kSuccess) {
      facts.memory = memory.total;
    }
    if (facts.uuid.empty()) continue;
    devices_.push_back({.handle = handle, .index = facts_.size()});
    facts_.push_back(std::move(facts));
  }
  if (devices_.empty()) return Status::NotFound("NVML sees no GPU");
  return Status::Ok();
}

bool Gpus::Read(Device* device, GpuRow* row) {
  NvmlUtilization utilization{};
  if (device->Ask(0, library_->utilization, &utilization)) {
    row->busy = static_cast<float>(utilization.gpu) / 100.0F;
    row->memory_busy = static_cast<float>(utilization.memory) / 100.0F;
  }
  NvmlMemory memory{};
  if (device->Ask(1, library_->memory, &memory)) {
    row->memory_used = memory.used;
    row->memory_total = memory.total;
  }
  unsigned value = 0;
  if (device->Ask(2, library_->clock, kSmClock, &value) && IsMeasured(value)) {
    row->sm_clock_hz = static_cast<float>(value) * 1e6F;
  }
  if (device->Ask(3, library_->temperature, kGpuTemperature, &value) &&
      IsMeasured(value)) {
    row->temperature = static_cast<float>(value);
  }
  if (device->Ask(4, library_->power, &value) && IsMeasured(value)) {
    row->power_watt = static_cast<float>(value) / 1e3F;
  }
  unsigned long long wide = 0;
  if (device->Ask(5, library_->throttle_reasons, &wide)) {
    row->throttle_reasons = Narrow(wide);
  }
  if (device->Ask(6, library_->energy, &wide)) row->energy_mj = wide;
  return !device->is_lost;
}

std::uint32_t Gpus::CountProcesses(Device* device,
                                   const std::vector<std::int32_t>& pids) {
  if (!sees_all_pids_ || library_->processes == nullptr ||
      (device->unsupported >> 7 & 1U) != 0) {
    return kNotMeasured32;
  }
  std::vector<NvmlProcess> running(64);
  auto n = static_cast<unsigned>(running.size());
  int error = library_->processes(device->handle, &n, running.data());
  if (error == kInsufficientSize && n <= kMaxProcessesOfGpu) {
    n += 16;  // Others may start meanwhile.
    running.resize(n);
    error = library_->processes(device->handle, &n, running.data());
  }
  if (!device->IsAnswer(7, error)) return kNotMeasured32;
  running.resize(std::min<std::size_t>(n, running.size()));
  return static_cast<std::uint32_t>(std::count_if(
      running.begin(), running.end(), [&](const NvmlProcess& each) {
        return std::find(pids.begin(), pids.end(),
                         static_cast<std::int32_t>(each.pid)) != pids.end();
      }));
}

void Gpus::Sample(
    std::int64_t time, const std::vector<std::int32_t>& pids,
    const std::function<void(const std::string& uuid, const GpuRow&)>& on_gpu) {
  for (Device& device : devices_) {
    if (time < device.rests_until) continue;
    device.is_lost = false;
    GpuRow row{.time = time, .index = facts_[device.index].index};
    if (Read(&device, &row)) row.run_processes = CountProcesses(&device, pids);
    if (device.is_lost) device.rests_until = time + kRestNs;
    on_gpu(facts_[device.index].uuid, row);
  }
}

bool SeesAllPids() {
  // The number of the first namespace is fixed in the kernel
  // (PROC_PID_INIT_INO).
  std::array<char, 64> target{};
  const ssize_t n =
      ::readlink("/proc/self/ns/pid", target.data(), target.size() - 1);
  return n > 0 && std::string_view(target.data()) == "pid:[4026531836]";
}

}  // namespace tdbg
