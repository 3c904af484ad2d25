// RecordQueue carries records from producers to the writer thread, in order,
// through bounded staging memory.
//
// A producer reserves room, fills it without holding a lock, and commits it.
// Order is that of the reservations.  A flush is a position in the queue, and
// the stop is its end, so neither needs room and both keep their place among
// the data.
//
// The thread is woken when somebody asks for it (the end of a step, a flush, a
// stop), when the queue is half full, and at its own deadline: not by every
// record, since a wake costs more than a record.
//
// Thread safety: Reserve, Commit, Wake, Flush, Stop and the getters from any
// thread; Next, Release, NoteProgress, Wait and FinishFlush from the writer
// thread only.
//
// Errors: none but "not taken", with the reason.

#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "base/status.h"
#include "format/record.h"
#include "writer/staging.h"
#include "writer/writer.h"

namespace tdbg {

// What stands in staging memory before the bytes of a record.
struct alignas(Staging::kAlignment) QueueItem {
  std::uint64_t n_bytes = 0;  // That follow.
  std::int64_t step = kNoStep;
  RecordType type = RecordType::kPad;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  bool ready = false;  // Guarded by the queue's mutex.
  std::uint32_t subject = 0;
  std::uint32_t flags = 0;
  float zero_share = Writer::kUnknownShare;  // Of a tensor.

  [[nodiscard]] std::byte* bytes() {
    return reinterpret_cast<std::byte*>(this + 1);
  }
  // The bytes as values that were copied in whole.
  template <typename T>
  [[nodiscard]] std::span<const T> values() {
    return {reinterpret_cast<const T*>(this + 1),
            static_cast<std::size_t>(n_bytes) / sizeof(T)};
  }
};
static_assert(sizeof(QueueItem) == Staging::kAlignment);

// Someone waits for all that was reserved before `position`.
struct FlushRequest {
  // Constant once it is in the queue.
  std::uint64_t position = 0;
  bool durable = false;
  // Guarded by the queue's mutex.
  bool done = false;
  Status status;
};

class RecordQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // Kept free for the records that close steps, which are small and tell of the
  // losses of the others.
  static constexpr std::uint64_t kHeadroom = 64ULL << 10;
  // How long a blocked producer bears that nothing is released.
  static constexpr std::chrono::milliseconds kPatience{1000};

  explicit RecordQueue(std::unique_ptr<Staging> staging);
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  // Room for a record of `n_bytes`, or null and why in `*reason`.  Waits, when
  // `overflow` says so, as long as the thread makes progress.  Those with
  // `headroom` may use what is kept free.
  QueueItem* Reserve(std::uint64_t n_bytes, Overflow overflow, bool headroom,
                     GapReason* reason);
  // Hands a filled item over, and wakes the thread if `wake`.
  void Commit(QueueItem* item, bool wake);
  // Waits until all that was reserved before is written.
  Status Flush(bool durable, std::chrono::milliseconds timeout);
  // Refuses all that comes after.  Idempotent.
  void Stop();

  // The oldest item, if it is ready; else null.
  QueueItem* Next();
  // Gives the memory of the oldest item back.
  // REQUIRES: `item` is what Next() returned.
  void Release(QueueItem* item);
  // The oldest flush whose turn it is, or null; it stays until FinishFlush.
  std::shared_ptr<FlushRequest> DueFlush();
  void FinishFlush(const std::shared_ptr<FlushRequest>& request, Status status);
  // True when Stop was called and everything before it was released.
  bool AtEnd();
  // Tells blocked producers that the disk moves, however slowly.
  void NoteProgress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  // Returns at `deadline` or when the thread is wanted.
  void Wait(Clock::time_point deadline);

  [[nodiscard]] std::uint64_t used_bytes();
  [[nodiscard]] bool half_full();
  // The share of staging memory in use.
  [[nodiscard]] double fill();
  [[nodiscard]] bool stopped();
  // Bytes of the largest record that can ever be taken.
  [[nodiscard]] std::uint64_t max_bytes() const;

 private:
  std::byte* Allocate(std::uint64_t n, bool headroom) TDBG_REQUIRES(mutex_);
  std::byte* AllocateInTurn(std::uint64_t n, bool headroom, MutexLock* lock,
                            GapReason* reason) TDBG_REQUIRES(mutex_);
  void WakeLocked() TDBG_REQUIRES(mutex_);

  // Bumped by the thread; read by producers that wait.
  std::atomic<std::uint64_t> progress_{0};

  Mutex mutex_;
  const std::unique_ptr<Staging> staging_;
  // In the order of their reservation.  Invariant: the items released and those
  // in here are all that were ever reserved.
  std::deque<QueueItem*> items_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t n_reserved_ TDBG_GUARDED_BY(mutex_) = 0;
  std::uint64_t n_released_ TDBG_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<FlushRequest>> flushes_ TDBG_GUARDED_BY(mutex_);
  bool stopped_ TDBG_GUARDED_BY(mutex_) = false;
  bool wake_ TDBG_GUARDED_BY(mutex_) = false;
  // The thread found the oldest item not ready yet and waits for it.
  bool front_wanted_ TDBG_GUARDED_BY(mutex_) = false;
  // Producers that wait for room, oldest first: a large record is not to starve
  // behind small ones.
  std::deque<std::uint64_t> waiting_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t next_ticket_ TDBG_GUARDED_BY(mutex_) = 0;
  // The value of progress_ at which patience ran out; nobody waits until it
  // changes.
  std::optional<std::uint64_t> stalled_at_ TDBG_GUARDED_BY(mutex_);

  std::condition_variable_any work_;  // For the thread.
  std::condition_variable_any room_;  // For blocked producers.
  std::condition_variable_any flushed_;
};

}  // namespace tdbg
