// RecordCounters counts the outcome of every record that was offered; DropLog
// holds the losses that no `gap` record in the data mentions yet.
//
// Implements docs/format.md, "gap" and the counts of "step".  Every record
// offered ends in exactly one of written, dropped, failed.
//
// Thread safety: RecordCounters, all of it; DropLog, none.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "format/record.h"
#include "writer/lost_tensors.h"
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
class DropLog {
 public:
  static constexpr std::size_t kMaxEntries = 1024;

  void Add(GapReason reason, const Offer& offer, std::uint64_t n_records = 1);
  void Add(const Gap& gap);
  // Returns all losses and empties the log.
  std::vector<Gap> Take();
  [[nodiscard]] bool empty() const { return gaps_.empty(); }

 private:
  using Gaps = std::map<std::pair<GapReason, std::int64_t>, Gap>;
  void MergeNeighbors();
  void MergeAll();

  // By reason and first step.
  Gaps gaps_;
};

class RecordCounters {
 public:
  // Steps that never end are forgotten beyond this number, oldest first.
  static constexpr std::size_t kMaxSteps = 4096;

  struct StepCounts {
    std::uint64_t offered = 0;
    std::uint64_t dropped = 0;
    std::uint64_t sampled = 0;  // Of the dropped.
  };

  // A producer calls one of these for each record that it offers: Accepted
  // before it hands the record to the thread.  If the record closes a step,
  // Accepted returns the step's counts, and both forget them.
  StepCounts Accepted(const Offer& offer);
  void Dropped(const Offer& offer, GapReason reason,
               std::uint64_t n_records = 1);

  // The writer thread, which keeps its own log, settles accepted records by
  // these.
  void DroppedLater(const Offer& offer, GapReason reason);
  void Written(std::uint64_t n_records, std::uint64_t n_bytes);
  void Failed(const Offer& offer);
  // Records that were written, and are lost since.
  void Unwritten(const Gap& lost);

  // Whoever counts a loss says of which tensors it is, if of any, and after the
  // counts: this needs memory.
  void LostOf(std::span<const std::uint32_t> definitions, GapReason reason,
              std::int64_t step, std::uint64_t n_records = 1);

  // The producers' losses since the last call.
  std::vector<Gap> TakeLosses();
  // As LostTensors says.
  std::vector<LostForReason> TakeLostTensors(bool all);
  void ForgetLostTensors();
  [[nodiscard]] std::vector<LostForReason> lost_tensors();

  void SetState(WriterState state);
  void AddShard();
  void AddFileBytes(std::uint64_t n);
  void AddIoError(int error);

  // Settles all open records, and those accepted from now on, as failed, and
  // ignores every later change by the writer thread, which was left behind.
  void WriteOff();

  [[nodiscard]] Counters totals();
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
  std::atomic<bool> has_lost_tensors_{false};

  Mutex mutex_;
  Counters counters_ TDBG_GUARDED_BY(mutex_);
  std::map<std::int64_t, StepCounts> steps_ TDBG_GUARDED_BY(mutex_);
  // The step that was counted last; null or an entry of steps_.
  std::pair<const std::int64_t, StepCounts>* last_ TDBG_GUARDED_BY(mutex_) =
      nullptr;
  DropLog drop_log_ TDBG_GUARDED_BY(mutex_);
  LostTensors lost_tensors_ TDBG_GUARDED_BY(mutex_);
  bool written_off_ TDBG_GUARDED_BY(mutex_) = false;
};

}  // namespace tdbg
