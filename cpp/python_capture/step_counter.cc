#include "python_capture/step_counter.h"

#include <utility>

#include "base/clock.h"

namespace tdbg::python_capture {

void StepCounter::Begin(std::vector<const void*> pattern, std::int64_t most,
                        std::int64_t until_ns, Noted noted,
                        const void* handled) {
  pattern_ = std::move(pattern);
  handled_ = handled;
  counted_ = {};
  noted_ = noted;
  left_ = most;
  until_ns_ = until_ns;
  depth = 0;
  is_on_ = true;
}

bool StepCounter::GoesOn(const void* event) {
  if (!is_on_ || pattern_[counted_.n_events] != event) return false;
  if (counted_.n_events == 0) {
    const std::int64_t now_ns = MonotonicNs();
    if (now_ns >= until_ns_) left_ = 0;
    if (left_ == 0) return false;
    start_ns_ = now_ns;
  }
  ++n_events_;
  if (++counted_.n_events == pattern_.size()) {
    counted_.duration_ns += MonotonicNs() - start_ns_;
    counted_.n_events = 0;
    ++counted_.n_steps;
    --left_;
  }
  return true;
}

StepCounter::Counted StepCounter::End() {
  is_on_ = false;
  depth = 0;
  return std::exchange(counted_, {});
}

}  // namespace tdbg::python_capture
