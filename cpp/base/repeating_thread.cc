#include "base/repeating_thread.h"

#include <pthread.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/process.h"

namespace tdbg {
namespace {

// How long the owner waits for a call that is under way.
constexpr std::chrono::milliseconds kPatience{300};

}  // namespace

struct RepeatingThread::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::chrono::nanoseconds interval;
  bool is_over = false;    // The owner's wish.
  bool has_ended = false;  // The thread's answer.
  Work work;
  Work at_end;

  void Run() {
    std::unique_lock lock(mutex);
    while (!is_over) {
      if (changed.wait_for(lock, interval, [this] { return is_over; })) break;
      lock.unlock();
      work();
      lock.lock();
    }
    lock.unlock();
    if (at_end) at_end();
    lock.lock();
    has_ended = true;
    changed.notify_all();
  }
};

RepeatingThread::RepeatingThread(const char* name,
                                 std::chrono::nanoseconds interval, Work work,
                                 Work at_end)
    : fork_depth_(ForkDepth()), state_(std::make_shared<State>()) {
  state_->interval = interval;
  state_->work = std::move(work);
  state_->at_end = std::move(at_end);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([state = state_, own_name = std::string(name)] {
      pthread_setname_np(pthread_self(), own_name.c_str());
      state->Run();
    }).detach();
  } catch (const std::system_error&) {
    state_->has_ended = true;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RepeatingThread::~RepeatingThread() {
  if (ForkDepth() != fork_depth_) {
    // A copy whose mutex may be locked by a thread that is not here: leave it.
    static_cast<void>(new std::shared_ptr<State>(std::move(state_)));
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->is_over = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience,
                           [this] { return state_->has_ended; });
}

}  // namespace tdbg
