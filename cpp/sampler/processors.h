// How busy the cores of the host are, from /proc/stat.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sampler/text.h"

namespace tdbg {

// Time of one core, or of all, since boot, in ticks.  A guest's time is part of
// `user`, interrupts are part of `system`.
struct CoreTicks {
  std::uint64_t user = kNotMeasured;  // kNotMeasured: the core is offline.
  std::uint64_t system = 0;
  std::uint64_t idle = 0;
  std::uint64_t iowait = 0;
  std::uint64_t steal = 0;

  [[nodiscard]] bool is_known() const { return user != kNotMeasured; }
};

struct ProcessorTicks {
  // More cores than any machine has; what numbers a core beyond is ignored.
  static constexpr std::size_t kMaxCores = 8192;

  CoreTicks all;
  std::vector<CoreTicks> cores;  // By the number of the core.
  std::uint32_t processes_running = kNotMeasured32;
  std::uint32_t processes_blocked = kNotMeasured32;
};

// REQUIRES: `text` is what /proc/stat holds, or anything else.
void ParseProcessorTicks(std::string_view text, ProcessorTicks* ticks);

// Shares of the time between two readings; NaN where there was none.  `busy`
// is all that is neither idle nor waiting for a device, steal included.
struct CoreShares {
  float user, system, iowait, steal, busy;
};
[[nodiscard]] CoreShares SharesBetween(const CoreTicks& before,
                                       const CoreTicks& now);

// A share in half per cents, as the table `core` holds it.
[[nodiscard]] std::uint8_t HalfPercents(float share);

}  // namespace tdbg
