#include "base/worker_threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <new>

#include "base/mutex.h"
#include "base/process.h"

namespace tdbg {
namespace {

class WorkerThreads {
 public:
  // False where another call is being helped: nothing was done.
  bool Work(unsigned n_threads, void (*work)(void*), void* context) {
    if (busy_.test_and_set(std::memory_order_acquire)) return false;
    StartThreads(n_threads - 1);
    {
      MutexLock lock(mutex_);
      work_ = work;
      context_ = context;
      n_wanted_ = n_threads - 1;
      ++call_;
    }
    wake_.notify_all();
    work(context);
    {
      MutexLock lock(mutex_);
      n_wanted_ = 0;  // Whoever wakes now comes too late.
      while (n_working_ > 0) done_.wait(lock);
    }
    busy_.clear(std::memory_order_release);
    return true;
  }

  // How deep in forks the threads live.
  [[nodiscard]] std::uint64_t fork_depth() const { return fork_depth_; }

 private:
  // Only by the thread that holds busy_.
  void StartThreads(unsigned n_wanted) {
    if (n_started_ >= n_wanted) return;
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (n_started_ < n_wanted) {
      pthread_t thread;
      if (pthread_create(&thread, &attributes, &WorkerThreads::Main, this) !=
          0) {
        break;  // There are fewer then.
      }
      ++n_started_;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  static void* Main(void* self) {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "tdbg-reduce");
#endif
    static_cast<WorkerThreads*>(self)->Help();
    return nullptr;
  }

  [[noreturn]] void Help() {
    std::uint64_t helped = 0;  // The last call.
    MutexLock lock(mutex_);
    for (;;) {
      while (n_wanted_ == 0 || call_ == helped) wake_.wait(lock);
      helped = call_;
      --n_wanted_;
      ++n_working_;
      const auto work = work_;
      void* const context = context_;
      lock.unlock();
      work(context);
      lock.lock();
      if (--n_working_ == 0) done_.notify_all();
    }
  }

  const std::uint64_t fork_depth_ = ForkDepth();
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  unsigned n_started_ = 0;  // Guarded by busy_.

  Mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable_any done_;
  void (*work_)(void*) TDBG_GUARDED_BY(mutex_) = nullptr;
  void* context_ TDBG_GUARDED_BY(mutex_) = nullptr;
  std::uint64_t call_ TDBG_GUARDED_BY(mutex_) = 0;
  unsigned n_wanted_ TDBG_GUARDED_BY(mutex_) = 0;
  unsigned n_working_ TDBG_GUARDED_BY(mutex_) = 0;
};

// Never freed: its threads outlive everything.  Atomic and not a static of a
// function, because a child forked in the middle of that one's construction
// would wait for it forever.
std::atomic<WorkerThreads*> threads{nullptr};

WorkerThreads* Threads() {
  WorkerThreads* known = threads.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  auto* created = new (std::nothrow) WorkerThreads;
  if (created == nullptr) return nullptr;
  if (threads.compare_exchange_strong(known, created,
                                      std::memory_order_acq_rel)) {
    return created;
  }
  delete created;  // Another one came first; this one has no threads yet.
  return known;
}

}  // namespace

void WorkOnThreads(unsigned n_threads, void (*work)(void* context),
                   void* context) {
  n_threads = std::min(n_threads, kMaxThreads);
  if (n_threads > 1) {
    WorkerThreads* const helpers = Threads();
    if (helpers != nullptr && helpers->fork_depth() == ForkDepth() &&
        helpers->Work(n_threads, work, context)) {
      return;
    }
  }
  work(context);
}

}  // namespace tdbg
