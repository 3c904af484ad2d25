#include "writer/sampler.h"

#include <algorithm>

namespace tdbg {

Sampler::Answer Sampler::Ask(std::int64_t step, std::uint64_t n_bytes,
                             const Fill& fill) {
  MutexLock lock(mutex_);
  const auto [it, is_new] = open_.try_emplace(step);
  Step& known = it->second;
  known.n_bytes += n_bytes;
  if (is_new) {
    known.verdict = Decide(fill);
    ++(known.verdict == Verdict::kKeep ? counts_.kept : counts_.left_out);
    if (open_.size() > kMaxOpen) {
      auto oldest = open_.begin();
      if (oldest->first == step) ++oldest;
      open_.erase(oldest);
    }
  }
  return {.verdict = known.verdict, .may_wait = known.may_wait};
}

Sampler::Verdict Sampler::Decide(const Fill& fill) {
  const bool is_idle = fill.used < fill.capacity / 16;
  if (is_idle) interval_ = std::max<std::uint64_t>(1, interval_ / 2);
  if (++n_since_kept_ < interval_) return Verdict::kLeaveOut;
  // A step that is larger than the whole queue goes through an idle one.
  const bool fits = is_idle || step_bytes_ <= fill.capacity - fill.used;
  if (!fits || fill.used > fill.capacity / 2) {
    Lengthen();
    return Verdict::kLeaveOut;
  }
  if (fill.used < fill.capacity / 4) {
    interval_ = std::max<std::uint64_t>(1, interval_ / 2);
  }
  n_since_kept_ = 0;
  return Verdict::kKeep;
}

void Sampler::Lengthen() { interval_ = std::min(kMaxInterval, 2 * interval_); }

void Sampler::Waited(std::int64_t step, Duration waited, bool found_room) {
  MutexLock lock(mutex_);
  const auto it = open_.find(step);
  if (it == open_.end()) return;
  Step& known = it->second;
  known.may_wait = std::max(Duration::zero(), known.may_wait - waited);
  if (found_room || known.verdict != Verdict::kKeep) return;
  known.verdict = Verdict::kSpoilt;
  --counts_.kept;
  ++counts_.left_out;
  Lengthen();
}

void Sampler::EndStep(std::int64_t step) {
  MutexLock lock(mutex_);
  const auto it = open_.find(step);
  if (it == open_.end()) return;
  step_bytes_ = it->second.n_bytes;
  open_.erase(it);
}

Sampler::Counts Sampler::counts() {
  MutexLock lock(mutex_);
  return counts_;
}

std::uint64_t Sampler::interval() {
  MutexLock lock(mutex_);
  return interval_;
}

}  // namespace tdbg
