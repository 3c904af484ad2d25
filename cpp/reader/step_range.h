// StepRange is a range of steps, both ends included.
//
// Thread safety: a value.

#pragma once

#include <cstdint>
#include <limits>

namespace tdbg {

struct StepRange {
  std::int64_t first = 0;
  std::int64_t last = -1;

  [[nodiscard]] bool Includes(std::int64_t step) const {
    return first <= step && step <= last;
  }
};

inline constexpr StepRange kAllSteps = {
    std::numeric_limits<std::int64_t>::min(),
    std::numeric_limits<std::int64_t>::max()};

}  // namespace tdbg
