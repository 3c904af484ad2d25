#include "base/signal_timer.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace tdbg {

const void* SignalHandler(int signal) {
  struct sigaction action{};
  if (sigaction(signal, nullptr, &action) != 0) return nullptr;
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    return reinterpret_cast<const void*>(action.sa_sigaction);
  }
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
    return nullptr;
  }
  return reinterpret_cast<const void*>(action.sa_handler);
}

bool IsSignalFree(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_DFL;
}

SignalTimer::SignalTimer(int signal, std::chrono::nanoseconds interval)
    : state_(std::make_shared<State>()),
      thread_("tdbg-python", interval,
              [signal, handler = SignalHandler(signal), state = state_] {
                if (handler == nullptr || SignalHandler(signal) != handler) {
                  state->is_taken.store(true);
                  return;
                }
                if (state->is_under_way.exchange(true)) return;
                const pid_t process = ::getpid();
                // The number of the main thread is that of the process.
                ::syscall(SYS_tgkill, process, process, signal);
                state->n_sent.fetch_add(1);
              }) {}

}  // namespace tdbg
