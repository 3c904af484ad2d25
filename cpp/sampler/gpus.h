// NVIDIA's GPUs, by NVML, which is loaded where a driver has installed it.
//
// Calls of NVML take microseconds to milliseconds, and longer when a GPU is in
// trouble: the caller has a thread for them.  What a device does not support
// (utilisation of one that is divided by MIG, the energy of an old one) is not
// asked for again, and not measured.
//
// Thread safety: belongs to one thread at a time; facts() may be read from
// others once Find has returned.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sampler/profile_rows.h"

namespace tdbg {

struct GpuFacts {
  std::uint32_t index = 0;  // As NVML counts them, not as CUDA does.
  std::string uuid;
  std::string name;
  std::uint64_t memory = kNotMeasured;
};

struct NvmlLibrary;

class Gpus {
 public:
  static constexpr char kLibrary[] = "libnvidia-ml.so.1";
  // A device that was lost is asked again after so long.
  static constexpr std::int64_t kRestNs = 60'000'000'000;

  // `sees_all_pids`: whether pids here are those that the driver knows.
  explicit Gpus(std::string library = kLibrary, bool sees_all_pids = true);
  ~Gpus();
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // Loads NVML and finds the devices.  Errors: kNotFound where there is no
  // driver or no device; kUnsupported.
  Status Find();
  [[nodiscard]] const std::vector<GpuFacts>& facts() const { return facts_; }

  // `pids` are the processes of the training.
  void Sample(std::int64_t time, const std::vector<std::int32_t>& pids,
              const std::function<void(const std::string& uuid, const GpuRow&)>&
                  on_gpu);

 private:
  struct Device;
  // False if the device is lost.
  bool Read(Device* device, GpuRow* row);
  std::uint32_t CountProcesses(Device* device,
                               const std::vector<std::int32_t>& pids);

  const std::string library_name_;
  const bool sees_all_pids_;
  std::unique_ptr<NvmlLibrary> library_;
  std::vector<GpuFacts> facts_;
  std::vector<Device> devices_;
};

// Whether pids of this process are those of the whole machine: it is in no
// container that has its own.
[[nodiscard]] bool SeesAllPids();

}  // namespace tdbg
