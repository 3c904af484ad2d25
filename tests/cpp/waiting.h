// Waits for what another thread does, for as long as a loaded machine may need.

#pragma once

#include <chrono>
#include <thread>

namespace tdbg::testing {

// Whether `condition` holds before a test is given up.
template <typename Condition>
bool Until(Condition condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace tdbg::testing
