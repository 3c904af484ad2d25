#include "writer/accounts.h"

#include <algorithm>

namespace tdbg {

std::uint32_t GapBit(RecordType type) {
  switch (type) {
    case RecordType::kRows:
      return 1;
    case RecordType::kTensor:
      return 2;
    case RecordType::kScalar:
      return 4;
    case RecordType::kStep:
      return 8;
    case RecordType::kEvent:
      return 16;
    case RecordType::kSpan:
      return 32;
    case RecordType::kHistogram:
      return 64;
    default:
      return 0;  // Nothing that a producer offers.
  }
}

void LossLog::Add(GapReason reason, const Offer& offer,
                  std::uint64_t n_records) {
  Add(Gap{.first_step = offer.step,
          .last_step = offer.step,
          .records = n_records,
          .bytes = offer.n_bytes,
          .reason = reason,
          .what = GapBit(offer.type)});
}

void LossLog::Add(const Gap& gap) {
  const auto [it, is_new] =
      gaps_.try_emplace({gap.reason, gap.first_step}, gap);
  if (is_new) {
    if (gaps_.size() > kMaxEntries) Merge();
    return;
  }
  Gap& known = it->second;
  known.last_step = std::max(known.last_step, gap.last_step);
  known.records += gap.records;
  known.bytes += gap.bytes;
  known.what |= gap.what;
}

void LossLog::Merge() {
  std::map<std::pair<GapReason, std::int64_t>, Gap> merged;
  for (const auto& [key, gap] : gaps_) {
    // Records that belong to no step stay apart, or a range would begin at -1.
    const auto bucket = std::pair(
        gap.reason, gap.first_step == kNoStep ? kNoStep : std::int64_t{0});
    const auto [it, is_new] = merged.try_emplace(bucket, gap);
    if (is_new) continue;
    Gap& range = it->second;
    range.first_step = std::min(range.first_step, gap.first_step);
    range.last_step = std::max(range.last_step, gap.last_step);
    range.records += gap.records;
    range.bytes += gap.bytes;
    range.what |= gap.what;
  }
  gaps_.clear();
  for (const auto& [key, gap] : merged) {
    gaps_.emplace(std::pair(gap.reason, gap.first_step), gap);
  }
}

std::vector<Gap> LossLog::Take() {
  std::vector<Gap> gaps;
  gaps.reserve(gaps_.size());
  for (const auto& [key, gap] : gaps_) gaps.push_back(gap);
  gaps_.clear();
  return gaps;
}

void Accounts::Offered(const Offer& offer, std::uint64_t n_records) {
  MutexLock lock(mutex_);
  counters_.offered += n_records;
  counters_.offered_bytes += offer.n_bytes;
  // The record that closes a step does not count itself.
  if (offer.step == kNoStep || offer.type == RecordType::kStep) return;
  steps_[offer.step].offered += n_records;
  if (steps_.size() > kMaxSteps) steps_.erase(steps_.begin());
}

void Accounts::Dropped(const Offer& offer, GapReason reason,
                       std::uint64_t n_records) {
  MutexLock lock(mutex_);
  counters_.dropped += n_records;
  counters_.dropped_bytes += offer.n_bytes;
  losses_.Add(reason, offer, n_records);
  if (offer.step == kNoStep || offer.type == RecordType::kStep) return;
  const auto step = steps_.find(offer.step);
  if (step != steps_.end()) step->second.dropped += n_records;
}

void Accounts::DroppedLater(const Offer& offer) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.dropped += 1;
  counters_.dropped_bytes += offer.n_bytes;
}

void Accounts::Written(std::uint64_t n_records, std::uint64_t n_bytes) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.written += n_records;
  counters_.written_bytes += n_bytes;
}

void Accounts::Failed(const Offer& offer) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.failed += 1;
  counters_.failed_bytes += offer.n_bytes;
}

Accounts::StepCounts Accounts::TakeStep(std::int64_t step) {
  MutexLock lock(mutex_);
  const auto it = steps_.find(step);
  if (it == steps_.end()) return {};
  const StepCounts counts = it->second;
  steps_.erase(it);
  return counts;
}

std::vector<Gap> Accounts::TakeLosses() {
  MutexLock lock(mutex_);
  return losses_.Take();
}

void Accounts::SetState(WriterState state) {
  MutexLock lock(mutex_);
  counters_.state = state;
}

void Accounts::AddShard() {
  MutexLock lock(mutex_);
  ++counters_.shards;
}

void Accounts::AddFileBytes(std::uint64_t n) {
  MutexLock lock(mutex_);
  counters_.file_bytes += n;
}

void Accounts::AddIoError(int error) {
  MutexLock lock(mutex_);
  ++counters_.io_errors;
  counters_.last_errno = error;
}

void Accounts::WriteOff() {
  MutexLock lock(mutex_);
  written_off_ = true;
  counters_.failed = counters_.offered - counters_.written - counters_.dropped;
  counters_.failed_bytes = counters_.offered_bytes - counters_.written_bytes -
                           counters_.dropped_bytes;
}

Counters Accounts::counters() {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace tdbg
