// Sampler decides, under Overflow::kSample, of which steps the tensors are
// kept.
//
// Implements docs/overhead.md, "sample".  A step is decided when its first
// tensor is offered, as a whole: every n-th step that has tensors is kept.  n
// doubles when the next one is due and the queue is more than half full or the
// step would not fit; it halves when one is kept and the queue is less than a
// quarter full, and at every step while it is all but empty.
//
// Thread safety: all of it.
//
// Errors: none.

#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "base/mutex.h"

namespace tdbg {

class Sampler {
 public:
  using Duration = std::chrono::nanoseconds;

  // At most one step in so many is kept.
  static constexpr std::uint64_t kMaxInterval = 1ULL << 20;
  // Steps that never end are forgotten beyond this number, oldest first.
  static constexpr std::size_t kMaxOpen = 256;
  // How long the tensors of one kept step may wait for room, all together.
  static constexpr std::chrono::milliseconds kPatience{1000};

  struct Fill {
    std::uint64_t used = 0;
    std::uint64_t capacity = 0;
  };
  enum class Verdict : std::uint8_t {
    kKeep,
    kLeaveOut,
    kSpoilt,  // It was to be kept, but did not fit.
  };
  struct Answer {
    Verdict verdict = Verdict::kKeep;
    Duration may_wait{};
  };
  // Counts of steps with tensors.  A spoilt step counts as left out.
  struct Counts {
    std::uint64_t kept = 0;
    std::uint64_t left_out = 0;
  };

  // Decides whether a tensor of `n_bytes` of `step` is kept.
  Answer Ask(std::int64_t step, std::uint64_t n_bytes, const Fill& fill);
  // A tensor of a step that is kept waited so long, and found room or not.
  void Waited(std::int64_t step, Duration waited, bool found_room);
  // No more tensors of the step will come.
  void EndStep(std::int64_t step);

  [[nodiscard]] Counts counts();
  [[nodiscard]] std::uint64_t interval();

 private:
  struct Step {
    std::uint64_t n_bytes = 0;  // Offered.
    Duration may_wait = kPatience;
    Verdict verdict = Verdict::kKeep;
  };
  Verdict Decide(const Fill& fill) TDBG_REQUIRES(mutex_);
  void Lengthen() TDBG_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::int64_t, Step> open_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t interval_ TDBG_GUARDED_BY(mutex_) = 1;
  std::uint64_t n_since_kept_ TDBG_GUARDED_BY(mutex_) = 0;
  // Bytes of the last step that ended: what the next one is expected to need.
  std::uint64_t step_bytes_ TDBG_GUARDED_BY(mutex_) = 0;
  Counts counts_ TDBG_GUARDED_BY(mutex_);
};

}  // namespace tdbg
