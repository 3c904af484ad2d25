// Accounts says what became of every record that was offered, and LossLog which
// losses the data does not tell of yet.
//
// Implements docs/format.md, "gap" and the counts of "step".  Every record
// offered ends in exactly one of written, dropped, failed.
//
// Thread safety: Accounts, all of it; LossLog, none.

#pragma once

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

// Losses by reason and step.  Bounded: beyond kMaxEntries the steps of a reason
// are merged to one range, with exact counts.
class LossLog {
 public:
  static constexpr std::size_t kMaxEntries = 256;

  void Add(GapReason reason, const Offer& offer, std::uint64_t n_records = 1);
  void Add(const Gap& gap);
  // All of them, and forgets them.
  std::vector<Gap> Take();
  [[nodiscard]] bool empty() const { return gaps_.empty(); }

 private:
  void Merge();

  // By reason and first step.
  std::map<std::pair<GapReason, std::int64_t>, Gap> gaps_;
};

class Accounts {
 public:
  // Steps that never end are forgotten beyond this number, oldest first.
  static constexpr std::size_t kMaxSteps = 4096;

  struct StepCounts {
    std::uint64_t offered = 0;
    std::uint64_t dropped = 0;
  };

  void Offered(const Offer& offer, std::uint64_t n_records = 1);
  // By the producers.
  void Dropped(const Offer& offer, GapReason reason,
               std::uint64_t n_records = 1);
  // By the writer thread, which keeps its own log.
  void DroppedLater(const Offer& offer);
  void Written(std::uint64_t n_records, std::uint64_t n_bytes);
  void Failed(const Offer& offer);

  // What the producers know of a step that ends, and forgets it.
  StepCounts TakeStep(std::int64_t step);
  // The producers' losses since the last call.
  std::vector<Gap> TakeLosses();

  void SetState(WriterState state);
  void AddShard();
  void AddFileBytes(std::uint64_t n);
  void AddIoError(int error);

  // Counts all that is neither written nor lost as failed, and every later
  // change by the writer thread for nothing: it was left behind.
  void WriteOff();

  [[nodiscard]] Counters counters();

 private:
  Mutex mutex_;
  Counters counters_ TDBG_GUARDED_BY(mutex_);
  std::map<std::int64_t, StepCounts> steps_ TDBG_GUARDED_BY(mutex_);
  LossLog losses_ TDBG_GUARDED_BY(mutex_);
  bool written_off_ TDBG_GUARDED_BY(mutex_) = false;
};

}  // namespace tdbg
