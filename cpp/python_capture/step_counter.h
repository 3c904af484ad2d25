// StepCounter counts the steps of a training that go exactly as one did before
// them: the same events in the same order.  It tells which event is the next
// one, and when that is over.  See docs/overhead.md, "Steps that are only
// counted".
//
// Thread safety: call with the GIL held.
//
// Errors: none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sampler/step_clock.h"

namespace tdbg::python_capture {

class Fingerprints;

class StepCounter {
 public:
  // What was counted.
  struct Counted {
    std::int64_t n_steps = 0;      // That are over.
    std::int64_t duration_ns = 0;  // Theirs, from the first event to the last.
    std::size_t n_events = 0;      // Of the step under way.
  };

  // Which of the steps have numbers that whoever reports events notes.
  struct Noted {
    std::int64_t first = 0;  // The first one; the next step is 0.
    std::int64_t every = 0;  // Then each so many steps later; 0: none.

    [[nodiscard]] bool Has(std::int64_t step) const {
      return every > 0 && step >= first && (step - first) % every == 0;
    }
  };

  // Counts steps that have these events, by their addresses: at most `most` of
  // them, none of which begins at or after the time `until_ns` (MonotonicNs).
  // `handled` is the exception that is being handled, of which only the address
  // matters: who trains in the place of what has failed goes on handling it.
  // REQUIRES: there is an event.
  void Begin(std::vector<const void*> pattern, std::int64_t most,
             std::int64_t until_ns, Noted noted, const void* handled);

  // Whether the event is the next one of a step that is counted.
  bool GoesOn(const void* event);

  // Whether numbers of the step under way are noted; false between steps.
  [[nodiscard]] bool is_noted() const {
    return counted_.n_events > 0 && noted_.Has(counted_.n_steps);
  }
  // Whether a step is under way of which nothing is noted.
  [[nodiscard]] bool is_quiet() const {
    return counted_.n_events > 0 && !noted_.Has(counted_.n_steps);
  }
  // Whether no step is under way.
  [[nodiscard]] bool is_between_steps() const { return counted_.n_events == 0; }
  // Whether any step has such numbers.
  [[nodiscard]] bool has_noted() const { return noted_.every > 0; }

  // Counts no longer.
  Counted End();

  // Whether steps are being counted.
  [[nodiscard]] bool is_on() const { return is_on_; }
  [[nodiscard]] const Counted& counted() const { return counted_; }
  // Whether as many steps were counted, or as much time has passed, as may.
  [[nodiscard]] bool is_over() const { return left_ == 0; }
  // All events that were ever counted.
  [[nodiscard]] std::int64_t n_events() const { return n_events_; }

  // As it was given.
  [[nodiscard]] const void* handled() const { return handled_; }

  // Calls of modules under way, which whoever reports them counts.
  std::int64_t depth = 0;

  // Measures the phases of the steps that are counted; null: nobody asks.
  StepClock* clock = nullptr;

  // Hashes the samples of the steps that are counted; null: nobody asks.
  Fingerprints* fingerprints = nullptr;

 private:
  bool is_on_ = false;
  std::vector<const void*> pattern_;
  Counted counted_;
  Noted noted_;
  const void* handled_ = nullptr;
  std::int64_t left_ = 0;
  std::int64_t until_ns_ = 0;
  std::int64_t start_ns_ = 0;
  std::int64_t n_events_ = 0;
};

}  // namespace tdbg::python_capture
