// ShardLog is the sequence of shards of one writer directory, with its index
// files and its commit page, and the policy for when the disk refuses.
//
// Implements docs/format.md, "Writing".  After the first failed write or sync a
// shard is abandoned as it is; what was not yet visible is counted as failed
// and recorded in a `gap` of the next shard, which is tried at growing
// intervals. After kMaxFailures in a row the shard log is degraded: it keeps
// trying, and everything offered meanwhile is counted as failed.  Records that
// close a step are kept over a failure (within a bound) and written to the next
// shard, with the losses of their step.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: Create, Flush and Close return them.  The first one met is kept until
// one of these does.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "writer/commit_writer.h"
#include "writer/definition_table.h"
#include "writer/record_counters.h"
#include "writer/retention.h"
#include "writer/shard_writer.h"
#include "writer/tensor_encoder.h"
#include "writer/writer.h"
#include "writer/writer_directory.h"

namespace tdbg {

class ShardLog {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kMaxFailures = 5;
  static constexpr std::chrono::seconds kMaxBackOff{30};
  static constexpr std::chrono::milliseconds kHeartbeat{500};
  static constexpr std::size_t kMaxCarriedSteps = 64;
  static constexpr std::size_t kMaxStepLosses = 4096;
  // A shard is sealed at this many rows or records, too: they are held for its
  // index, so this bounds memory (to 8 and 10 MiB), and what a reader has to
  // walk of a shard that is still written.
  static constexpr std::size_t kMaxRows = 64U << 10;
  static constexpr std::size_t kMaxRecords = 64U << 10;

  // REQUIRES: all outlive the shard log.  `progress` is called when something
  // was written or encoded.
  ShardLog(const WriterOptions& options, DefinitionTable* definitions,
           RecordCounters* record_counters, std::function<void()> progress);
  ShardLog(const ShardLog&) = delete;
  ShardLog& operator=(const ShardLog&) = delete;

  // Makes the directory, the commit page and the first shard.
  Status Create();

  // Each takes an offered record over: it ends as written or as failed.
  // `definitions` are those that it refers to.
  void Append(const Offer& offer, std::uint32_t subject,
              std::span<const std::uint32_t> definitions,
              std::span<const std::byte> payload, std::uint16_t call = 0,
              std::uint16_t micro_batch = 0);
  void AppendRows(const Offer& offer, std::span<const Row> rows);
  void AppendTensor(const Offer& offer, TensorHead head,
                    std::span<const std::byte> raw, const TensorHint& hint);
  // `step` has `offered` and, of the producers, `dropped`.
  void AppendStep(const Offer& offer, const StepRecord& step);
  // Before each record that is offered: whether one of the above, or Drop, took
  // it over since.
  void BeginRecord() { took_over_ = false; }
  [[nodiscard]] bool took_over() const { return took_over_; }
  // The record, of these definitions, ends as failed.
  void Lose(const Offer& offer, std::span<const std::uint32_t> definitions) {
    took_over_ = true;
    Fail(offer, definitions);
  }
  // The same, as dropped.
  void Drop(const Offer& offer, GapReason reason,
            std::span<const std::uint32_t> definitions);
  // Losses of the producers, to be recorded in `gap` records.
  void AddLosses(const std::vector<Gap>& gaps);

  // Makes what was appended visible to readers.
  void Publish();
  // Writes what was appended already, if it is worth a call, so that Publish
  // has less to do.
  void WriteBehind();
  Status Flush(bool durable);
  // To be called often: keeps the heartbeat and looks for a new shard.
  void Tick();
  // Seals the shard and closes the commit page.
  Status Close();
  // Gives the shard up: something went wrong while a record was appended.
  void Abandon(const Status& why);
  // Steps that were kept for the next shard end as failed: there is none.
  void LoseSteps();

  [[nodiscard]] bool batch_is_full() const {
    return shard_ != nullptr && shard_->batch_is_full();
  }
  // No shard for a short while: what is queued had better wait.
  [[nodiscard]] bool is_backing_off() const {
    return shard_ == nullptr && failures_ < kMaxFailures &&
           Clock::now() < next_attempt_;
  }
  [[nodiscard]] Clock::time_point next_attempt() const { return next_attempt_; }
  // Blocks are reserved ahead of the data where there is plenty.
  void set_reserve(bool on) {
    if (on == reserve_) return;  // A shard may have had reason not to.
    reserve_ = on;
    if (shard_ != nullptr) shard_->set_reserve(on);
  }
  // Bytes written to shards so far.
  [[nodiscard]] std::uint64_t written_bytes() const { return written_bytes_; }
  [[nodiscard]] const WriterDirectory& directory() const { return directory_; }

 private:
  struct StepLosses {
    std::uint64_t dropped = 0;
    std::uint64_t failed = 0;
  };
  // A record, and how many of pending_definitions_ are its.
  struct Pending {
    Offer offer;
    std::uint32_t n_definitions = 0;
  };
  struct PendingStep {
    Offer offer;
    StepRecord step;
  };

  // To be called often while something takes its time.
  void KeepAlive();
  // Removes what is to go; errors are counted.
  void Retain();
  // True when there is a shard to append to.
  bool Ready();
  // Whether the shard's first record has been visible for too long.
  [[nodiscard]] bool IsOld() const;
  bool OpenShard();
  void SealShard(EndReason reason);
  Status SyncShard();
  // Sees to it that the shard has the definition, which is returned.
  const Definition& Require(std::uint32_t id);
  void WriteStep(const PendingStep& pending);
  void WriteLosses();
  void WriteLostTensors();
  void WriteSlot();
  void Fail(const Offer& offer, std::span<const std::uint32_t> definitions);
  void NoteLoss(const Offer& offer, std::span<const std::uint32_t> definitions);
  // False when the shard's file has no name any more: nobody will ever read it,
  // so it is given up, and what was written to it is lost, too.
  bool HasName();
  void NoteWritten(const Offer& offer);
  void Carry(const PendingStep& step);
  void NoteError(const Status& status);
  void NoteFailure(const Status& status);
  void CountWritten();
  StepLosses& LossesOf(std::int64_t step);

  // Constant after construction.
  const WriterOptions options_;
  const std::uint64_t shard_bytes_;
  FileSystem* const file_system_;
  DefinitionTable* const definitions_;
  RecordCounters* const record_counters_;
  const std::function<void()> progress_;

  WriterDirectory directory_;
  CommitWriter commit_;
  CommitSlot slot_;
  Clock::time_point next_heartbeat_;

  Retention retention_;
  std::int64_t newest_step_ = kNoStep;

  // The current shard; null while there is none.
  std::unique_ptr<ShardWriter> shard_;
  TensorEncoder encoder_;
  // Definitions that the shard has, by id; null for the others.
  std::vector<const Definition*> defined_;
  std::uint64_t counted_bytes_ = 0;  // Of the shard, in the record_counters.
  bool directory_is_synced_ = false;
  bool parents_are_synced_ = false;
  std::uint32_t last_number_ = 0;
  std::uint64_t next_sequence_ = 1;
  // Of the shard: records from here on are not visible yet.
  std::uint64_t visible_sequence_ = 1;
  // What is visible in it, as it would be reported if it were lost.
  Gap contents_;
  std::vector<std::uint64_t> contents_by_definition_;
  Clock::time_point first_visible_at_;  // If anything is visible.
  std::uint64_t written_bytes_ = 0;
  bool reserve_ = true;

  bool took_over_ = false;

  // In the batch, not yet visible.
  std::vector<Pending> pending_;
  std::vector<std::uint32_t> pending_definitions_;
  std::vector<PendingStep> pending_steps_;
  std::vector<Gap> pending_gaps_;

  // For the next shard, or the next opportunity.
  DropLog drop_log_;
  std::vector<PendingStep> carried_steps_;
  std::map<std::int64_t, StepLosses> step_losses_;
  bool is_closing_ = false;

  // In a row: forgotten when a shard outlives the back-off that led to it, so
  // that a disk with room for a header only is not filled with headers.
  int failures_ = 0;
  Clock::time_point next_attempt_;
  Clock::duration back_off_{};
  Clock::time_point proven_at_;
  Status first_error_;  // Since an error was last returned.
  Status last_failure_;
};

}  // namespace tdbg
