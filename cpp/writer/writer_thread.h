// WriterThread is what the thread of a Writer does: it takes records from the
// queue, encodes them into the journal, and decides when they become visible.
//
// Implements docs/format.md, "Writing".
//
// Thread safety: none; it lives on its thread.  What it shares with producers
// is in WriterShared.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/status.h"
#include "writer/accounts.h"
#include "writer/definition_table.h"
#include "writer/journal.h"
#include "writer/record_queue.h"
#include "writer/writer.h"

namespace tdbg {

// What the disk has room for.
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
  Accounts accounts;
  DefinitionTable definitions;
  RecordQueue queue;
  std::atomic<DiskLevel> disk_level{DiskLevel::kPlenty};
  // Close gave up waiting: the thread is to end as soon as it can.
  std::atomic<bool> left_behind{false};
};

class WriterThread {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kDiskCheckInterval{100};
  static constexpr std::uint64_t kDiskCheckBytes = 64ULL << 20;

  // REQUIRES: `shared` outlives this.
  explicit WriterThread(WriterShared* shared);
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;

  // Makes directory, commit page and first shard.
  Status Start();
  // Returns what Close is to return, after the queue was stopped.
  Status Run();

  [[nodiscard]] const WriterDirectory& directory() const {
    return journal_.directory();
  }

 private:
  // One turn of the loop; false at the end of the queue.
  bool Turn();
  void Handle(QueueItem* item);
  void HandleStep(const Offer& offer, QueueItem* item);
  void Publish();
  void CheckDisk();

  WriterShared* const shared_;
  Journal journal_;
  QueueItem* item_ = nullptr;  // That is being handled.
  bool publish_wanted_ = false;
  Clock::time_point next_publish_;
  Clock::time_point next_disk_check_;
  std::uint64_t bytes_at_disk_check_ = 0;
};

}  // namespace tdbg
