#include "writer/record_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace tdbg {

RecordQueue::RecordQueue(std::unique_ptr<Staging> staging)
    : capacity_(staging->capacity()),
      memory_(staging->memory()),
      last_progress_(Clock::now().time_since_epoch().count()),
      last_rest_(last_progress_.load()),
      staging_(std::move(staging)) {}

RecordQueue::~RecordQueue() {
  // The completions first: they may hold the lock on the pages.
  for (QueueItem* item : items_) {
    if (item->completion != nullptr) GiveUp(item);
  }
}

void RecordQueue::GiveUp(QueueItem* item) {
  delete std::exchange(item->completion, nullptr);
  staging_->Abandon();
}

std::uint64_t RecordQueue::max_bytes() const {
  return capacity_ - kHeadroom - sizeof(QueueItem);
}

std::byte* RecordQueue::Allocate(std::uint64_t n, std::uint64_t keep_free) {
  const std::uint64_t used = staging_->used();
  // What would never fit beside what is kept free may have an empty queue.
  if (used == 0) keep_free = std::min(keep_free, kHeadroom);
  const bool fits = used + n + keep_free <= capacity_;
  std::byte* p = fits ? staging_->Allocate(n) : nullptr;
  used_.store(staging_->used(), std::memory_order_relaxed);
  if (p == nullptr || half_full()) OrderLocked();
  return p;
}

std::byte* RecordQueue::AllocateInTurn(std::uint64_t n,
                                       const AdmissionPolicy& policy,
                                       MutexLock* lock, GapReason* reason) {
  Waiter self{.n_wanted = n + policy.keep_free, .called = {}};
  waiting_.push_back(&self);
  n_wanted_ += self.n_wanted;
  const Clock::time_point start = Clock::now();
  std::byte* p = nullptr;
  for (;;) {
    if (stopped_) {
      *reason = GapReason::kRefused;
      break;
    }
    if (waiting_.front() == &self) p = Allocate(n, policy.keep_free);
    if (p != nullptr) break;
    const std::uint64_t progress = progress_.load(std::memory_order_acquire);
    if (stalled_at_ == progress) {
      *reason = GapReason::kStalled;
      break;
    }
    const Clock::time_point now = Clock::now();
    if (now >= policy.give_up) {
      *reason = GapReason::kQueueFull;
      break;
    }
    const Clock::time_point patient_until =
        std::max(start, At(last_progress_)) + kPatience;
    if (now >= patient_until) {
      stalled_at_ = progress;
      CallAllWaiters();
      continue;
    }
    self.called.wait_until(*lock, std::min(patient_until, policy.give_up));
  }
  std::erase(waiting_, &self);
  n_wanted_ -= self.n_wanted;
  // Whoever stood behind may find room too.
  if (!waiting_.empty()) waiting_.front()->called.notify_one();
  return p;
}

void RecordQueue::CallAllWaiters() {
  for (Waiter* waiter : waiting_) waiter->called.notify_one();
}

QueueItem* RecordQueue::Reserve(std::uint64_t n_bytes,
                                const AdmissionPolicy& policy,
                                GapReason* reason) {
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
  // Those who wait come first, before all who would wait themselves; unless
  // there is room for all of them, as when they were just called.
  const bool waits = policy.overflow != Overflow::kDrop;
  const bool in_turn =
      n_wanted_ == 0 || !waits || policy.keep_free == 0 ||
      staging_->used() + n + policy.keep_free + n_wanted_ <= capacity_;
  std::byte* p = in_turn ? Allocate(n, policy.keep_free) : nullptr;
  if (p == nullptr) {
    *reason = GapReason::kQueueFull;
    if (!waits) return nullptr;
    p = AllocateInTurn(n, policy, &lock, reason);
    if (p == nullptr) return nullptr;
  }
  auto* item = new (p) QueueItem;
  item->n_bytes = n_bytes;
  items_.push_back(item);
  ++n_reserved_;
  return item;
}

void RecordQueue::Commit(QueueItem* item, bool wake) {
  // Sequentially consistent, as in RestLocked: either the thread finds the item
  // ready before it rests, or its rest is seen here.
  item->ready.store(true);
  const Rest rest = rest_.load();
  if (rest == Rest::kNone || rest == Rest::kOrders) return;
  if (rest != Rest::kOldest && used_bytes() < kWorthWaking &&
      (rest == Rest::kLull || !wake)) {
    return;
  }
  {
    MutexLock lock(mutex_);
    if (rest_.load() == Rest::kOldest &&
        (items_.empty() || items_.front() != item)) {
      return;
    }
    if (!wake && !HasReadyLocked()) return;  // Nothing that it could take.
    is_ordered_ = true;
  }
  // Without the lock: the thread would only wait for that.
  work_.notify_one();
}

void RecordQueue::OrderLocked() {
  if (is_ordered_) return;
  is_ordered_ = true;
  if (rest_.load(std::memory_order_relaxed) != Rest::kNone) work_.notify_one();
}

Status RecordQueue::Flush(bool durable, std::chrono::milliseconds timeout) {
  const auto request = std::make_shared<FlushRequest>();
  const Clock::time_point deadline = Clock::now() + timeout;
  MutexLock lock(mutex_);
  if (stopped_) return Status::Closed("the writer is closed");
  request->position = n_reserved_;
  request->durable = durable;
  flushes_.push_back(request);
  OrderLocked();
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
  OrderLocked();
  CallAllWaiters();
}

std::size_t RecordQueue::Take(std::span<QueueItem*> items) {
  MutexLock lock(mutex_);
  std::size_t limit = std::min(items.size(), items_.size());
  if (!flushes_.empty() && flushes_.front()->position > n_released_) {
    limit = std::min<std::uint64_t>(limit,
                                    flushes_.front()->position - n_released_);
  }
  std::size_t n = 0;
  while (n < limit && items_[n]->ready.load(std::memory_order_acquire)) {
    items[n] = items_[n];
    ++n;
  }
  return n;
}

void RecordQueue::Release(std::size_t n) {
  NoteProgress();
  MutexLock lock(mutex_);
  TDBG_DCHECK(n <= items_.size());
  for (std::size_t i = 0; i < n; ++i) {
    QueueItem* item = items_.front();
    items_.pop_front();
    staging_->Release(reinterpret_cast<const std::byte*>(item),
                      sizeof(QueueItem) + item->n_bytes);
  }
  n_released_ += n;
  used_.store(staging_->used(), std::memory_order_relaxed);
  if (waiting_.empty()) return;
  // Only when there is room for many: a wake for each small record would cost
  // more than the records.
  Waiter* first = waiting_.front();
  const std::uint64_t n_free = capacity_ - staging_->used();
  if (items_.empty() || n_free >= std::max(first->n_wanted, capacity_ / 8)) {
    first->called.notify_one();
  }
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

bool RecordQueue::Prefault() {
  Staging::Part part;
  {
    MutexLock lock(mutex_);
    part = staging_->TakePrefault();
  }
  if (part.n == 0) return false;
  staging_->Prefault(part);
  return true;
}

void RecordQueue::WaitForWork(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  Rest rest = Rest::kStep;
  const Clock::time_point now = Clock::now();
  if (n_released_ != n_at_rest_) lull_until_ = now + kUntilRest;
  if (!items_.empty() || now < lull_until_) {
    // More may come soon, or somebody is filling the oldest item.
    rest = Rest::kLull;
    const bool is_awaited = stopped_ || !flushes_.empty() || !waiting_.empty();
    if (!items_.empty() && is_awaited) rest = Rest::kOldest;
  }
  n_at_rest_ = n_released_;
  if (rest == Rest::kLull) deadline = std::min(deadline, now + kLull);
  RestLocked(rest, deadline, &lock);
}

void RecordQueue::WaitForOrders(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  RestLocked(Rest::kOrders, deadline, &lock);
}

void RecordQueue::RestLocked(Rest rest, Clock::time_point deadline,
                             MutexLock* lock) {
  rest_.store(rest);
  const bool is_worth = rest == Rest::kOldest ||
                        (rest != Rest::kOrders && used_bytes() >= kWorthWaking);
  if (is_worth && HasReadyLocked()) is_ordered_ = true;
  while (!is_ordered_) {
    if (work_.wait_until(*lock, deadline) == std::cv_status::timeout) break;
  }
  is_ordered_ = false;
  rest_.store(Rest::kNone);
  Note(&last_rest_, Clock::now());
}

std::chrono::milliseconds RecordQueue::silence() const {
  if (used_bytes() == 0) return {};
  const Clock::duration since =
      Clock::now() - std::max(At(last_progress_), At(last_rest_));
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::max(since, Clock::duration::zero()));
}

bool RecordQueue::stopped() {
  MutexLock lock(mutex_);
  return stopped_;
}

}  // namespace tdbg
