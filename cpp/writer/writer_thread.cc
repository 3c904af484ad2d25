#include "writer/writer_thread.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/coding.h"

namespace tdbg {
namespace {

// Of which tensors a record is that is lost.
std::vector<std::uint32_t> TensorsOf(QueueItem* item) {
  switch (item->type) {
    case RecordType::kRows:
      return DefinitionsOf(item->values<Row>());
    case RecordType::kScalar:
      return DefinitionsOf(item->values<Scalar>());
    case RecordType::kSpan:
      return DefinitionsOf(item->values<Span>());
    case RecordType::kTensor:
    case RecordType::kHistogram:
    case RecordType::kSamples:
      return {item->subject};
    default:
      return {};
  }
}

}  // namespace

WriterThread::WriterThread(WriterShared* shared)
    : shared_(shared),
      shard_log_(shared->options, &shared->definitions,
                 &shared->record_counters, [this] {
                   // Heartbeats are no progress to those who wait for room.
                   if (!is_waiting_ && !spool_is_full_) {
                     shared_->queue.NoteProgress();
                   }
                 }) {}

Status WriterThread::Start() {
  TDBG_RETURN_IF_ERROR(shard_log_.Create());
  CheckDisk(Clock::now());
  shard_log_.Publish();
  next_publish_ = Clock::now() + shared_->options.flush_interval;
  return Status::Ok();
}

Status WriterThread::Run() {
  for (;;) {
    try {
      if (!Turn()) return Finish();
    } catch (...) {
      const Status why = CurrentException();
      if (!Recover(why)) {
        Discard(why);
        (void)Finish();
        return why;
      }
    }
    if (shared_->left_behind.load()) {
      return Status::DeadlineExceeded("the writer was left behind");
    }
  }
}

Status WriterThread::Finish() {
  try {
    shard_log_.AddLosses(shared_->record_counters.TakeLosses());
    return shard_log_.Close();
  } catch (...) {
    const Status why = CurrentException();
    Restart(why);  // Settles what was pending.
    shard_log_.LoseSteps();
    return why;
  }
}

bool WriterThread::Turn() {
  RecordQueue& queue = shared_->queue;
  // A short back-off is waited for with the data in the queue, as long as that
  // has room; producers must not feel it.
  const bool is_down = Clock::now() < restart_at_ && !queue.stopped();
  const bool is_full = SpoolIsFull(Clock::now());
  const bool hold = is_full || ((is_down || shard_log_.is_backing_off()) &&
                                !queue.half_full() && !queue.stopped());
  n_run_ = n_done_ = n_released_ = 0;
  if (!hold) n_run_ = queue.Take(run_);
  if (n_run_ != 0 && HandleRun()) return true;
  if (const auto request = queue.DueFlush(); request != nullptr) {
    shard_log_.AddLosses(shared_->record_counters.TakeLosses());
    Status status;
    try {
      status = shard_log_.Flush(request->durable);
    } catch (...) {
      queue.FinishFlush(request, CurrentException());
      throw;
    }
    queue.FinishFlush(request, std::move(status));
    return true;
  }
  if (queue.AtEnd()) return false;
  if (publish_wanted_ || Clock::now() >= next_publish_) Publish();
  shard_log_.WriteBehind();
  CheckDisk(Clock::now());
  if (!is_down) shard_log_.Tick();
  Clock::time_point deadline =
      std::min(next_publish_, Clock::now() + ShardLog::kHeartbeat);
  if (is_down) deadline = std::min(deadline, restart_at_);
  if (queue.Prefault()) return true;
  if (n_run_ != 0) {
    queue.WaitForOrders(std::min(deadline, Clock::now() + next_look_));
    next_look_ = std::min<Clock::duration>(2 * next_look_, kLastLook);
  } else if (is_full) {
    queue.WaitForOrders(std::min(deadline, next_spool_check_));
  } else if (hold) {
    queue.WaitForOrders(std::min(deadline, shard_log_.next_attempt()));
  } else {
    queue.WaitForWork(deadline);
  }
  return true;
}

bool WriterThread::HandleRun() {
  RecordQueue& queue = shared_->queue;
  std::uint64_t n_bytes = 0;
  Clock::time_point now = Clock::now();
  while (n_done_ < n_run_ && n_bytes < kRunBytes) {
    QueueItem* item = run_[n_done_];
    if (SpoolIsFull(now) || !HasArrived(item)) break;
    CheckDisk(now);
    is_in_hand_ = true;
    shard_log_.BeginRecord();
    Handle(item);
    is_in_hand_ = false;
    ++n_done_;
    n_bytes += item->n_bytes;
    // Once a record: to ask for the time costs as much as to copy a small one.
    now = Clock::now();
    queue.NoteProgress(now);
    if (shard_log_.batch_is_full() || now >= next_publish_) Publish();
    if (shared_->left_behind.load(std::memory_order_relaxed)) break;
  }
  if (n_done_ == 0) return false;
  n_released_ = n_done_;
  queue.Release(n_done_);
  return true;
}

bool WriterThread::HasArrived(QueueItem* item) {
  n_arrived_ = item->n_bytes;
  is_lost_ = false;
  if (item->completion == nullptr) return true;
  std::span<std::byte> bytes(item->bytes(), item->n_bytes);
  const Completion::Answer answer = item->completion->Poll(&bytes);
  if (answer == Completion::Answer::kPending) {
    RecordQueue& queue = shared_->queue;
    is_waiting_ = true;
    if (!queue.stopped()) return false;
    const Clock::time_point now = Clock::now();
    if (!give_up_at_) give_up_at_ = now + kCompletionPatience;
    if (now < *give_up_at_) return false;
    lost_rows_ = item->completion->Definitions();
    queue.GiveUp(item);
    is_waiting_ = false;
    is_lost_ = true;
    return true;
  }
  if (answer == Completion::Answer::kFailed) {
    lost_rows_ = item->completion->Definitions();
  }
  delete std::exchange(item->completion, nullptr);
  next_look_ = kFirstLook;
  give_up_at_.reset();
  is_waiting_ = false;
  n_arrived_ = bytes.size();
  is_lost_ = answer == Completion::Answer::kFailed;
  return true;
}

void WriterThread::Publish() {
  shard_log_.AddLosses(shared_->record_counters.TakeLosses());
  shard_log_.Publish();
  if (shard_log_.written_bytes() > bytes_at_restart_) n_restarts_ = 0;
  publish_wanted_ = false;
  next_publish_ = Clock::now() + shared_->options.flush_interval;
}

// --- Exceptions --------------------------------------------------------------

Status CurrentException() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Status::IoError("the writer thread: no memory", ENOMEM);
  } catch (const std::exception& error) {
    return Status::IoError(std::string("the writer thread: ") + error.what(),
                           0);
  } catch (...) {
    return Status::IoError("the writer thread: an exception", 0);
  }
}

bool WriterThread::Recover(const Status& why) {
  Restart(why);
  if (std::exchange(is_in_hand_, false)) {
    if (!shard_log_.took_over()) Lose(run_[n_done_]);
    ++n_done_;
  }
  shared_->queue.Release(n_done_ - n_released_);
  n_released_ = n_done_;
  return ++n_restarts_ <= kMaxRestarts;
}

void WriterThread::Restart(const Status& why) {
  try {
    shard_log_.Abandon(why);
  } catch (...) {
    // The commit page was not written; the counts hold.
  }
  bytes_at_restart_ = shard_log_.written_bytes();
  restart_at_ =
      Clock::now() + shared_->options.retry_interval * (1 << n_restarts_);
}

std::vector<std::uint32_t> WriterThread::LostTensorsOf(QueueItem* item) const {
  // The bytes of what never arrived are anybody's.
  const bool is_empty = is_lost_ && item->type == RecordType::kRows;
  return is_empty ? lost_rows_ : TensorsOf(item);
}

void WriterThread::Lose(QueueItem* item) {
  try {
    shard_log_.Lose(
        {.step = item->step, .n_bytes = item->n_bytes, .type = item->type},
        LostTensorsOf(item));
  } catch (...) {
    // Counted, though the data cannot tell.
  }
}

void WriterThread::Discard(const Status& why) {
  RecordQueue& queue = shared_->queue;
  shared_->gave_up.store(true);
  shared_->record_counters.SetState(WriterState::kDegraded);
  while (!queue.AtEnd() && !shared_->left_behind.load()) {
    const std::size_t n_taken = queue.Take(run_);
    std::size_t n = 0;
    for (; n < n_taken && HasArrived(run_[n]); ++n) Lose(run_[n]);
    if (n != 0) {
      queue.Release(n);
    } else if (n_taken != 0) {
      queue.WaitForOrders(Clock::now() + kLastLook);
    } else if (const auto request = queue.DueFlush(); request != nullptr) {
      queue.FinishFlush(request, why);
    } else {
      queue.WaitForWork(Clock::now() + ShardLog::kHeartbeat);
    }
  }
}

// --- Records -----------------------------------------------------------------

void WriterThread::Handle(QueueItem* item) {
  const Offer offer{
      .step = item->step, .n_bytes = item->n_bytes, .type = item->type};
  if (!Admits(shared_->disk_level.load(), item->type)) {
    return shard_log_.Drop(offer, GapReason::kDiskNearlyFull,
                           LostTensorsOf(item));
  }
  if (is_lost_) {
    return shard_log_.Drop(offer, GapReason::kDeviceError, LostTensorsOf(item));
  }
  const std::span<const std::byte> bytes(item->bytes(), n_arrived_);
  switch (item->type) {
    case RecordType::kRows:
      return shard_log_.AppendRows(offer, item->values<Row>());
    case RecordType::kTensor:
      return shard_log_.AppendTensor(
          offer,
          {.definition = item->subject,
           .call = item->call,
           .micro_batch = item->micro_batch,
           .flags = item->flags,
           .chunks = {}},
          bytes,
          {.zero_share = item->zero_share,
           .backlog = static_cast<double>(shared_->queue.used_bytes()) /
                      static_cast<double>(shared_->queue.capacity())});
    case RecordType::kScalar: {
      const auto scalars = item->values<Scalar>();
      return shard_log_.Append(offer, 0, DefinitionsOf(scalars),
                               EncodeScalars(scalars));
    }
    case RecordType::kSpan: {
      const auto spans = item->values<Span>();
      return shard_log_.Append(offer, 0, DefinitionsOf(spans),
                               EncodeSpans(spans));
    }
    case RecordType::kEvent:
      return shard_log_.Append(offer, item->subject, {}, bytes);
    case RecordType::kHistogram:
    case RecordType::kSamples:
      return shard_log_.Append(offer, item->subject, {&item->subject, 1}, bytes,
                               item->call, item->micro_batch);
    case RecordType::kStep:
      return HandleStep(offer, item);
    case RecordType::kPad:
    case RecordType::kDefinition:
    case RecordType::kGap:
    case RecordType::kIndex:
    case RecordType::kEnd:
      return;  // The shard log writes these itself; no producer offers them.
  }
}

void WriterThread::HandleStep(const Offer& offer, QueueItem* item) {
  // First the losses that belong to the step, then the record that closes it.
  shard_log_.AddLosses(shared_->record_counters.TakeLosses());
  shard_log_.AppendStep(offer, item->values<StepRecord>().front());
  publish_wanted_ = true;
}

void WriterThread::CheckDisk(Clock::time_point now) {
  const std::uint64_t wanted = shared_->options.min_free_bytes;
  const std::uint64_t written = shard_log_.written_bytes();
  if (wanted == 0 || (now < next_disk_check_ &&
                      written - bytes_at_disk_check_ < kDiskCheckBytes)) {
    return;
  }
  next_disk_check_ = now + kDiskCheckInterval;
  bytes_at_disk_check_ = written;
  FileSystem* file_system = shared_->options.file_system;
  if (file_system == nullptr) file_system = FileSystem::Posix();
  const auto free = FreeBytes(file_system, shard_log_.directory().path);
  // A disk that does not tell is as full as it last said.
  if (!free.ok()) return;
  DiskLevel level = DiskLevel::kPlenty;
  if (free.value() < wanted) level = DiskLevel::kNoTensors;
  if (free.value() < wanted / 2) level = DiskLevel::kNothing;
  shared_->disk_level.store(level);
  shard_log_.set_reserve(free.value() / 2 > wanted);
}

bool WriterThread::SpoolIsFull(Clock::time_point now) {
  const std::uint64_t bound = shared_->options.spool_bytes;
  if (bound == 0) return false;
  if (shared_->queue.stopped()) return spool_is_full_ = false;
  const std::uint64_t written = shard_log_.written_bytes();
  if (now < next_spool_check_ &&
      written - bytes_at_spool_check_ < bound / kSpoolChecks) {
    return spool_is_full_;
  }
  next_spool_check_ = now + kDiskCheckInterval;
  bytes_at_spool_check_ = written;
  FileSystem* file_system = shared_->options.file_system;
  if (file_system == nullptr) file_system = FileSystem::Posix();
  const auto used = BytesInDirectory(file_system, shard_log_.directory().path);
  // Full or not as before, where that is not known.
  if (used.ok()) spool_is_full_ = used.value() >= bound;
  return spool_is_full_;
}

}  // namespace tdbg
