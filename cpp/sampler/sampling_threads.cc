#include "sampler/sampling_threads.h"

#include <pthread.h>
#include <signal.h>

#include <ctime>
#include <utility>

#include "base/clock.h"
#include "sampler/pacer.h"

namespace tdbg {

namespace {

// The clock of steady_clock is the monotonic one.
std::chrono::steady_clock::time_point TimePoint(std::int64_t monotonic_ns) {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(monotonic_ns));
}

}  // namespace

struct SamplingThreads::Job {
  std::shared_ptr<SamplingThreads> threads;
  std::unique_ptr<Source> source;
  std::string name;
};

bool SamplingThreads::Start(const std::string& name,
                            std::unique_ptr<Source> source) {
  {
    MutexLock lock(mutex_);
    if (stops_) return false;
    ++n_running_;
  }
  auto job = std::make_unique<Job>(
      Job{shared_from_this(), std::move(source), name.substr(0, 15)});
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const bool started =
      pthread_create(&thread, &attributes, &Main, job.get()) == 0;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) {
    (void)job.release();  // The thread owns it.
  } else {
    MutexLock lock(mutex_);
    --n_running_;
  }
  return started;
}

void* SamplingThreads::Main(void* argument) {
  std::unique_ptr<Job> job(static_cast<Job*>(argument));
  const std::shared_ptr<SamplingThreads> threads = job->threads;
#if defined(__linux__)
  pthread_setname_np(pthread_self(), job->name.c_str());
#endif
  try {
    threads->Run(job->source.get());
  } catch (...) {
    // Memory ran out: what has been sampled so far is all there is.
  }
  job.reset();  // Before anybody is told that the thread has ended.
  MutexLock lock(threads->mutex_);
  --threads->n_running_;
  threads->changed_.notify_all();
  return nullptr;
}

void SamplingThreads::Run(Source* source) {
  if (!source->Prepare(*this)) return;
  RowBuffer rows(gate_);
  std::int64_t interval_ns = interval_ns_;
  Pacer pacer(MonotonicNs(), interval_ns);
  int n_faults = 0;
  std::int64_t cpu_before = 0;
  bool is_last = false;
  while (n_faults < kMaxFaults) {
    const std::int64_t now = MonotonicNs();
    const bool is_late = pacer.Take(now) && !is_last;
    const Moment moment{.time_ns = now, .is_late = is_late, .is_last = is_last};
    n_faults = SampleOnce(source, moment, &rows) ? 0 : n_faults + 1;
    const std::int64_t cpu = ReadClock(CLOCK_THREAD_CPUTIME_ID);
    cpu_ns_ += cpu - cpu_before;
    cpu_before = cpu;
    if (is_last) return;
    is_last = WaitForSample(pacer.due_ns(), interval_ns);
    if (interval_ns != interval_ns_) {
      interval_ns = interval_ns_;
      pacer = Pacer(MonotonicNs(), interval_ns);
    }
  }
}

bool SamplingThreads::SampleOnce(Source* source, const Moment& moment,
                                 RowBuffer* rows) {
  try {
    source->Sample(moment, rows);
    ++n_samples_;
    if (moment.is_last) {
      rows->WriteAll();
    } else {
      rows->WriteDue(moment.time_ns, interval_ns_);
    }
    return true;
  } catch (...) {
    return false;
  }
}

void SamplingThreads::SetInterval(std::int64_t interval_ns) {
  MutexLock lock(mutex_);
  interval_ns_ = interval_ns;
  changed_.notify_all();
}

bool SamplingThreads::WaitUntil(std::int64_t monotonic_ns) {
  MutexLock lock(mutex_);
  while (!stops_) {
    if (changed_.wait_until(lock, TimePoint(monotonic_ns)) ==
        std::cv_status::timeout) {
      break;
    }
  }
  return stops_;
}

bool SamplingThreads::WaitForSample(std::int64_t due_ns,
                                    std::int64_t interval_ns) {
  MutexLock lock(mutex_);
  while (!stops_ && interval_ns == interval_ns_) {
    if (changed_.wait_until(lock, TimePoint(due_ns)) ==
        std::cv_status::timeout) {
      break;
    }
  }
  return stops_;
}

bool SamplingThreads::Stop(std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  stops_ = true;
  changed_.notify_all();
  while (n_running_ > 0) {
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) break;
  }
  return n_running_ == 0;
}

}  // namespace tdbg
