// Sends a signal to the main thread of this process at an interval, as long as
// the handler of the signal is the one that was there at the beginning.
//
// Thread safety: none; one owner.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "base/repeating_thread.h"

namespace tdbg {

class SignalTimer {
 public:
  // REQUIRES: `signal` is handled by a function.
  SignalTimer(int signal, std::chrono::nanoseconds interval);

  // Signals sent so far.
  [[nodiscard]] std::uint64_t n_sent() const { return *n_sent_; }
  // Whether somebody else has taken the signal, so that none is sent any more.
  [[nodiscard]] bool is_taken() const { return *is_taken_; }
  void SetInterval(std::chrono::nanoseconds interval) {
    thread_.SetInterval(interval);
  }

 private:
  std::shared_ptr<std::atomic<std::uint64_t>> n_sent_;
  std::shared_ptr<std::atomic<bool>> is_taken_;
  RepeatingThread thread_;
};

// The function that handles a signal; nullptr: there is none.
[[nodiscard]] void (*SignalHandler(int signal))(int);
// Whether nobody handles or ignores a signal.
[[nodiscard]] bool IsSignalFree(int signal);

}  // namespace tdbg
