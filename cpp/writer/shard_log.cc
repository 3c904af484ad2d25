#include "writer/shard_log.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/process.h"
#include "format/names.h"
#include "writer/index_writer.h"

namespace tdbg {
namespace {

// The severity of an event.
constexpr std::uint16_t kInformation = 1;

}  // namespace

ShardLog::ShardLog(const WriterOptions& options, DefinitionTable* definitions,
                   RecordCounters* record_counters,
                   std::function<void()> progress)
    : options_(options),
      shard_bytes_(options.retention.ShardBytes(options.shard_bytes)),
      file_system_(options.file_system != nullptr ? options.file_system
                                                  : FileSystem::Posix()),
      definitions_(definitions),
      record_counters_(record_counters),
      progress_(std::move(progress)),
      retention_(file_system_, options.retention, [this] { KeepAlive(); }),
      encoder_(options.codec,
               options.previous_bytes.value_or(options.queue_bytes / 4)) {
  carried_steps_.reserve(kMaxCarriedSteps);
}

Status ShardLog::Create() {
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

void ShardLog::Append(const Offer& offer, std::uint32_t subject,
                      std::span<const std::uint32_t> definitions,
                      std::span<const std::byte> payload, std::uint16_t call,
                      std::uint16_t micro_batch) {
  if (!Ready()) return Lose(offer, definitions);
  pending_.push_back({offer, static_cast<std::uint32_t>(definitions.size())});
  pending_definitions_.insert(pending_definitions_.end(), definitions.begin(),
                              definitions.end());
  took_over_ = true;
  for (const std::uint32_t id : definitions) Require(id);
  shard_->Append(offer.type, offer.step, subject, payload, call, micro_batch);
}

void ShardLog::AppendRows(const Offer& offer, std::span<const Row> rows) {
  if (!Ready()) return Lose(offer, DefinitionsOf(rows));
  pending_.push_back({offer, static_cast<std::uint32_t>(rows.size())});
  took_over_ = true;
  for (const Row& row : rows) {
    Require(row.definition);
    pending_definitions_.push_back(row.definition);
  }
  shard_->AppendRows(offer.step, rows);
}

void ShardLog::AppendTensor(const Offer& offer, TensorHead head,
                            std::span<const std::byte> raw,
                            const TensorHint& hint) {
  const std::uint32_t id = head.definition;
  if (!Ready()) return Lose(offer, {&id, 1});
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
  if (shard_ == nullptr) return Lose(offer, {&id, 1});
  pending_.push_back({offer, 1});
  pending_definitions_.push_back(id);
  took_over_ = true;
  const Status status = shard_->AppendTensor(offer.step, std::move(head), raw,
                                             is_encoded ? &encoder_ : nullptr);
  if (!status.ok()) return Abandon(status);
  if (is_encoded) encoder_.Commit(shard_->next_sequence() - 1);
  if (in_pieces) Publish();
}

void ShardLog::AppendStep(const Offer& offer, const StepRecord& step) {
  const PendingStep pending{.offer = offer, .step = step};
  newest_step_ = std::max(newest_step_, step.step);
  const bool is_ready = Ready();
  if (is_ready) pending_steps_.push_back(pending);
  if (!is_ready) Carry(pending);
  took_over_ = true;
  if (!is_ready) return;
  WriteLosses();
  WriteStep(pending);
}

void ShardLog::WriteStep(const PendingStep& pending) {
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

void ShardLog::WriteLosses() {
  if (!drop_log_.empty()) {
    for (const Gap& gap : drop_log_.Take()) {
      pending_gaps_.push_back(gap);
      shard_->Append(RecordType::kGap, gap.first_step, 0, EncodeGap(gap));
    }
  }
  WriteLostTensors();
}

void ShardLog::WriteLostTensors() {
  for (const auto& lost : record_counters_->TakeLostTensors(is_closing_)) {
    const Event event{.kind = EventKind::kMessage,
                      .severity = kInformation,
                      .wall_ns = WallNs(),
                      .json = LostTensorsJson(lost, definitions_)};
    shard_->Append(RecordType::kEvent, kNoStep,
                   static_cast<std::uint32_t>(event.kind), EncodeEvent(event));
  }
}

const Definition& ShardLog::Require(std::uint32_t id) {
  if (id >= defined_.size()) defined_.resize(id + 1);
  if (defined_[id] == nullptr) {
    const Definition* definition = definitions_->Find(id);
    shard_->Append(RecordType::kDefinition, kNoStep, id,
                   EncodeDefinition(*definition));
    defined_[id] = definition;
  }
  return *defined_[id];
}

void ShardLog::Drop(const Offer& offer, GapReason reason,
                    std::span<const std::uint32_t> definitions) {
  record_counters_->DroppedLater(offer, reason);
  took_over_ = true;
  drop_log_.Add(reason, offer);
  record_counters_->LostOf(definitions, reason, offer.step);
  if (offer.type != RecordType::kStep) ++LossesOf(offer.step).dropped;
}

void ShardLog::AddLosses(const std::vector<Gap>& gaps) {
  for (const Gap& gap : gaps) drop_log_.Add(gap);
}

// --- Becoming visible and durable --------------------------------------------

bool ShardLog::HasName() {
  const Status status = shard_->CheckName();
  if (status.ok()) return true;
  const Gap lost = std::exchange(contents_, {});
  if (lost.records > 0) {
    record_counters_->Unwritten(lost);
    drop_log_.Add(lost);
    for (std::uint32_t id = 0; id < contents_by_definition_.size(); ++id) {
      const std::uint64_t n = contents_by_definition_[id];
      if (n == 0) continue;
      record_counters_->LostOf({&id, 1}, lost.reason, lost.first_step, n);
    }
    contents_by_definition_.clear();
  }
  Abandon(status);
  return false;
}

void ShardLog::NoteWritten(const Offer& offer) {
  ++contents_.records;
  contents_.bytes += offer.n_bytes;
  contents_.what |= GapBit(offer.type);
  if (offer.step == kNoStep) return;
  const bool is_first = contents_.first_step == kNoStep;
  contents_.first_step =
      is_first ? offer.step : std::min(contents_.first_step, offer.step);
  contents_.last_step = std::max(contents_.last_step, offer.step);
}

void ShardLog::Publish() {
  if (shard_ == nullptr || !HasName()) return;
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

void ShardLog::WriteBehind() {
  if (shard_ == nullptr || !shard_->is_worth_writing()) return;
  if (const Status status = shard_->WriteBatch(); !status.ok()) {
    Abandon(status);
  }
}

void ShardLog::CountWritten() {
  std::uint64_t n_bytes = 0;
  for (const Pending& each : pending_) {
    n_bytes += each.offer.n_bytes;
    NoteWritten(each.offer);
  }
  for (const std::uint32_t id : pending_definitions_) {
    if (id >= contents_by_definition_.size()) {
      contents_by_definition_.resize(id + 1);
    }
    ++contents_by_definition_[id];
  }
  for (const PendingStep& step : pending_steps_) {
    n_bytes += step.offer.n_bytes;
    NoteWritten(step.offer);
    step_losses_.erase(step.step.step);
  }
  record_counters_->Written(pending_.size() + pending_steps_.size(), n_bytes);
  record_counters_->AddFileBytes(shard_->written() - counted_bytes_);
  written_bytes_ += shard_->written() - counted_bytes_;
  counted_bytes_ = shard_->written();
  if (visible_sequence_ == contents_.first_sequence) {
    first_visible_at_ = Clock::now();
  }
  visible_sequence_ = contents_.end_sequence = shard_->next_sequence();
  pending_.clear();
  pending_definitions_.clear();
  pending_steps_.clear();
  pending_gaps_.clear();
}

Status ShardLog::SyncShard() {
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

Status ShardLog::Flush(bool durable) {
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

void ShardLog::WriteSlot() {
  const Counters counters = record_counters_->totals();
  slot_.written = counters.written;
  slot_.lost = counters.dropped + counters.failed;
  if (slot_.state != WriterState::kClosed) {
    slot_.state = shard_ == nullptr && failures_ >= kMaxFailures
                      ? WriterState::kDegraded
                      : WriterState::kRunning;
  }
  slot_.last_errno = static_cast<std::uint16_t>(counters.last_errno);
  record_counters_->SetState(slot_.state);
  NoteError(commit_.Write(slot_));
  next_heartbeat_ = Clock::now() + kHeartbeat;
  progress_();
}

void ShardLog::Tick() {
  if (IsOld()) {
    SealShard(EndReason::kRotated);
    if (shard_ == nullptr) Retain();
  }
  const bool is_wanted =
      !drop_log_.empty() || !carried_steps_.empty() || shard_ == nullptr;
  if (is_wanted && Ready()) Publish();
  if (Clock::now() < next_heartbeat_) return;
  if (shard_ != nullptr) (void)HasName();
  WriteSlot();
}

// --- Shards ------------------------------------------------------------------

bool ShardLog::IsOld() const {
  return shard_ != nullptr && options_.shard_age.count() != 0 &&
         visible_sequence_ != contents_.first_sequence &&
         Clock::now() - first_visible_at_ >= options_.shard_age;
}

bool ShardLog::Ready() {
  if (shard_ != nullptr && (shard_->length() >= shard_bytes_ || IsOld() ||
                            shard_->n_rows() >= kMaxRows ||
                            shard_->entries().size() >= kMaxRecords)) {
    SealShard(EndReason::kRotated);
    if (shard_ == nullptr) Retain();
  }
  if (shard_ != nullptr) return true;
  if (Clock::now() < next_attempt_) return false;
  return OpenShard();
}

bool ShardLog::OpenShard() {
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
  auto shard = std::make_unique<ShardWriter>(options_.queue_bytes,
                                             [this] { KeepAlive(); });
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
  visible_sequence_ = next_sequence_;
  contents_ = Gap{.reason = GapReason::kIoError,
                  .first_sequence = next_sequence_,
                  .end_sequence = next_sequence_};
  encoder_.BeginShard();
  contents_by_definition_.clear();
  counted_bytes_ = 0;
  defined_.clear();
  directory_is_synced_ = false;
  record_counters_->AddShard();
  WriteLosses();
  pending_steps_.insert(pending_steps_.end(), carried_steps_.begin(),
                        carried_steps_.end());
  carried_steps_.clear();
  for (const PendingStep& step : pending_steps_) WriteStep(step);
  return true;
}

void ShardLog::KeepAlive() {
  progress_();
  if (Clock::now() >= next_heartbeat_) WriteSlot();
}

void ShardLog::Retain() {
  if (!options_.retention.is_set()) return;
  auto directories = ListWriterDirectories(file_system_, options_.run_directory,
                                           options_.role, options_.rank);
  Status status = directories.status();
  if (directories.ok()) {
    status = retention_
                 .Apply({.directories = std::move(directories).value(),
                         .newest_step = newest_step_,
                         .headroom = 2 * shard_bytes_})
                 .status;
  }
  // Nothing that was recorded is lost by it.
  if (!status.ok()) record_counters_->AddIoError(status.system_error());
}

void ShardLog::SealShard(EndReason reason) {
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

void ShardLog::Abandon(const Status& why) {
  if (shard_ == nullptr) return;
  // Numbers that may be on the disk are not given out again.
  next_sequence_ = shard_->next_sequence();
  shard_.reset();
  // The counts first; the rest needs memory.
  const std::vector<Pending> lost = std::exchange(pending_, {});
  const auto definitions = std::exchange(pending_definitions_, {});
  for (const Pending& each : lost) record_counters_->Failed(each.offer);
  record_counters_->ForgetLostTensors();
  for (const PendingStep& step : std::exchange(pending_steps_, {})) {
    Carry(step);
  }
  NoteFailure(why);
  for (const Gap& gap : std::exchange(pending_gaps_, {})) drop_log_.Add(gap);
  std::span<const std::uint32_t> rest = definitions;
  for (const Pending& each : lost) {
    // There are fewer if memory failed while the record was appended.
    const std::size_t n =
        std::min<std::size_t>(each.n_definitions, rest.size());
    NoteLoss(each.offer, rest.first(n));
    rest = rest.subspan(n);
  }
  // Even where nothing that was offered is lost: readers miss the numbers.
  if (visible_sequence_ < next_sequence_) {
    drop_log_.Add(Gap{.first_step = kNoStep,
                      .last_step = kNoStep,
                      .reason = GapReason::kIoError,
                      .first_sequence = visible_sequence_,
                      .end_sequence = next_sequence_});
  }
  WriteSlot();
}

void ShardLog::Carry(const PendingStep& step) {
  if (carried_steps_.size() < kMaxCarriedSteps) {
    carried_steps_.push_back(step);
  } else {
    Fail(step.offer, {});
  }
}

void ShardLog::Fail(const Offer& offer,
                    std::span<const std::uint32_t> definitions) {
  record_counters_->Failed(offer);
  NoteLoss(offer, definitions);
}

void ShardLog::NoteLoss(const Offer& offer,
                        std::span<const std::uint32_t> definitions) {
  drop_log_.Add(GapReason::kIoError, offer);
  record_counters_->LostOf(definitions, GapReason::kIoError, offer.step);
  if (offer.type != RecordType::kStep) ++LossesOf(offer.step).failed;
}

ShardLog::StepLosses& ShardLog::LossesOf(std::int64_t step) {
  StepLosses& losses = step_losses_[step];
  if (step_losses_.size() > kMaxStepLosses &&
      step_losses_.begin()->first != step) {
    step_losses_.erase(step_losses_.begin());
  }
  return losses;
}

void ShardLog::NoteError(const Status& status) {
  if (status.ok()) return;
  record_counters_->AddIoError(status.system_error());
  if (first_error_.ok()) first_error_ = status;
}

void ShardLog::NoteFailure(const Status& status) {
  NoteError(status);
  last_failure_ = status;
  back_off_ = std::min<Clock::duration>(
      options_.retry_interval * (1 << std::min(failures_, 20)), kMaxBackOff);
  ++failures_;
  next_attempt_ = Clock::now() + back_off_;
}

void ShardLog::LoseSteps() {
  for (const PendingStep& step : carried_steps_) Fail(step.offer, {});
  carried_steps_.clear();
}

Status ShardLog::Close() {
  is_closing_ = true;
  // Twice: a failure while the last data is written is told in one more shard.
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool has_news = !drop_log_.empty() || !carried_steps_.empty();
    if (shard_ == nullptr && (!has_news || !OpenShard())) break;
    SealShard(EndReason::kClosed);
  }
  LoseSteps();
  slot_.state = WriterState::kClosed;
  WriteSlot();
  return std::exchange(first_error_, {});
}

}  // namespace tdbg
