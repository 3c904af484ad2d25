// Samples the machine of a training, all processes of the training on it, and
// its GPUs, from threads of its own.
//
// One process of each node samples: the first that asks, and when it ends
// another one, which asks again every kRetryNs.  NodeFile is how they agree.
//
// The host, the processes and the GPUs have a thread each: docs/
// profiler-system.md says what is read from where, and what it costs.
//
// Thread safety: all methods may be called from any thread.  In a forked child
// the object does nothing.
//
// Errors: Start reports them.  Afterwards a source that fails is left out, and
// the event `machine` or a later one says why.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "sampler/gpus.h"
#include "sampler/node_file.h"
#include "sampler/row_sink.h"
#include "sampler/sampling_threads.h"

namespace tdbg {

struct SamplerOptions {
  static constexpr std::int64_t kLeastIntervalNs = 50'000'000;

  std::int64_t interval_ns = 500'000'000;
  // The NodeFile; empty: this process samples, whoever else does.
  std::string node_file;
  std::string nvml_library = Gpus::kLibrary;
  // Stands before "/proc", "/sys" and the like; for tests.
  std::string root;
};

class SystemSampler {
 public:
  static constexpr std::int64_t kRetryNs = 5'000'000'000;
  static constexpr std::chrono::milliseconds kCloseTimeout{1000};

  // Errors: kInvalidArgument for an interval below the least; kIoError if there
  // is no thread.
  static Result<std::unique_ptr<SystemSampler>> Start(
      const SamplerOptions& options, std::unique_ptr<RowSink> sink);
  ~SystemSampler();
  SystemSampler(const SystemSampler&) = delete;
  SystemSampler& operator=(const SystemSampler&) = delete;

  // Follows a process of the training until it ends, whoever samples.  False if
  // there is no such process, or nobody to follow it.
  bool AddProcess(std::int32_t pid, std::int32_t rank, std::uint32_t kind,
                  std::int32_t worker);
  // Samples at another interval from now on.  Errors: kInvalidArgument.
  Status SetInterval(std::int64_t interval_ns);
  // Takes a last sample and ends the threads; nothing reaches the sink after
  // that.  Idempotent.
  void Close(std::chrono::milliseconds timeout = kCloseTimeout);

  [[nodiscard]] bool is_sampling() const;
  // Processor time of the threads so far.
  [[nodiscard]] std::int64_t cpu_ns() const;
  [[nodiscard]] std::int64_t n_samples() const;

 private:
  struct Shared;

  SystemSampler(std::shared_ptr<Shared> shared,
                std::shared_ptr<SamplingThreads> threads,
                std::shared_ptr<RowGate> gate);
  [[nodiscard]] bool is_copy() const;

  // Released in a forked child: locks in them may be held by threads that it
  // does not have.
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<SamplingThreads> threads_;
  std::shared_ptr<RowGate> gate_;
  const std::uint64_t fork_depth_;
};

}  // namespace tdbg
