#include "sampler/system_sampler.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/process.h"
#include "sampler/machine_board.h"
#include "sampler/sources.h"

namespace tdbg {

// What the threads share with the object, and may outlive it with.
struct SystemSampler::Shared {
  SamplerOptions options;
  std::shared_ptr<NodeFile> node_file;
  std::shared_ptr<MachineBoard> board;
  std::atomic<bool> is_sampling{false};
};

namespace {

// The host, once this process is the one that samples; then the other threads
// start.
template <typename Shared>
class ElectedHost : public Source {
 public:
  explicit ElectedHost(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)),
        host_(shared_->options.root, shared_->board) {}

  bool Prepare(SamplingThreads& threads) override {
    while (!shared_->node_file->TrySample()) {
      if (threads.WaitUntil(MonotonicNs() + SystemSampler::kRetryNs)) {
        return false;
      }
    }
    shared_->is_sampling = true;
    const SamplerOptions& options = shared_->options;
    threads.Start("tdbg-processes",
                  std::make_unique<ProcessSource>(
                      options.root, shared_->node_file, shared_->board));
    threads.Start("tdbg-gpus", std::make_unique<GpuSource>(options.nvml_library,
                                                           shared_->board));
    return true;
  }

  void Sample(const Moment& moment, RowBuffer* rows) override {
    host_.Sample(moment, rows);
  }

 private:
  const std::shared_ptr<Shared> shared_;
  HostSource host_;
};

Status CheckInterval(std::int64_t interval_ns) {
  if (interval_ns >= SamplerOptions::kLeastIntervalNs) return Status::Ok();
  return Status::InvalidArgument(
      "the machine is sampled every 50 ms at most, not every " +
      std::to_string(interval_ns) + " ns");
}

}  // namespace

Result<std::unique_ptr<SystemSampler>> SystemSampler::Start(
    const SamplerOptions& options, std::unique_ptr<RowSink> sink) {
  TDBG_RETURN_IF_ERROR(CheckInterval(options.interval_ns));
  auto node_file = NodeFile::Join(options.node_file);
  TDBG_RETURN_IF_ERROR(node_file.status());
  const auto gate = std::make_shared<RowGate>(std::move(sink));
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->node_file = std::move(node_file).value();
  shared->board = std::make_shared<MachineBoard>(gate);
  auto threads = std::make_shared<SamplingThreads>(options.interval_ns, gate);
  if (!threads->Start("tdbg-sampler",
                      std::make_unique<ElectedHost<Shared>>(shared))) {
    return Status::IoError("the system has no thread for the sampler", 0);
  }
  return std::unique_ptr<SystemSampler>(
      new SystemSampler(std::move(shared), std::move(threads), gate));
}

SystemSampler::SystemSampler(std::shared_ptr<Shared> shared,
                             std::shared_ptr<SamplingThreads> threads,
                             std::shared_ptr<RowGate> gate)
    : shared_(std::move(shared)),
      threads_(std::move(threads)),
      gate_(std::move(gate)),
      fork_depth_(ForkDepth()) {}

SystemSampler::~SystemSampler() {
  Close();
  if (is_copy()) {
    // Never freed: see the declaration.
    new auto(std::move(shared_));
    new auto(std::move(threads_));
    new auto(std::move(gate_));
  }
}

bool SystemSampler::is_copy() const { return fork_depth_ != ForkDepth(); }

bool SystemSampler::AddProcess(std::int32_t pid, std::int32_t rank,
                               std::uint32_t kind, std::int32_t worker) {
  if (is_copy() || pid <= 0 || rank < 0) return false;
  const std::uint64_t start = ProcessStart(pid);
  return start != 0 && shared_->node_file->Add({.pid = pid,
                                                .start_ticks = start,
                                                .rank = rank,
                                                .kind = kind,
                                                .worker = worker});
}

Status SystemSampler::SetInterval(std::int64_t interval_ns) {
  TDBG_RETURN_IF_ERROR(CheckInterval(interval_ns));
  if (!is_copy()) threads_->SetInterval(interval_ns);
  return Status::Ok();
}

void SystemSampler::Close(std::chrono::milliseconds timeout) {
  if (is_copy()) return;
  (void)threads_->Stop(timeout);
  gate_->Shut();
  if (shared_->is_sampling.exchange(false)) shared_->node_file->StopSampling();
}

bool SystemSampler::is_sampling() const { return shared_->is_sampling; }

std::int64_t SystemSampler::cpu_ns() const { return threads_->cpu_ns(); }

std::int64_t SystemSampler::n_samples() const { return threads_->n_samples(); }

}  // namespace tdbg
