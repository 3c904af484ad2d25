// A thread that calls a function again and again, at an interval.
//
// It has all signals blocked.  The object that started it may end at any time:
// it waits a moment for a call under way, and no longer, because a file system
// that hangs may keep that call forever.  So `work` must own all that it uses.
// In a forked child there is no such thread, and the object does nothing.
//
// Thread safety: none; one owner.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace tdbg {

class RepeatingThread {
 public:
  using Work = std::function<void()>;

  // Starts the thread; `name` has at most 15 characters.  Nothing is called
  // where the system gives no thread.
  // REQUIRES: `work` and `at_end` throw nothing.
  RepeatingThread(const char* name, std::chrono::nanoseconds interval,
                  Work work, Work at_end = {});
  ~RepeatingThread();
  RepeatingThread(const RepeatingThread&) = delete;
  RepeatingThread& operator=(const RepeatingThread&) = delete;

 private:
  struct State;

  std::uint64_t fork_depth_;
  std::shared_ptr<State> state_;
};

}  // namespace tdbg
