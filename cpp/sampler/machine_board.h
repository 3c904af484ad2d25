// What the threads of a sampler tell each other, and the event `machine` that
// follows from it.
//
// Thread safety: all of it.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "sampler/gpus.h"
#include "sampler/machine_facts.h"
#include "sampler/row_sink.h"

namespace tdbg {

class MachineBoard {
 public:
  // How long the event waits for the GPUs.
  static constexpr std::int64_t kPatienceNs = 10'000'000'000;

  explicit MachineBoard(std::shared_ptr<RowGate> gate)
      : gate_(std::move(gate)) {}

  // The pids of the training's ranks, and of all its processes.
  void SetPids(std::vector<std::int32_t> ranks, std::vector<std::int32_t> all);
  [[nodiscard]] std::vector<std::int32_t> ranks();
  [[nodiscard]] std::vector<std::int32_t> pids();

  void SetGpus(std::vector<GpuFacts> gpus);
  // A part of the machine is not measured, or no longer, for this reason.  Says
  // so once: in the event `machine` or, behind that, in one of `profiler`.
  void SetNotMeasured(const std::string& what, const std::string& reason);

  // Whether the event `machine` is to be written: it was not, and the GPUs are
  // known, or are waited for no longer.
  [[nodiscard]] bool IsMachineDue(std::int64_t now_ns, bool is_last);
  // Writes it, with the GPUs and what is not measured.
  void WriteMachine(MachineFacts facts);

 private:
  const std::shared_ptr<RowGate> gate_;
  Mutex mutex_;
  std::vector<std::int32_t> ranks_ TDBG_GUARDED_BY(mutex_);
  std::vector<std::int32_t> pids_ TDBG_GUARDED_BY(mutex_);
  std::vector<GpuFacts> gpus_ TDBG_GUARDED_BY(mutex_);
  bool knows_gpus_ TDBG_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string> not_measured_ TDBG_GUARDED_BY(mutex_);
  std::int64_t asked_at_ TDBG_GUARDED_BY(mutex_) = 0;
  bool is_written_ TDBG_GUARDED_BY(mutex_) = false;
};

}  // namespace tdbg
