// Threads that sample: each its own source, so that one that has to wait for
// its answer (a driver, a process that is being replaced) delays no other.
//
// The threads have all signals blocked and know nothing of Python.  They never
// keep a process from ending: Stop leaves behind what does not end in time, and
// what was left behind writes nothing more.  In a forked child there are none.
//
// Thread safety: all of it.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "sampler/row_sink.h"

namespace tdbg {

struct Moment {
  std::int64_t time_ns = 0;  // Monotonic.
  bool is_late = false;
  bool is_last = false;  // The threads end.
};

class SamplingThreads;

class Source {
 public:
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  virtual ~Source() = default;

  // Called once, on the thread; false if there is nothing to sample.
  virtual bool Prepare(SamplingThreads& /*threads*/) { return true; }
  virtual void Sample(const Moment& moment, RowBuffer* rows) = 0;
};

class SamplingThreads : public std::enable_shared_from_this<SamplingThreads> {
 public:
  // In a row that a source throws (no memory) before its thread gives up.
  static constexpr int kMaxFaults = 10;

  SamplingThreads(std::int64_t interval_ns, std::shared_ptr<RowGate> gate)
      : interval_ns_(interval_ns), gate_(std::move(gate)) {}

  // Starts a thread that is called `name`.  False if the system has none.
  // REQUIRES: a shared_ptr owns this.
  bool Start(const std::string& name, std::unique_ptr<Source> source);
  // Ends all threads after a last sample.  False if one did not end in time.
  bool Stop(std::chrono::milliseconds timeout);

  // Samples at another interval from now on.  REQUIRES: interval_ns > 0.
  void SetInterval(std::int64_t interval_ns);

  // Waits until then, or for Stop: whether that was called.
  bool WaitUntil(std::int64_t monotonic_ns);

  // Processor time of the threads so far, and samples that they took.
  [[nodiscard]] std::int64_t cpu_ns() const { return cpu_ns_; }
  [[nodiscard]] std::int64_t n_samples() const { return n_samples_; }

 private:
  struct Job;
  static void* Main(void* job);
  void Run(Source* source);
  bool SampleOnce(Source* source, const Moment& moment, RowBuffer* rows);
  // As WaitUntil, but returns at once when the interval is not the one that the
  // caller last saw: it may have changed while the caller took its sample.
  bool WaitForSample(std::int64_t due_ns, std::int64_t interval_ns);

  std::atomic<std::int64_t> interval_ns_;
  const std::shared_ptr<RowGate> gate_;
  std::atomic<std::int64_t> cpu_ns_{0};
  std::atomic<std::int64_t> n_samples_{0};

  Mutex mutex_;
  std::condition_variable_any changed_;
  bool stops_ TDBG_GUARDED_BY(mutex_) = false;
  int n_running_ TDBG_GUARDED_BY(mutex_) = 0;
};

}  // namespace tdbg
