// Running a part of a test in a process of its own.

#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <thread>

namespace tdbg::testing {

// What became of a child.
struct Ending {
  bool timed_out = false;
  int exit_code = -1;  // Or -1 when a signal ended it.
  int signal = 0;
};

// Waits for `child`; kills it after `patience`.
inline Ending WaitFor(pid_t child, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  Ending ending;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (!ending.timed_out && std::chrono::steady_clock::now() > deadline) {
      ending.timed_out = true;
      ::kill(child, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  if (WIFEXITED(status)) ending.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ending.signal = WTERMSIG(status);
  return ending;
}

// Runs `body` in a child, which exits at once with what it returns.
inline pid_t Fork(const std::function<int()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const int code = body();
    std::fflush(nullptr);
    ::_exit(code);
  }
  return child;
}

}  // namespace tdbg::testing
