#include "sampler/machine_board.h"

#include <utility>

namespace tdbg {

void MachineBoard::SetPids(std::vector<std::int32_t> ranks,
                           std::vector<std::int32_t> all) {
  MutexLock lock(mutex_);
  ranks_ = std::move(ranks);
  pids_ = std::move(all);
}

std::vector<std::int32_t> MachineBoard::ranks() {
  MutexLock lock(mutex_);
  return ranks_;
}

std::vector<std::int32_t> MachineBoard::pids() {
  MutexLock lock(mutex_);
  return pids_;
}

void MachineBoard::SetGpus(std::vector<GpuFacts> gpus) {
  MutexLock lock(mutex_);
  gpus_ = std::move(gpus);
  knows_gpus_ = true;
}

void MachineBoard::SetNotMeasured(const std::string& what,
                                  const std::string& reason) {
  {
    MutexLock lock(mutex_);
    if (!not_measured_.emplace(what, reason).second || !is_written_) return;
  }
  gate_->WriteChange(
      "{\"what\": \"profiler\", \"part\": \"system\", \"not_measured\": {" +
      JsonString(what) + ": " + JsonString(reason) + "}}");
}

bool MachineBoard::IsMachineDue(std::int64_t now_ns, bool is_last) {
  MutexLock lock(mutex_);
  if (asked_at_ == 0) asked_at_ = now_ns;
  const bool waits = !knows_gpus_ && now_ns < asked_at_ + kPatienceNs;
  return !is_written_ && (is_last || !waits);
}

void MachineBoard::WriteMachine(MachineFacts facts) {
  {
    MutexLock lock(mutex_);
    is_written_ = true;
    if (!knows_gpus_) {
      not_measured_.emplace("gpu", "NVML has not answered yet");
    }
    facts.gpus = gpus_;
    facts.not_measured = not_measured_;
  }
  gate_->WriteMachine(MachineEvent(facts));
}

}  // namespace tdbg
