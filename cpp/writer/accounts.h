// Accounts says what became of every record that was offered, and LossLog which
// losses the data does not tell of yet.
//
// Implements docs/format.md, "gap" and the counts of "step".  Every record
// offered ends in exactly one of written, dropped, failed.
//
// Thread safety: Accounts, all of it; LossLog, none.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "format/record.h"
#include "writer/writer.h"

namespace tdbg {

// One record as its producer offered it.
struct Offer {
  std::int64_t step = kNoStep;
  std::uint64_t n_bytes = 0;
  RecordType type = RecordType::kPad;
};

// The bit that stands for records of this type in Gap::what.
[[nodiscard]] std::uint32_t GapBit(RecordType type);

// Losses by reason and step.  Bounded: beyond kMaxEntries, runs of neighboring
// steps of one reason become ranges; where that does not help, all steps of a
// reason become one.  The counts stay exact.
class LossLog {
 public:
  static constexpr std::size_t kMaxEntries = 1024;

  void Add(GapReason reason, const Offer& offer, std::uint64_t n_records = 1);
  void Add(const Gap& gap);
  // All of them, and forgets them.
  std::vector<Gap> Take();
  [[nodiscard]] bool empty() const { return gaps_.empty(); }

 private:
  using Gaps = std::map<std::pair<GapReason, std::int64_t>, Gap>;
  void MergeNeighbors();
  void MergeAll();

  // By reason and first step.
  Gaps gaps_;
};

class Accounts {
 public:
  // Steps that never end are forgotten beyond this number, oldest first.
  static constexpr std::size_t kMaxSteps = 4096;

  struct StepCounts {
    std::uint64_t offered = 0;
    std::uint64_t dropped = 0;
    std::uint64_t sampled = 0;  // Of the dropped.
  };

  // By the producers, one of them for each record that they offer.  Taken goes
  // before the record is handed to the thread.  When the record closes a step,
  // Taken returns what the step had, and both forget it.
  StepCounts Taken(const Offer& offer);
  void Dropped(const Offer& offer, GapReason reason,
               std::uint64_t n_records = 1);

  // By the writer thread, which keeps its own log: each settles taken records.
  void DroppedLater(const Offer& offer, GapReason reason);
  void Written(std::uint64_t n_records, std::uint64_t n_bytes);
  void Failed(const Offer& offer);

  // The producers' losses since the last call.
  std::vector<Gap> TakeLosses();

  void SetState(WriterState state);
  void AddShard();
  void AddFileBytes(std::uint64_t n);
  void AddIoError(int error);

  // Settles all that is not settled as failed, also what is taken from now on,
  // and counts every later change by the writer thread for nothing: it was
  // left behind.
  void WriteOff();

  [[nodiscard]] Counters counters();
  // Records lost so far, without those that were refused.  Takes no lock.
  [[nodiscard]] std::uint64_t n_lost() const {
    return n_lost_.load(std::memory_order_relaxed);
  }

 private:
  StepCounts& CountsOf(std::int64_t step) TDBG_REQUIRES(mutex_);
  StepCounts TakeStep(std::int64_t step) TDBG_REQUIRES(mutex_);
  void CountLoss(const Offer& offer, GapReason reason, std::uint64_t n_records)
      TDBG_REQUIRES(mutex_);

  // Written with mutex_ held.
  std::atomic<std::uint64_t> n_lost_{0};
  std::atomic<bool> has_losses_{false};

  Mutex mutex_;
  Counters counters_ TDBG_GUARDED_BY(mutex_);
  std::map<std::int64_t, StepCounts> steps_ TDBG_GUARDED_BY(mutex_);
  // The step that was counted last; null or an entry of steps_.
  std::pair<const std::int64_t, StepCounts>* last_ TDBG_GUARDED_BY(mutex_) =
      nullptr;
  LossLog losses_ TDBG_GUARDED_BY(mutex_);
  bool written_off_ TDBG_GUARDED_BY(mutex_) = false;
};

}  // namespace tdbg
