// WriterThread is what the thread of a Writer does: it takes records from the
// queue, encodes them into the shard log, and decides when they become visible.
//
// Implements docs/format.md, "Writing".
//
// An exception (memory that is missing, a file system that throws) never leaves
// Run: the shard is given up like after a failed write, and the thread starts
// again after a pause that doubles.  When that happens kMaxRestarts times
// without anything being written, it gives up: producers drop from then on, and
// what is queued counts as failed.
//
// Thread safety: none; it lives on its thread.  What it shares with producers
// is in WriterShared.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "writer/definition_table.h"
#include "writer/record_counters.h"
#include "writer/record_queue.h"
#include "writer/sampler.h"
#include "writer/shard_log.h"
#include "writer/writer.h"

namespace tdbg {

// Which records the disk has room for.
enum class DiskLevel : std::uint8_t { kPlenty, kNoTensors, kNothing };

// Whether a record of this type may go to a disk at this level.
[[nodiscard]] inline bool Admits(DiskLevel level, RecordType type) {
  return level == DiskLevel::kPlenty ||
         (level == DiskLevel::kNoTensors && type != RecordType::kTensor);
}

// Producers and thread both hold this; each part has its own lock.
struct WriterShared {
  WriterShared(WriterOptions options_in, std::unique_ptr<Staging> staging)
      : options(std::move(options_in)), queue(std::move(staging)) {}

  const WriterOptions options;
  RecordCounters record_counters;
  DefinitionTable definitions;
  RecordQueue queue;
  Sampler sampler;  // Under Overflow::kSample.
  std::atomic<DiskLevel> disk_level{DiskLevel::kPlenty};
  // Close gave up waiting: the thread is to end as soon as it can.
  std::atomic<bool> left_behind{false};
  // The thread takes nothing more.
  std::atomic<bool> gave_up{false};
};

// The exception that is being handled, as a status.
// REQUIRES: called in a catch clause.
Status CurrentException();

class WriterThread {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kDiskCheckInterval{100};
  static constexpr std::uint64_t kDiskCheckBytes = 64ULL << 20;
  // It is looked how full the spool is each time such a part of it was written.
  static constexpr std::uint64_t kSpoolChecks = 64;
  static constexpr int kMaxRestarts = 3;
  // Between two looks at a record whose bytes are on their way: this, then
  // twice as long each time, up to the second.
  static constexpr std::chrono::milliseconds kFirstLook{1};
  static constexpr std::chrono::milliseconds kLastLook{16};
  // How long after the stop, and after the last that arrived, they are waited
  // for.
  static constexpr std::chrono::milliseconds kCompletionPatience{1000};
  // Records that are taken from the queue at a time, and the bytes after which
  // their memory is given back before all of them are done.
  static constexpr std::size_t kRun = 64;
  static constexpr std::uint64_t kRunBytes = 256ULL << 10;

  // REQUIRES: `shared` outlives this.
  explicit WriterThread(WriterShared* shared);
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  // Makes directory, commit page and first shard.
  Status Start();
  // Returns what Close is to return, after the queue was stopped.
  Status Run();

  [[nodiscard]] const WriterDirectory& directory() const {
    return shard_log_.directory();
  }

 private:
  // One turn of the loop; false at the end of the queue.
  bool Turn();
  // Handles what was taken, or the first part of it; false when nothing could
  // be done, because the bytes of the first are on their way.
  bool HandleRun();
  // Whether the bytes of the item are there, or will never be: then Handle is
  // to follow, or Lose.
  bool HasArrived(QueueItem* item);
  void Handle(QueueItem* item);
  void HandleStep(const Offer& offer, QueueItem* item);
  void Publish();
  void CheckDisk(Clock::time_point now);
  // Whether what was not shipped yet leaves no room for more.
  bool SpoolIsFull(Clock::time_point now);

  // After an exception; false when the thread is to give up.
  bool Recover(const Status& why);
  void Restart(const Status& why);
  // Counts all that comes until the end as failed.
  void Discard(const Status& why);
  // Counts an item as failed that the shard log did not take over.
  void Lose(QueueItem* item);
  // Of which tensors it is.
  [[nodiscard]] std::vector<std::uint32_t> LostTensorsOf(QueueItem* item) const;
  Status Finish();

  WriterShared* const shared_;
  ShardLog shard_log_;

  // The run: n_run_ items were taken; of these n_done_ were handled, and
  // n_released_ given back.  is_in_hand_: one more is being handled.
  std::array<QueueItem*, kRun> run_{};
  std::size_t n_run_ = 0;
  std::size_t n_done_ = 0;
  std::size_t n_released_ = 0;
  bool is_in_hand_ = false;

  // The item that arrived last: its bytes, and whether no more will come.
  std::uint64_t n_arrived_ = 0;
  bool is_lost_ = false;
  std::vector<std::uint32_t> lost_rows_;  // Their definitions, if it is.
  bool is_waiting_ = false;               // For the oldest to arrive.
  Clock::duration next_look_ = kFirstLook;
  // Set once the queue was stopped and something had not arrived.
  std::optional<Clock::time_point> give_up_at_;

  bool publish_wanted_ = false;
  Clock::time_point next_publish_;
  Clock::time_point next_disk_check_;
  std::uint64_t bytes_at_disk_check_ = 0;
  Clock::time_point next_spool_check_;
  std::uint64_t bytes_at_spool_check_ = 0;
  bool spool_is_full_ = false;

  // In a row: forgotten when something was written.
  int n_restarts_ = 0;
  std::uint64_t bytes_at_restart_ = 0;
  Clock::time_point restart_at_;
};

}  // namespace tdbg
