// The sources of a sampler, a thread each: the host, the processes of the
// training, the GPUs.
//
// Thread safety: each belongs to its thread.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sampler/control_group.h"
#include "sampler/devices.h"
#include "sampler/gpus.h"
#include "sampler/kernel_file.h"
#include "sampler/machine_board.h"
#include "sampler/node_file.h"
#include "sampler/package_energy.h"
#include "sampler/processors.h"
#include "sampler/sampling_threads.h"
#include "sampler/training_processes.h"

namespace tdbg {

// Cores that any thread of these processes may run on, by their number; of this
// process, if there are none.
[[nodiscard]] std::vector<bool> AllowedCores(
    const std::vector<std::int32_t>& pids);

// The tables `system`, `core`, `disk` and `network`, and the event `machine`.
class HostSource : public Source {
 public:
  // Affinities are looked up again after so long.
  static constexpr std::int64_t kAffinityNs = 30'000'000'000;
  // Ticks of the kernel are too coarse for shares of less.
  static constexpr std::int64_t kLeastShareNs = 45'000'000;

  HostSource(const std::string& root, std::shared_ptr<MachineBoard> board);
  void Sample(const Moment& moment, RowBuffer* rows) override;

 private:
  void SampleProcessors(const Moment& moment, SystemRow* row, RowBuffer* rows);
  // Fills in the shares of the cores that the training may use.
  void SampleAllowed(const std::vector<CoreShares>& shares, SystemRow* row);
  void SampleMemory(SystemRow* row);
  void SampleGroup(const Moment& moment, SystemRow* row);
  void SampleDevices(const Moment& moment, RowBuffer* rows);
  void LookUpAllowedCores(std::int64_t time_ns);
  // Whatever is not measured at the first sample has a reason.
  void ExplainGaps(const SystemRow& row);
  [[nodiscard]] MachineFacts Facts(const SystemRow& row) const;
  // What a file holds; nothing, and the reason is told, if it cannot be read.
  std::string_view Text(KernelFile* file, const char* what);

  const std::string root_;
  const std::shared_ptr<MachineBoard> board_;
  TextBuffer buffer_;

  KernelFile stat_, meminfo_, vmstat_;
  ControlGroup group_;
  Disks disks_;
  Networks networks_;
  PackageEnergy energy_;

  ProcessorTicks now_, before_;
  std::int64_t before_ns_ = 0;  // 0: nothing was read before.
  std::size_t n_cores_ = 0;     // Of the table: those seen first.
  double quota_cores_ = 0;
  std::vector<bool> allowed_;
  std::vector<std::int32_t> allowed_ranks_;  // Whose these are.
  std::int64_t allowed_ns_ = 0;
  bool is_explained_ = false;
};

// The table `process`.
class ProcessSource : public Source {
 public:
  // `node_file` may be null: then no process is added to it.
  ProcessSource(const std::string& root, std::shared_ptr<NodeFile> node_file,
                std::shared_ptr<MachineBoard> board);
  void Sample(const Moment& moment, RowBuffer* rows) override;

 private:
  const std::shared_ptr<NodeFile> node_file_;
  const std::shared_ptr<MachineBoard> board_;
  TextBuffer buffer_;
  TrainingProcesses processes_;
  std::uint64_t offset_ = 0;
};

// The table `gpu`.
class GpuSource : public Source {
 public:
  GpuSource(std::string library, std::shared_ptr<MachineBoard> board);
  bool Prepare(SamplingThreads& threads) override;
  void Sample(const Moment& moment, RowBuffer* rows) override;

 private:
  const std::shared_ptr<MachineBoard> board_;
  Gpus gpus_;
};

}  // namespace tdbg
