#include "writer/record_queue.h"

#include <algorithm>
#include <new>
#include <utility>

namespace tdbg {

RecordQueue::RecordQueue(std::unique_ptr<Staging> staging)
    : staging_(std::move(staging)) {}

std::uint64_t RecordQueue::max_bytes() const {
  return staging_->capacity() - kHeadroom - sizeof(QueueItem);
}

std::byte* RecordQueue::Allocate(std::uint64_t n, bool headroom) {
  const std::uint64_t limit = staging_->capacity() - (headroom ? 0 : kHeadroom);
  const bool fits = staging_->used() + n <= limit;
  std::byte* p = fits ? staging_->Allocate(n) : nullptr;
  if (p == nullptr || staging_->used() > staging_->capacity() / 2) WakeLocked();
  return p;
}

std::byte* RecordQueue::AllocateInTurn(std::uint64_t n, bool headroom,
                                       MutexLock* lock, GapReason* reason) {
  const std::uint64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  std::uint64_t seen = progress_.load(std::memory_order_relaxed);
  Clock::time_point since = Clock::now();
  std::byte* p = nullptr;
  for (;;) {
    if (stopped_) {
      *reason = GapReason::kRefused;
      break;
    }
    if (waiting_.front() == ticket) p = Allocate(n, headroom);
    if (p != nullptr) break;
    const std::uint64_t progress = progress_.load(std::memory_order_relaxed);
    if (stalled_at_ == progress) {
      *reason = GapReason::kStalled;
      break;
    }
    const Clock::time_point now = Clock::now();
    if (progress != seen) {
      seen = progress;
      since = now;
    } else if (now - since >= kPatience) {
      stalled_at_ = progress;
      room_.notify_all();
      continue;
    }
    room_.wait_until(*lock, since + kPatience);
  }
  std::erase(waiting_, ticket);
  // Whoever stood behind may find room too.
  if (!waiting_.empty()) room_.notify_all();
  return p;
}

QueueItem* RecordQueue::Reserve(std::uint64_t n_bytes, Overflow overflow,
                                bool headroom, GapReason* reason) {
  if (n_bytes > max_bytes()) {
    *reason = GapReason::kLargerThanQueue;
    return nullptr;
  }
  MutexLock lock(mutex_);
  if (stopped_) {
    *reason = GapReason::kRefused;
    return nullptr;
  }
  const std::uint64_t n = sizeof(QueueItem) + n_bytes;
  std::byte* p = waiting_.empty() || headroom ? Allocate(n, headroom) : nullptr;
  if (p == nullptr) {
    *reason = GapReason::kQueueFull;
    if (overflow == Overflow::kDrop) return nullptr;
    p = AllocateInTurn(n, headroom, &lock, reason);
    if (p == nullptr) return nullptr;
  }
  auto* item = new (p) QueueItem;
  item->n_bytes = n_bytes;
  items_.push_back(item);
  ++n_reserved_;
  return item;
}

void RecordQueue::Commit(QueueItem* item, bool wake) {
  MutexLock lock(mutex_);
  item->ready = true;
  if (wake || (front_wanted_ && items_.front() == item)) WakeLocked();
}

void RecordQueue::WakeLocked() {
  if (wake_) return;
  wake_ = true;
  work_.notify_one();
}

Status RecordQueue::Flush(bool durable, std::chrono::milliseconds timeout) {
  const auto request = std::make_shared<FlushRequest>();
  const Clock::time_point deadline = Clock::now() + timeout;
  MutexLock lock(mutex_);
  if (stopped_) return Status::Closed("the writer is closed");
  request->position = n_reserved_;
  request->durable = durable;
  flushes_.push_back(request);
  WakeLocked();
  while (!request->done) {
    if (flushed_.wait_until(lock, deadline) == std::cv_status::timeout &&
        !request->done) {
      std::erase(flushes_, request);
      return Status::DeadlineExceeded(
          "flush: the disk did not take the data in time");
    }
  }
  return request->status;
}

void RecordQueue::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  WakeLocked();
  room_.notify_all();
}

QueueItem* RecordQueue::Next() {
  MutexLock lock(mutex_);
  front_wanted_ = false;
  if (items_.empty()) return nullptr;
  if (!items_.front()->ready) {
    front_wanted_ = true;
    return nullptr;
  }
  return items_.front();
}

void RecordQueue::Release(QueueItem* item) {
  NoteProgress();
  MutexLock lock(mutex_);
  items_.pop_front();
  ++n_released_;
  staging_->Release(reinterpret_cast<const std::byte*>(item),
                    sizeof(QueueItem) + item->n_bytes);
  if (!waiting_.empty()) room_.notify_all();
}

std::shared_ptr<FlushRequest> RecordQueue::DueFlush() {
  MutexLock lock(mutex_);
  if (flushes_.empty() || flushes_.front()->position > n_released_) return {};
  return flushes_.front();
}

void RecordQueue::FinishFlush(const std::shared_ptr<FlushRequest>& request,
                              Status status) {
  MutexLock lock(mutex_);
  request->status = std::move(status);
  request->done = true;
  // Not there any more when its caller stopped waiting meanwhile.
  std::erase(flushes_, request);
  flushed_.notify_all();
}

bool RecordQueue::AtEnd() {
  MutexLock lock(mutex_);
  return stopped_ && items_.empty();
}

void RecordQueue::Wait(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (!wake_) {
    if (work_.wait_until(lock, deadline) == std::cv_status::timeout) break;
  }
  wake_ = false;
}

std::uint64_t RecordQueue::used_bytes() {
  MutexLock lock(mutex_);
  return staging_->used();
}

bool RecordQueue::half_full() {
  MutexLock lock(mutex_);
  return staging_->used() > staging_->capacity() / 2;
}

double RecordQueue::fill() {
  return static_cast<double>(used_bytes()) /
         static_cast<double>(staging_->capacity());
}

bool RecordQueue::stopped() {
  MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace tdbg
