// When samples are due: on a grid of equal intervals.  Those that were missed
// are left out, so that a thread that could not run does not catch up in a
// burst.
//
// Thread safety: a value.

#pragma once

#include <cstdint>

namespace tdbg {

class Pacer {
 public:
  // The first sample is due at `first_ns`.  REQUIRES: interval_ns > 0.
  Pacer(std::int64_t first_ns, std::int64_t interval_ns)
      : due_ns_(first_ns), interval_ns_(interval_ns) {}

  [[nodiscard]] std::int64_t due_ns() const { return due_ns_; }

  // A sample is taken now: whether that is more than half an interval later
  // than it was due.  The next one is due at the next point of the grid.
  bool Take(std::int64_t now_ns) {
    const std::int64_t late_ns = now_ns - due_ns_;
    due_ns_ += interval_ns_;
    if (late_ns >= interval_ns_) {
      due_ns_ += late_ns / interval_ns_ * interval_ns_;
    }
    return late_ns > interval_ns_ / 2;
  }

 private:
  std::int64_t due_ns_;
  std::int64_t interval_ns_;
};

}  // namespace tdbg
