#include "writer/writer_thread.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "base/coding.h"

namespace tdbg {
namespace {

// Every definition that a table of records refers to, without repetitions.
template <typename Entry>
std::vector<std::uint32_t> DefinitionsOf(std::span<const Entry> entries) {
  std::vector<std::uint32_t> ids;
  ids.reserve(entries.size());
  for (const Entry& entry : entries) ids.push_back(entry.definition);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

WriterThread::WriterThread(WriterShared* shared)
    : shared_(shared),
      journal_(shared->options, &shared->definitions, &shared->accounts,
               [shared] { shared->queue.NoteProgress(); }) {}

Status WriterThread::Start() {
  TDBG_RETURN_IF_ERROR(journal_.Create());
  CheckDisk();
  journal_.Publish();
  next_publish_ = Clock::now() + shared_->options.flush_interval;
  return Status::Ok();
}

Status WriterThread::Run() {
  for (;;) {
    try {
      if (!Turn()) break;
    } catch (const std::exception& error) {
      // Only memory can be missing: the core throws nothing itself.  What was
      // half appended is given up like after a failed write.
      journal_.Abandon(Status::IoError(error.what(), ENOMEM));
      if (item_ != nullptr)
        shared_->queue.Release(std::exchange(item_, nullptr));
    }
    if (shared_->left_behind.load()) {
      return Status::DeadlineExceeded("the writer was left behind");
    }
  }
  journal_.AddLosses(shared_->accounts.TakeLosses());
  return journal_.Close();
}

bool WriterThread::Turn() {
  RecordQueue& queue = shared_->queue;
  // A short back-off is waited for with the data in the queue, as long as that
  // has room; producers must not feel it.
  const bool hold =
      journal_.is_backing_off() && !queue.half_full() && !queue.stopped();
  item_ = hold ? nullptr : queue.Next();
  if (item_ != nullptr) {
    CheckDisk();
    Handle(item_);
    queue.Release(std::exchange(item_, nullptr));
    if (journal_.batch_is_full() || Clock::now() >= next_publish_) Publish();
    return true;
  }
  if (const auto request = queue.DueFlush(); request != nullptr) {
    journal_.AddLosses(shared_->accounts.TakeLosses());
    queue.FinishFlush(request, journal_.Flush(request->durable));
    return true;
  }
  if (queue.AtEnd()) return false;
  if (publish_wanted_ || Clock::now() >= next_publish_) Publish();
  CheckDisk();
  journal_.Tick();
  Clock::time_point deadline =
      std::min(next_publish_, Clock::now() + Journal::kHeartbeat);
  if (hold) deadline = std::min(deadline, journal_.next_attempt());
  queue.Wait(deadline);
  return true;
}

void WriterThread::Publish() {
  journal_.AddLosses(shared_->accounts.TakeLosses());
  journal_.Publish();
  publish_wanted_ = false;
  next_publish_ = Clock::now() + shared_->options.flush_interval;
}

void WriterThread::Handle(QueueItem* item) {
  const Offer offer{
      .step = item->step, .n_bytes = item->n_bytes, .type = item->type};
  if (!Admits(shared_->disk_level.load(), item->type)) {
    return journal_.Drop(offer, GapReason::kDiskNearlyFull);
  }
  const std::span<const std::byte> bytes(item->bytes(), item->n_bytes);
  switch (item->type) {
    case RecordType::kRows:
      return journal_.AppendRows(offer, item->values<Row>());
    case RecordType::kTensor:
      return journal_.AppendTensor(
          offer,
          {.definition = item->subject,
           .call = item->call,
           .micro_batch = item->micro_batch,
           .flags = item->flags,
           .chunks = {}},
          bytes,
          {.zero_share = item->zero_share, .backlog = shared_->queue.fill()});
    case RecordType::kScalar: {
      const auto scalars = item->values<Scalar>();
      return journal_.Append(offer, 0, DefinitionsOf(scalars),
                             EncodeScalars(scalars));
    }
    case RecordType::kSpan: {
      const auto spans = item->values<Span>();
      return journal_.Append(offer, 0, DefinitionsOf(spans),
                             EncodeSpans(spans));
    }
    case RecordType::kEvent:
      return journal_.Append(offer, item->subject, {}, bytes);
    case RecordType::kHistogram:
      return journal_.Append(offer, item->subject, {&item->subject, 1}, bytes,
                             item->call, item->micro_batch);
    case RecordType::kStep:
      return HandleStep(offer, item);
    default:
      return;  // Producers offer nothing else.
  }
}

void WriterThread::HandleStep(const Offer& offer, QueueItem* item) {
  // First the losses that belong to the step, then the record that closes it.
  journal_.AddLosses(shared_->accounts.TakeLosses());
  journal_.AppendStep(offer, item->values<StepRecord>().front());
  publish_wanted_ = true;
}

void WriterThread::CheckDisk() {
  const std::uint64_t wanted = shared_->options.min_free_bytes;
  const Clock::time_point now = Clock::now();
  const std::uint64_t written = journal_.written_bytes();
  if (wanted == 0 || (now < next_disk_check_ &&
                      written - bytes_at_disk_check_ < kDiskCheckBytes)) {
    return;
  }
  next_disk_check_ = now + kDiskCheckInterval;
  bytes_at_disk_check_ = written;
  FileSystem* file_system = shared_->options.file_system;
  if (file_system == nullptr) file_system = FileSystem::Posix();
  const auto free = FreeBytes(file_system, journal_.directory().path);
  // A disk that does not tell is as full as it last said.
  if (!free.ok()) return;
  DiskLevel level = DiskLevel::kPlenty;
  if (free.value() < wanted) level = DiskLevel::kNoTensors;
  if (free.value() < wanted / 2) level = DiskLevel::kNothing;
  shared_->disk_level.store(level);
  journal_.set_reserve(free.value() / 2 > wanted);
}

}  // namespace tdbg
