// What the kernel says of one process in /proc/<pid>: stat, schedstat and io.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstdint>
#include <string_view>

#include "sampler/text.h"

namespace tdbg {

struct ProcessStat {
  char state =
      '\0';  // R, S, D, Z, T, ...; '\0': the text is none of a process.
  std::uint64_t major_faults = kNotMeasured;
  std::uint64_t cpu_ticks = kNotMeasured;  // Of all its threads.
  std::uint64_t threads = kNotMeasured;
  std::uint64_t start_ticks = kNotMeasured;  // Since boot.
  std::uint64_t resident_pages = kNotMeasured;
};
// The process's name may hold anything, parentheses and lines too.
[[nodiscard]] ProcessStat ParseProcessStat(std::string_view text);

// Of the main thread: on a core, and waiting for one.
struct RunTimes {
  std::uint64_t run_ns = kNotMeasured;
  std::uint64_t queued_ns = kNotMeasured;
};
[[nodiscard]] RunTimes ParseRunTimes(std::string_view text);

struct ProcessBytes {
  std::uint64_t all_read = kNotMeasured;  // By system calls.
  std::uint64_t read = kNotMeasured;      // From devices.
  std::uint64_t written = kNotMeasured;   // Towards devices.
};
[[nodiscard]] ProcessBytes ParseProcessBytes(std::string_view text);

}  // namespace tdbg
