// Memory of the host, and how long its processes wait for it and for others:
// /proc/meminfo, /proc/vmstat and the pressure stall files.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstdint>
#include <string_view>

#include "sampler/text.h"

namespace tdbg {

struct HostMemory {
  std::uint64_t total = kNotMeasured;  // Bytes.
  std::uint64_t available = kNotMeasured;
};
[[nodiscard]] HostMemory ParseHostMemory(std::string_view text);

struct Paging {
  // Totals since boot.
  std::uint64_t swap_in_bytes = kNotMeasured;
  std::uint64_t swap_out_bytes = kNotMeasured;
  std::uint64_t major_faults = kNotMeasured;
};
[[nodiscard]] Paging ParsePaging(std::string_view text,
                                 std::uint64_t page_bytes);

struct Pressure {
  // Totals: some waited, and all did.
  std::uint64_t some_ns = kNotMeasured;
  std::uint64_t full_ns = kNotMeasured;
};
// Of /proc/pressure/* or *.pressure of a control group.
[[nodiscard]] Pressure ParsePressure(std::string_view text);

}  // namespace tdbg
