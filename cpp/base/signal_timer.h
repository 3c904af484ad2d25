// Sends a signal to the main thread of this process at an interval, as long as
// the handler of the signal is the one that was there at the beginning.
//
// The handler reports that it has run; until then no further signal is sent.
// So a call that takes long is interrupted once, and somebody who takes the
// signal over gets one.
//
// Thread safety: the owner's thread; Handled() may be called from a handler.

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

  // The latest signal was handled.
  void Handled() { state_->is_under_way.store(false); }
  // Signals sent so far.
  [[nodiscard]] std::uint64_t n_sent() const { return state_->n_sent; }
  // Whether somebody else has taken the signal, so that none is sent any more.
  [[nodiscard]] bool is_taken() const { return state_->is_taken; }

 private:
  struct State {
    std::atomic<std::uint64_t> n_sent = 0;
    std::atomic<bool> is_taken = false;
    std::atomic<bool> is_under_way = false;
  };

  std::shared_ptr<State> state_;
  RepeatingThread thread_;
};

// The function that handles a signal, to be compared; nullptr: there is none.
[[nodiscard]] const void* SignalHandler(int signal);
// Whether nobody handles or ignores a signal.
[[nodiscard]] bool IsSignalFree(int signal);

}  // namespace tdbg
