#include "writer/record_counters.h"

#include <algorithm>
#include <utility>

namespace tdbg {
namespace {

void Join(const Gap& gap, Gap* range) {
  range->last_step = std::max(range->last_step, gap.last_step);
  range->records += gap.records;
  range->bytes += gap.bytes;
  range->what |= gap.what;
  if (gap.end_sequence == 0) return;
  range->first_sequence =
      range->end_sequence == 0
          ? gap.first_sequence
          : std::min(range->first_sequence, gap.first_sequence);
  range->end_sequence = std::max(range->end_sequence, gap.end_sequence);
}

// The record that closes a step is not counted in it.
bool IsOfAStep(const Offer& offer) {
  return offer.step != kNoStep && offer.type != RecordType::kStep;
}

}  // namespace

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
    case RecordType::kSamples:
      return 128;
    case RecordType::kPad:
    case RecordType::kDefinition:
    case RecordType::kGap:
    case RecordType::kIndex:
    case RecordType::kEnd:
      break;  // Nothing that a producer offers.
  }
  return 0;
}

void DropLog::Add(GapReason reason, const Offer& offer,
                  std::uint64_t n_records) {
  Add(Gap{.first_step = offer.step,
          .last_step = offer.step,
          .records = n_records,
          .bytes = offer.n_bytes,
          .reason = reason,
          .what = GapBit(offer.type)});
}

void DropLog::Add(const Gap& gap) {
  const auto [it, is_new] =
      gaps_.try_emplace({gap.reason, gap.first_step}, gap);
  if (!is_new) {
    Join(gap, &it->second);
    return;
  }
  if (gaps_.size() <= kMaxEntries) return;
  MergeNeighbors();
  if (gaps_.size() > kMaxEntries / 2) MergeAll();
}

void DropLog::MergeNeighbors() {
  Gaps merged;
  Gap* last = nullptr;
  for (const auto& [key, gap] : gaps_) {
    if (last != nullptr && last->reason == gap.reason &&
        last->first_step != kNoStep && gap.first_step <= last->last_step + 1) {
      Join(gap, last);
    } else {
      last = &merged.emplace(key, gap).first->second;
    }
  }
  gaps_ = std::move(merged);
}

void DropLog::MergeAll() {
  Gaps merged;
  Gap* last = nullptr;
  for (const auto& [key, gap] : gaps_) {
    // Records that belong to no step stay apart, or a range would begin at -1.
    if (last != nullptr && last->reason == gap.reason &&
        last->first_step != kNoStep) {
      Join(gap, last);
    } else {
      last = &merged.emplace(key, gap).first->second;
    }
  }
  gaps_ = std::move(merged);
}

std::vector<Gap> DropLog::Take() {
  std::vector<Gap> gaps;
  gaps.reserve(gaps_.size());
  for (const auto& [key, gap] : gaps_) gaps.push_back(gap);
  gaps_.clear();
  return gaps;
}

RecordCounters::StepCounts& RecordCounters::CountsOf(std::int64_t step) {
  if (last_ != nullptr && last_->first == step) return last_->second;
  last_ = &*steps_.try_emplace(step).first;
  if (steps_.size() > kMaxSteps) {
    auto oldest = steps_.begin();
    if (oldest->first == step) ++oldest;
    steps_.erase(oldest);
  }
  return last_->second;
}

RecordCounters::StepCounts RecordCounters::TakeStep(std::int64_t step) {
  const auto it = steps_.find(step);
  if (it == steps_.end()) return {};
  const StepCounts counts = it->second;
  if (last_ == &*it) last_ = nullptr;
  steps_.erase(it);
  return counts;
}

void RecordCounters::CountLoss(const Offer& offer, GapReason reason,
                               std::uint64_t n_records) {
  Counters::Loss& loss = counters_.losses[static_cast<std::size_t>(reason)];
  loss.records += n_records;
  loss.bytes += offer.n_bytes;
  loss.what |= GapBit(offer.type);
  if (reason == GapReason::kRefused) return;
  n_lost_.fetch_add(n_records, std::memory_order_relaxed);
}

RecordCounters::StepCounts RecordCounters::Accepted(const Offer& offer) {
  MutexLock lock(mutex_);
  counters_.offered += 1;
  counters_.offered_bytes += offer.n_bytes;
  if (written_off_) {
    counters_.failed += 1;
    counters_.failed_bytes += offer.n_bytes;
    CountLoss(offer, GapReason::kIoError, 1);
  }
  if (IsOfAStep(offer)) ++CountsOf(offer.step).offered;
  return offer.type == RecordType::kStep ? TakeStep(offer.step) : StepCounts();
}

void RecordCounters::Dropped(const Offer& offer, GapReason reason,
                             std::uint64_t n_records) {
  MutexLock lock(mutex_);
  counters_.offered += n_records;
  counters_.offered_bytes += offer.n_bytes;
  counters_.dropped += n_records;
  counters_.dropped_bytes += offer.n_bytes;
  CountLoss(offer, reason, n_records);
  drop_log_.Add(reason, offer, n_records);
  has_losses_.store(true, std::memory_order_release);
  if (IsOfAStep(offer)) {
    StepCounts& counts = CountsOf(offer.step);
    counts.offered += n_records;
    counts.dropped += n_records;
    if (reason == GapReason::kSampled) counts.sampled += n_records;
  } else if (offer.type == RecordType::kStep) {
    (void)TakeStep(offer.step);
  }
}

void RecordCounters::DroppedLater(const Offer& offer, GapReason reason) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.dropped += 1;
  counters_.dropped_bytes += offer.n_bytes;
  CountLoss(offer, reason, 1);
}

void RecordCounters::Written(std::uint64_t n_records, std::uint64_t n_bytes) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.written += n_records;
  counters_.written_bytes += n_bytes;
}

void RecordCounters::Failed(const Offer& offer) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.failed += 1;
  counters_.failed_bytes += offer.n_bytes;
  CountLoss(offer, GapReason::kIoError, 1);
}

void RecordCounters::Unwritten(const Gap& lost) {
  MutexLock lock(mutex_);
  if (written_off_) return;
  counters_.written -= lost.records;
  counters_.written_bytes -= lost.bytes;
  counters_.failed += lost.records;
  counters_.failed_bytes += lost.bytes;
  Counters::Loss& loss =
      counters_.losses[static_cast<std::size_t>(GapReason::kIoError)];
  loss.records += lost.records;
  loss.bytes += lost.bytes;
  loss.what |= lost.what;
  n_lost_.fetch_add(lost.records, std::memory_order_relaxed);
}

std::vector<Gap> RecordCounters::TakeLosses() {
  // Set before the record that the caller goes by was handed over, so it is
  // seen here.
  if (!has_losses_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  has_losses_.store(false, std::memory_order_relaxed);
  return drop_log_.Take();
}

void RecordCounters::LostOf(std::span<const std::uint32_t> definitions,
                            GapReason reason, std::int64_t step,
                            std::uint64_t n_records) {
  if (definitions.empty()) return;
  MutexLock lock(mutex_);
  lost_tensors_.Add(reason, step, definitions, n_records);
  has_lost_tensors_.store(true, std::memory_order_release);
}

std::vector<LostForReason> RecordCounters::TakeLostTensors(bool all) {
  if (!has_lost_tensors_.load(std::memory_order_acquire)) return {};
  MutexLock lock(mutex_);
  return lost_tensors_.TakeNews(all);
}

void RecordCounters::ForgetLostTensors() {
  MutexLock lock(mutex_);
  lost_tensors_.Forget();
}

std::vector<LostForReason> RecordCounters::lost_tensors() {
  MutexLock lock(mutex_);
  return lost_tensors_.All();
}

void RecordCounters::SetState(WriterState state) {
  MutexLock lock(mutex_);
  counters_.state = state;
}

void RecordCounters::AddShard() {
  MutexLock lock(mutex_);
  ++counters_.shards;
}

void RecordCounters::AddFileBytes(std::uint64_t n) {
  MutexLock lock(mutex_);
  counters_.file_bytes += n;
}

void RecordCounters::AddIoError(int error) {
  MutexLock lock(mutex_);
  ++counters_.io_errors;
  counters_.last_errno = error;
}

void RecordCounters::WriteOff() {
  MutexLock lock(mutex_);
  written_off_ = true;
  const std::uint64_t failed_before = counters_.failed;
  counters_.failed = counters_.offered - counters_.written - counters_.dropped;
  counters_.failed_bytes = counters_.offered_bytes - counters_.written_bytes -
                           counters_.dropped_bytes;
  const std::uint64_t n = counters_.failed - failed_before;
  counters_.losses[static_cast<std::size_t>(GapReason::kIoError)].records += n;
  n_lost_.fetch_add(n, std::memory_order_relaxed);
}

Counters RecordCounters::totals() {
  MutexLock lock(mutex_);
  return counters_;
}

}  // namespace tdbg
