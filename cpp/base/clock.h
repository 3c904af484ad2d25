// The clocks of the system, in nanoseconds.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <ctime>

namespace tdbg {

[[nodiscard]] inline std::int64_t ReadClock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Since 1970 UTC; jumps when somebody sets the clock.
[[nodiscard]] inline std::int64_t WallNs() { return ReadClock(CLOCK_REALTIME); }

// Never jumps; what timeouts are measured with.
[[nodiscard]] inline std::int64_t MonotonicNs() {
  return ReadClock(CLOCK_MONOTONIC);
}

// Like the monotonic one, and goes on while the machine sleeps; the same in all
// processes of one boot.
[[nodiscard]] inline std::int64_t BootNs() { return ReadClock(CLOCK_BOOTTIME); }

}  // namespace tdbg
