// An NVML for GPUs that are not there: three devices, of which the second is
// divided by MIG, and the third can be lost.  A test controls it by variables
// of the environment:
//
//   FAKE_NVML_INIT_ERROR   the error of nvmlInit
//   FAKE_NVML_HANG_MS      how long a reading of the power takes
//   FAKE_NVML_LOST         device 2 is lost
//   FAKE_NVML_COUNT        number of devices (3)
//   FAKE_NVML_PID          a process that runs on device 0, beside 70 others

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kInsufficientSize = 7;
constexpr int kGpuIsLost = 15;
char devices[3];

long Setting(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atol(value);
}

long IndexOf(void* device) { return static_cast<char*>(device) - devices; }

// The error of any call to this device.
int State(void* device) {
  const bool is_lost =
      IndexOf(device) == 2 && Setting("FAKE_NVML_LOST", 0) != 0;
  return is_lost ? kGpuIsLost : kSuccess;
}

}  // namespace

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

#define FAKE extern "C" __attribute__((visibility("default"))) int

FAKE nvmlInit_v2() {
  return static_cast<int>(Setting("FAKE_NVML_INIT_ERROR", 0));
}
FAKE nvmlShutdown() { return kSuccess; }
FAKE nvmlDeviceGetCount_v2(unsigned* n) {
  *n = static_cast<unsigned>(Setting("FAKE_NVML_COUNT", 3));
  return kSuccess;
}
FAKE nvmlDeviceGetHandleByIndex_v2(unsigned i, void** device) {
  *device = &devices[i];
  return kSuccess;
}
FAKE nvmlDeviceGetUUID(void* device, char* text, unsigned n) {
  std::snprintf(text, n, "GPU-%ld", IndexOf(device));
  return kSuccess;
}
FAKE nvmlDeviceGetName(void* device, char* text, unsigned n) {
  std::snprintf(text, n, "Fake %ld \"H100\"", IndexOf(device));
  return kSuccess;
}
FAKE nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  *memory = {80'000, 50'000, 30'000};
  return State(device);
}
FAKE nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  if (IndexOf(device) == 1) return kNotSupported;
  *rates = {95, 40};
  return State(device);
}
FAKE nvmlDeviceGetClockInfo(void* device, int type, unsigned* mhz) {
  if (type != 1) return kNotSupported;
  *mhz = 1980;
  return State(device);
}
FAKE nvmlDeviceGetCurrentClocksThrottleReasons(void* device,
                                               unsigned long long* reasons) {
  *reasons = 0x44;
  return State(device);
}
FAKE nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) {
  *celsius = 61;
  return State(device);
}
FAKE nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatt) {
  ::usleep(static_cast<unsigned>(1000 * Setting("FAKE_NVML_HANG_MS", 0)));
  *milliwatt = 350'500;
  return State(device);
}
FAKE nvmlDeviceGetTotalEnergyConsumption(void* device,
                                         unsigned long long* millijoule) {
  static unsigned long long total = 1000;
  *millijoule = total += 500;
  return State(device);
}
FAKE nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* n,
                                             Process* processes) {
  const unsigned running = IndexOf(device) == 0 ? 71 : 0;
  const bool fits = *n >= running;
  *n = running;
  if (!fits) return kInsufficientSize;
  for (unsigned i = 0; i < running; ++i)
    processes[i] = {1'000'000 + i, 0, 0, 0};
  if (running > 0) {
    processes[70].pid = static_cast<unsigned>(Setting("FAKE_NVML_PID", 0));
  }
  return State(device);
}
