// RecordQueue carries records from producers to the writer thread, in order,
// through bounded staging memory.
//
// A producer reserves room, fills it without holding a lock, and commits it.
// Order is that of the reservations.  A flush is a position in the queue, and
// the stop is its end, so neither needs room and both keep their place among
// the data.
//
// A wake costs the producer more than a record: the call itself, and often the
// processor.  So the thread is woken at once only for a flush, a stop, a queue
// that is half full and a producer that waits for room.  The end of a step
// wakes it only from its rest; when it has found something to do it looks again
// every kLull by itself until there was nothing for kUntilRest, and steps that
// end meanwhile wake nobody.  Data wake
// it when there are kWorthWaking bytes of them, so that it works beside the
// copies of a step and not after them: a wake is then little of what they cost.
// Nor does the thread take the lock for every record: it takes and releases
// runs.
//
// Thread safety: Reserve, Commit, Flush, Stop and the getters from any thread;
// Take, Release, NoteProgress, Prefault, the waits, DueFlush, AtEnd and
// FinishFlush from the writer thread only.
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
#include "writer/completion.h"
#include "writer/staging.h"
#include "writer/writer.h"

namespace tdbg {

// The head of a record in staging memory; its bytes follow.
struct alignas(Staging::kAlignment) QueueItem {
  std::uint64_t n_bytes = 0;  // That follow.
  std::int64_t step = kNoStep;
  RecordType type = RecordType::kPad;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  // Set by the producer when all else is filled; nothing of the item is its
  // own from then on.
  std::atomic<bool> ready{false};
  std::uint32_t subject = 0;
  std::uint32_t flags = 0;
  float zero_share = Writer::kUnknownShare;  // Of a tensor.
  // Owned; null when the bytes were there from the start, or have arrived.
  Completion* completion = nullptr;

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

  // Kept free for the records that close steps, which are small and report the
  // losses of the others.
  static constexpr std::uint64_t kHeadroom = 64ULL << 10;
  // How long a blocked producer bears that nothing is released.
  static constexpr std::chrono::milliseconds kPatience{1000};
  // How long the end of a step may wait for the thread to look.
  static constexpr std::chrono::milliseconds kLull{20};
  // Whoever makes steps that are rarer than this wakes it at each.
  static constexpr std::chrono::milliseconds kUntilRest{1000};

  // Bytes in the queue for which the thread is woken from any rest.
  static constexpr std::uint64_t kWorthWaking = 512ULL << 10;

  // How long a producer waits for room, and how much it leaves to others.
  struct AdmissionPolicy {
    Overflow overflow = Overflow::kBlock;  // kDrop: does not wait.
    // Left to others, unless the queue is empty.
    std::uint64_t keep_free = kHeadroom;
    // Waits no longer than this, progress or not.
    Clock::time_point give_up = Clock::time_point::max();
  };

  explicit RecordQueue(std::unique_ptr<Staging> staging);
  // Destroys the completions that are left.  Memory that something may still
  // be copied to is never given back.
  ~RecordQueue();
  RecordQueue(const RecordQueue&) = delete;
  RecordQueue& operator=(const RecordQueue&) = delete;

  // Room for a record of `n_bytes`, or null and why in `*reason`.  Waits, when
  // the policy says so, as long as the thread makes progress.
  QueueItem* Reserve(std::uint64_t n_bytes, const AdmissionPolicy& policy,
                     GapReason* reason);
  // Hands a filled item over; with `wake` it is seen to within kLull.
  void Commit(QueueItem* item, bool wake);
  // Waits until all that was reserved before is written.
  Status Flush(bool durable, std::chrono::milliseconds timeout);
  // Refuses all that comes after.  Idempotent.
  void Stop();

  // The oldest items, as far as they are ready, belong before the next flush
  // and fit into `items`: how many there are.  They stay in the queue.
  std::size_t Take(std::span<QueueItem*> items);
  // Gives the memory of the `n` oldest items back.
  // REQUIRES: Take returned them.
  void Release(std::size_t n);
  // Stops waiting for the item's bytes, which may still come.
  void GiveUp(QueueItem* item);
  // The oldest flush whose turn it is, or null; it stays until FinishFlush.
  std::shared_ptr<FlushRequest> DueFlush();
  void FinishFlush(const std::shared_ptr<FlushRequest>& request, Status status);
  // True when Stop was called and everything before it was released.
  bool AtEnd();
  // Makes a piece of the memory that producers will use next; false when there
  // is enough.  For when there is nothing else to do.
  bool Prefault();
  // Notes, for blocked producers, that the disk makes progress.
  void NoteProgress(Clock::time_point now = Clock::now()) {
    Note(&last_progress_, now);
    progress_.fetch_add(1, std::memory_order_release);
  }
  // Rests until `deadline`, or until there is something to do.
  void WaitForWork(Clock::time_point deadline);
  // Rests until `deadline`, a flush, a stop or a producer that needs room.
  void WaitForOrders(Clock::time_point deadline);

  // Bytes of staging memory in use.  Takes no lock.
  [[nodiscard]] std::uint64_t used_bytes() const {
    return used_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
  [[nodiscard]] std::span<std::byte> memory() const { return memory_; }
  [[nodiscard]] bool half_full() const { return used_bytes() > capacity_ / 2; }
  // How long the thread has shown no life, with something queued.
  [[nodiscard]] std::chrono::milliseconds silence() const;
  [[nodiscard]] bool stopped();
  // Bytes of the largest record that can ever be taken.
  [[nodiscard]] std::uint64_t max_bytes() const;

 private:
  // The event that the thread is waiting for.
  enum class Rest : std::uint8_t {
    kNone,    // It is at work, and looks before it rests.
    kLull,    // It looks soon by itself.
    kOldest,  // That the oldest item is ready.
    kStep,    // The end of a step.
    kOrders,  // That somebody needs room, a flush or the end; never data.
  };

  // A producer that waits for room.
  struct Waiter {
    std::uint64_t n_wanted;
    std::condition_variable_any called;
  };

  std::byte* Allocate(std::uint64_t n, std::uint64_t keep_free)
      TDBG_REQUIRES(mutex_);
  std::byte* AllocateInTurn(std::uint64_t n, const AdmissionPolicy& policy,
                            MutexLock* lock, GapReason* reason)
      TDBG_REQUIRES(mutex_);
  static void Note(std::atomic<Clock::rep>* time, Clock::time_point now) {
    time->store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  static Clock::time_point At(const std::atomic<Clock::rep>& time) {
    return Clock::time_point(
        Clock::duration(time.load(std::memory_order_relaxed)));
  }
  void CallAllWaiters() TDBG_REQUIRES(mutex_);
  [[nodiscard]] bool HasReadyLocked() const TDBG_REQUIRES(mutex_) {
    return !items_.empty() && items_.front()->ready.load();
  }
  // Interrupts every rest.
  void OrderLocked() TDBG_REQUIRES(mutex_);
  void RestLocked(Rest rest, Clock::time_point deadline, MutexLock* lock)
      TDBG_REQUIRES(mutex_);

  // Constant after construction.
  const std::uint64_t capacity_;
  const std::span<std::byte> memory_;

  // Bumped by the thread; read by producers that wait.
  std::atomic<std::uint64_t> progress_{0};
  std::atomic<Clock::rep> last_progress_;
  std::atomic<Clock::rep> last_rest_;    // Its end.
  std::atomic<std::uint64_t> used_{0};   // Written with mutex_ held.
  std::atomic<Rest> rest_{Rest::kNone};  // Written by the thread.

  Mutex mutex_;
  const std::unique_ptr<Staging> staging_;
  // In the order of their reservation.  Invariant: the items released and those
  // in here are all that were ever reserved.
  std::deque<QueueItem*> items_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t n_reserved_ TDBG_GUARDED_BY(mutex_) = 0;
  std::uint64_t n_released_ TDBG_GUARDED_BY(mutex_) = 0;
  // n_released_ when the thread last rested: whether anything came since.
  std::uint64_t n_at_rest_ TDBG_GUARDED_BY(mutex_) = 0;
  Clock::time_point lull_until_ TDBG_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<FlushRequest>> flushes_ TDBG_GUARDED_BY(mutex_);
  bool stopped_ TDBG_GUARDED_BY(mutex_) = false;
  bool is_ordered_ TDBG_GUARDED_BY(mutex_) = false;
  // Producers that wait for room, oldest first: a large record is not to starve
  // behind small ones.
  std::deque<Waiter*> waiting_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t n_wanted_ TDBG_GUARDED_BY(mutex_) = 0;  // By all of them.
  // The value of progress_ at which patience ran out; nobody waits until it
  // changes.
  std::optional<std::uint64_t> stalled_at_ TDBG_GUARDED_BY(mutex_);

  std::condition_variable_any work_;  // For the thread.
  std::condition_variable_any flushed_;
};

}  // namespace tdbg
