#include "writer/journal.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/process.h"
#include "format/names.h"
#include "writer/index_writer.h"

namespace tdbg {

Journal::Journal(const WriterOptions& options, DefinitionTable* definitions,
                 Accounts* accounts, std::function<void()> progress)
    : options_(options),
      file_system_(options.file_system != nullptr ? options.file_system
                                                  : FileSystem::Posix()),
      definitions_(definitions),
      accounts_(accounts),
      progress_(std::move(progress)),
      encoder_(options.codec,
               options.previous_bytes.value_or(options.queue_bytes / 4)) {
  carried_steps_.reserve(kMaxCarriedSteps);
}

Status Journal::Create() {
  Result<WriterDirectory> directory = CreateWriterDirectory(
      file_system_, options_.run_directory, options_.role, options_.rank);
  if (!directory.ok()) return directory.status();
  directory_ = std::move(directory).value();
  TDBG_RETURN_IF_ERROR(
      commit_.Open(file_system_, directory_.path + "/COMMIT", slot_));
  next_heartbeat_ = Clock::now() + kHeartbeat;
  if (!OpenShard()) return std::exchange(first_error_, {});
  return Status::Ok();
}

// --- Records -----------------------------------------------------------------

void Journal::Append(const Offer& offer, std::uint32_t subject,
                     std::span<const std::uint32_t> definitions,
                     std::span<const std::byte> payload, std::uint16_t call,
                     std::uint16_t micro_batch) {
  if (!Ready()) return Lose(offer);
  pending_.push_back(offer);
  took_over_ = true;
  for (const std::uint32_t id : definitions) Require(id);
  shard_->Append(offer.type, offer.step, subject, payload, call, micro_batch);
}

void Journal::AppendRows(const Offer& offer, std::span<const Row> rows) {
  if (!Ready()) return Lose(offer);
  pending_.push_back(offer);
  took_over_ = true;
  for (const Row& row : rows) Require(row.definition);
  shard_->AppendRows(offer.step, rows);
}

void Journal::AppendTensor(const Offer& offer, TensorHead head,
                           std::span<const std::byte> raw,
                           const TensorHint& hint) {
  if (!Ready()) return Lose(offer);
  const bool is_encoded =
      encoder_.Begin(Require(head.definition), head, raw, hint);
  if (is_encoded) head.base_sequence = encoder_.base_sequence();
  // What is whole in the file is made visible before and after a large tensor,
  // so that it neither counts as failed nor, being a gap, is told again.
  const bool in_pieces = shard_->IsWrittenInPieces(raw.size(), is_encoded);
  if (in_pieces) {
    WriteLosses();
    if (!is_encoded) shard_->Align(raw);
    Publish();
  }
  if (shard_ == nullptr) return Lose(offer);
  pending_.push_back(offer);
  took_over_ = true;
  const Status status = shard_->AppendTensor(offer.step, std::move(head), raw,
                                             is_encoded ? &encoder_ : nullptr);
  if (!status.ok()) return Abandon(status);
  if (is_encoded) encoder_.Commit(shard_->next_sequence() - 1);
  if (in_pieces) Publish();
}

void Journal::AppendStep(const Offer& offer, const StepRecord& step) {
  const PendingStep pending{.offer = offer, .step = step};
  const bool is_ready = Ready();
  if (is_ready) pending_steps_.push_back(pending);
  if (!is_ready) Carry(pending);
  took_over_ = true;
  if (!is_ready) return;
  WriteLosses();
  WriteStep(pending);
}

void Journal::WriteStep(const PendingStep& pending) {
  const std::int64_t number = pending.step.step;
  StepRecord record = pending.step;
  if (const auto it = step_losses_.find(number); it != step_losses_.end()) {
    record.dropped += it->second.dropped;
    record.failed = it->second.failed;
    record.flags &= ~kStepSampled;  // More was lost.
  }
  // Those of an earlier step with this number may be in there, too.
  const std::uint64_t lost =
      std::min(record.offered, record.dropped + record.failed);
  record.written = record.offered - lost;
  shard_->Append(RecordType::kStep, number, record.mode, EncodeStep(record));
}

void Journal::WriteLosses() {
  if (losses_.empty()) return;
  for (const Gap& gap : losses_.Take()) {
    pending_gaps_.push_back(gap);
    shard_->Append(RecordType::kGap, gap.first_step, 0, EncodeGap(gap));
  }
}

const Definition& Journal::Require(std::uint32_t id) {
  if (id >= defined_.size()) defined_.resize(id + 1);
  if (defined_[id] == nullptr) {
    const Definition* definition = definitions_->Find(id);
    shard_->Append(RecordType::kDefinition, kNoStep, id,
                   EncodeDefinition(*definition));
    defined_[id] = definition;
  }
  return *defined_[id];
}

void Journal::Drop(const Offer& offer, GapReason reason) {
  accounts_->DroppedLater(offer, reason);
  took_over_ = true;
  losses_.Add(reason, offer);
  if (offer.type != RecordType::kStep) ++LossesOf(offer.step).dropped;
}

void Journal::AddLosses(const std::vector<Gap>& gaps) {
  for (const Gap& gap : gaps) losses_.Add(gap);
}

// --- Becoming visible and durable --------------------------------------------

void Journal::Publish() {
  if (shard_ == nullptr) return;
  WriteLosses();
  if (shard_->length() == slot_.visible && slot_.shard_number == last_number_) {
    return;
  }
  if (const Status status = shard_->WriteBatch(); !status.ok()) {
    return Abandon(status);
  }
  CountWritten();
  slot_.visible = shard_->written();
  slot_.durable = slot_.shard_number == last_number_ ? slot_.durable : 0;
  slot_.shard_number = last_number_;
  if (Clock::now() >= proven_at_) failures_ = 0;
  WriteSlot();
}

void Journal::WriteBehind() {
  if (shard_ == nullptr || !shard_->is_worth_writing()) return;
  if (const Status status = shard_->WriteBatch(); !status.ok()) {
    Abandon(status);
  }
}

void Journal::CountWritten() {
  std::uint64_t n_bytes = 0;
  for (const Offer& offer : pending_) n_bytes += offer.n_bytes;
  for (const PendingStep& step : pending_steps_) {
    n_bytes += step.offer.n_bytes;
    step_losses_.erase(step.step.step);
  }
  accounts_->Written(pending_.size() + pending_steps_.size(), n_bytes);
  accounts_->AddFileBytes(shard_->written() - counted_bytes_);
  written_bytes_ += shard_->written() - counted_bytes_;
  counted_bytes_ = shard_->written();
  pending_.clear();
  pending_steps_.clear();
  pending_gaps_.clear();
}

Status Journal::SyncShard() {
  // Each call is progress: what a producer's patience is for is one of them.
  TDBG_RETURN_IF_ERROR(shard_->Sync());
  progress_();
  if (!directory_is_synced_) {
    TDBG_RETURN_IF_ERROR(SyncDirectory(file_system_, directory_.path));
    directory_is_synced_ = true;
    progress_();
  }
  if (!parents_are_synced_) {
    TDBG_RETURN_IF_ERROR(
        SyncDirectory(file_system_, options_.run_directory + "/w"));
    progress_();
    TDBG_RETURN_IF_ERROR(SyncDirectory(file_system_, options_.run_directory));
    parents_are_synced_ = true;
  }
  slot_.durable = shard_->written();
  progress_();
  return Status::Ok();
}

Status Journal::Flush(bool durable) {
  Publish();
  if (durable && shard_ != nullptr) {
    if (const Status status = SyncShard(); status.ok()) {
      WriteSlot();
    } else {
      Abandon(status);
    }
  }
  Status status = std::exchange(first_error_, {});
  if (status.ok() && shard_ == nullptr) return last_failure_;
  return status;
}

void Journal::WriteSlot() {
  const Counters counters = accounts_->counters();
  slot_.written = counters.written;
  slot_.lost = counters.dropped + counters.failed;
  if (slot_.state != WriterState::kClosed) {
    slot_.state = shard_ == nullptr && failures_ >= kMaxFailures
                      ? WriterState::kDegraded
                      : WriterState::kRunning;
  }
  slot_.last_errno = static_cast<std::uint16_t>(counters.last_errno);
  accounts_->SetState(slot_.state);
  NoteError(commit_.Write(slot_));
  next_heartbeat_ = Clock::now() + kHeartbeat;
  progress_();
}

void Journal::Tick() {
  const bool is_wanted =
      !losses_.empty() || !carried_steps_.empty() || shard_ == nullptr;
  if (is_wanted && Ready()) Publish();
  if (Clock::now() >= next_heartbeat_) WriteSlot();
}

// --- Shards ------------------------------------------------------------------

bool Journal::Ready() {
  if (shard_ != nullptr && (shard_->length() >= options_.shard_bytes ||
                            shard_->n_rows() >= kMaxRows ||
                            shard_->entries().size() >= kMaxRecords)) {
    SealShard(EndReason::kRotated);
  }
  if (shard_ != nullptr) return true;
  if (Clock::now() < next_attempt_) return false;
  return OpenShard();
}

bool Journal::OpenShard() {
  const std::uint32_t number = last_number_ + 1;
  const FileHeader header{.role = options_.role,
                          .run = options_.run,
                          .attempt = options_.attempt,
                          .attempt_ordinal = options_.attempt_ordinal,
                          .rank = options_.rank,
                          .world_size = options_.world_size,
                          .generation = directory_.generation,
                          .shard_number = number,
                          .salt = RandomBits(),
                          .created_ns = WallNs(),
                          .first_sequence = next_sequence_};
  const std::string path = directory_.path + "/" + ShardName(number, ".tds");
  auto shard = std::make_unique<ShardWriter>(options_.queue_bytes, [this] {
    progress_();
    if (Clock::now() >= next_heartbeat_) WriteSlot();
  });
  shard->set_reserve(reserve_);
  if (const Status status = shard->Open(file_system_, path, header);
      !status.ok()) {
    // A number is used up by a file that stays, so that readers miss none.
    bool stays = status.system_error() == EEXIST;
    if (shard->is_open()) {
      (void)shard->Close();
      stays = !RemoveFile(file_system_, path).ok();
    }
    if (stays) ++last_number_;
    NoteFailure(status);
    return false;
  }
  last_number_ = number;
  proven_at_ = Clock::now() + back_off_;
  shard_ = std::move(shard);
  encoder_.BeginShard();
  counted_bytes_ = 0;
  defined_.clear();
  directory_is_synced_ = false;
  accounts_->AddShard();
  WriteLosses();
  pending_steps_.insert(pending_steps_.end(), carried_steps_.begin(),
                        carried_steps_.end());
  carried_steps_.clear();
  for (const PendingStep& step : pending_steps_) WriteStep(step);
  return true;
}

void Journal::SealShard(EndReason reason) {
  Publish();
  if (shard_ == nullptr) return;
  if (const Status status = shard_->Seal(reason); !status.ok()) {
    return Abandon(status);
  }
  CountWritten();
  slot_.visible = shard_->written();
  WriteSlot();
  if (const Status status = SyncShard(); !status.ok()) return Abandon(status);
  if (!shard_->index_file().empty()) {
    NoteError(WriteIndexFile(
        file_system_, directory_.path + "/" + ShardName(last_number_, ".tdi"),
        shard_->index_file()));
    progress_();
  }
  NoteError(shard_->Close());
  next_sequence_ = shard_->next_sequence();
  shard_.reset();
}

void Journal::Abandon(const Status& why) {
  if (shard_ == nullptr) return;
  // Numbers that may be on the disk are not given out again.
  next_sequence_ = shard_->next_sequence();
  shard_.reset();
  // The counts first; the rest needs memory.
  const std::vector<Offer> lost = std::exchange(pending_, {});
  for (const Offer& offer : lost) accounts_->Failed(offer);
  for (const PendingStep& step : std::exchange(pending_steps_, {})) {
    Carry(step);
  }
  NoteFailure(why);
  for (const Gap& gap : std::exchange(pending_gaps_, {})) losses_.Add(gap);
  for (const Offer& offer : lost) NoteLoss(offer);
  WriteSlot();
}

void Journal::Carry(const PendingStep& step) {
  if (carried_steps_.size() < kMaxCarriedSteps) {
    carried_steps_.push_back(step);
  } else {
    Fail(step.offer);
  }
}

void Journal::Fail(const Offer& offer) {
  accounts_->Failed(offer);
  NoteLoss(offer);
}

void Journal::NoteLoss(const Offer& offer) {
  losses_.Add(GapReason::kIoError, offer);
  if (offer.type != RecordType::kStep) ++LossesOf(offer.step).failed;
}

Journal::StepLosses& Journal::LossesOf(std::int64_t step) {
  StepLosses& losses = step_losses_[step];
  if (step_losses_.size() > kMaxStepLosses &&
      step_losses_.begin()->first != step) {
    step_losses_.erase(step_losses_.begin());
  }
  return losses;
}

void Journal::NoteError(const Status& status) {
  if (status.ok()) return;
  accounts_->AddIoError(status.system_error());
  if (first_error_.ok()) first_error_ = status;
}

void Journal::NoteFailure(const Status& status) {
  NoteError(status);
  last_failure_ = status;
  back_off_ = std::min<Clock::duration>(
      options_.retry_interval * (1 << std::min(failures_, 20)), kMaxBackOff);
  ++failures_;
  next_attempt_ = Clock::now() + back_off_;
}

void Journal::LoseSteps() {
  for (const PendingStep& step : carried_steps_) Fail(step.offer);
  carried_steps_.clear();
}

Status Journal::Close() {
  // Twice: a failure while the last data is written is told in one more shard.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool has_news = !losses_.empty() || !carried_steps_.empty();
    if (shard_ == nullptr && (!has_news || !OpenShard())) break;
    SealShard(EndReason::kClosed);
  }
  LoseSteps();
  slot_.state = WriterState::kClosed;
  WriteSlot();
  return std::exchange(first_error_, {});
}

}  // namespace tdbg
