// Writer takes records from any thread and appends them to the shards of one
// writer directory, from a thread of its own.
//
// Implements docs/format.md, "Writing".  Data, flush and stop go through one
// queue, in order.  What crosses it is owned bytes in bounded staging memory;
// the writer thread never touches Python.
//
// Thread safety: all methods may be called from any thread.  No lock is held
// while they return, and none of them calls back, so a caller may hold Python's
// GIL or not; those that may wait (all that offer records, under kBlock; Open,
// Flush, Close, the destructor) should be called without it.
//
// After fork() the child's copy is inert: no call takes a lock or touches a
// file; offers return false, Define 0, definition() null, counters() zeros,
// Flush kClosed, Close ok.
//
// Errors: Open reports them.  Afterwards nothing is returned from the
// producers' calls but "taken" or "not taken": disk errors are met by the
// writer thread, counted, and returned by the next Flush or Close.  No signal
// handler is installed; the thread has all signals blocked.  An exception in
// the thread costs the shard what was not visible yet, like a failed write;
// after WriterThread::kMaxRestarts in a row it gives up, and all that is
// offered is dropped and counted.
//
// A record that comes later (AddRowsLater and the like) is dropped with the
// reason kDeviceError when its Completion fails.  One that never comes holds up
// all behind it, as a disk that hangs does: producers and Flush wait no longer
// than they would for that, and once Close was called it is waited for
// as long as others come, WriterThread::kCompletionPatience apart, and then
// dropped with that reason.
//
// Accounting: a call that offers records adds them to `offered`, and each ends
// in exactly one of written, dropped, failed: after a Flush that returned ok,
// and after a Close whatever it returned, offered == written + dropped +
// failed. (After a Flush that failed, a few records that close steps may be
// neither yet: they are kept for the next shard.)  Definitions, gaps, the
// events of lost tensors and the index are the writer's own and not counted.  A
// `step` record is counted as offered, but not in its own counts.

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/codec.h"
#include "format/commit_page.h"
#include "format/record.h"
#include "tensor/tensor_view.h"
#include "writer/completion.h"
#include "writer/lost_tensors.h"
#include "writer/retention_options.h"

namespace tdbg {

// What a producer does when staging memory is full (docs/overhead.md).
enum class Overflow : std::uint8_t {
  kBlock,  // Wait while the writer makes progress; after 1 s without, drop
           // until there is some.
  kDrop,   // Drop at once.
  // Keep the tensors of every n-th step and leave out all those of the others;
  // n follows from how far the writer is behind.  The tensors of one kept step
  // may wait for room, together for at most 1 s; what then finds none is
  // dropped.  All else, unit summaries too, does not wait; tensors leave an
  // eighth of the queue to it.
  kSample,
};

// How raw values are stored.
enum class CodecPolicy : std::uint8_t {
  kNone,  // As they are.
  kAuto,  // Compressed at the speed of the disk, less when behind.
  kMax,   // As small as it gets.
};

class FileSystem;

struct WriterOptions {
  std::string
      run_directory;  // Must exist; w/<role>-<rank>-<gen> is made in it.
  WriterRole role = WriterRole::kTrain;
  Uuid run{};
  Uuid attempt{};
  std::uint32_t attempt_ordinal = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // Bound of staging memory; at least kMinQueueBytes.  A record that does not
  // fit at all is refused.
  std::uint64_t queue_bytes = 256ULL << 20;
  std::uint64_t shard_bytes = 1ULL << 30;  // A shard is sealed beyond this.
  // A shard is sealed when its first record has been visible for so long, so
  // that somebody can ship it; 0: never for that.
  std::chrono::milliseconds shard_age{0};
  // Bound of the files in the writer's directory, which somebody ships and
  // deletes: while they are longer, the queue is not written, and its policy
  // for overflow applies.  What is queued at the end is written all the same.
  // 0: none.
  std::uint64_t spool_bytes = 0;
  // With less free on the disk tensors are dropped; with less than half of it,
  // everything.
  std::uint64_t min_free_bytes = 2ULL << 30;
  Overflow overflow = Overflow::kBlock;
  CodecPolicy codec = CodecPolicy::kAuto;
  // Bound of the memory, beside staging, for values that later ones are stored
  // as differences to; by default a quarter of queue_bytes.
  std::optional<std::uint64_t> previous_bytes = std::nullopt;
  std::chrono::milliseconds flush_interval{
      200};  // Visible at least this often.
  // What goes again; of its bytes, this writer's and those of earlier
  // generations of its rank.
  RetentionOptions retention;
  // Before a new shard is tried after a failure; doubles up to 30 s.
  std::chrono::milliseconds retry_interval{100};
  // Null: the system's.  Must outlive the process's last writer thread.
  FileSystem* file_system = nullptr;

  static constexpr std::uint64_t kMinQueueBytes = 1ULL << 20;
};

struct Counters {
  // Records, then their payload bytes.
  std::uint64_t offered = 0, written = 0, dropped = 0, failed = 0;
  std::uint64_t offered_bytes = 0, written_bytes = 0, dropped_bytes = 0,
                failed_bytes = 0;
  std::uint64_t file_bytes = 0;    // Of the shards, as stored.
  std::uint64_t queued_bytes = 0;  // In staging now.
  std::uint64_t shards = 0;
  std::uint64_t io_errors = 0;
  std::int32_t last_errno = 0;
  WriterState state = WriterState::kRunning;
  // For how long the writer thread has shown no life, with something queued.
  std::chrono::milliseconds silence{};
  // Under kSample: steps with tensors of which all were kept, and the others.
  std::uint64_t steps_kept = 0, steps_left_out = 0;

  // Records that were dropped or failed, by GapReason.
  struct Loss {
    std::uint64_t records = 0, bytes = 0;
    std::uint32_t what = 0;  // As in Gap::what.
  };
  std::array<Loss, 9> losses{};
};

class Writer {
 public:
  static constexpr std::chrono::milliseconds kCloseTimeout{5000};
  static constexpr float kUnknownShare = -1.0F;

  // Errors: kInvalidArgument for options that can never work; whatever the
  // system says to the directory, the first shard, the memory or the thread.
  static Result<std::unique_ptr<Writer>> Open(const WriterOptions& options);

  // Closes with a timeout of kCloseTimeout, if Close was not called.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // The id of this definition: that of an equal earlier one, or a new one.
  // `definition.id` and `definition.aliases` do not take part in the
  // comparison; the aliases are those of the first.  0 when no reader would
  // accept it (docs/format.md, "definition" and "Limits"): records that refer
  // to it are refused and counted.
  std::uint32_t Define(Definition definition);
  // The definition with this id; null for an id never given out.  The pointer
  // stays valid as long as the writer.
  [[nodiscard]] const Definition* definition(std::uint32_t id) const;

  // Each offers one record (AddRows: one per 64 Ki rows) and returns whether
  // it was taken.  Everything is copied before the call returns.  A record that
  // refers to an unknown definition, whose values do not have the size that its
  // definition says, or that is above a limit of the format, is refused.
  bool AddRows(std::int64_t step, std::span<const Row> rows);
  // `zero_share`, when it is known (>= 0), is the share of zeros in it.
  bool AddTensor(std::int64_t step, std::uint32_t definition,
                 const TensorView& view, std::uint16_t call = 0,
                 std::uint16_t micro_batch = 0, std::uint32_t flags = 0,
                 float zero_share = kUnknownShare);
  bool AddScalars(std::int64_t step, std::span<const Scalar> scalars);
  bool AddEvent(std::int64_t step, const Event& event);
  bool AddSpans(std::int64_t step, std::span<const Span> spans);
  bool AddHistogram(std::int64_t step, const Histogram& histogram);
  // Whole rows of a table, of as many bytes as its definition says.
  bool AddSamples(std::uint32_t definition, std::span<const std::byte> rows);

  // Records whose bytes come later.  Each offers one record and, when there is
  // room, calls `start` with its bytes in staging memory: what that returns
  // says when they have arrived.  REQUIRES: `start` does not call the writer
  // and returns no null.
  using Start =
      std::function<std::unique_ptr<Completion>(std::span<std::byte>)>;
  // `n_rows` of Row; `definitions` are asked for when the record is lost here.
  bool AddRowsLater(
      std::int64_t step, std::size_t n_rows, const Start& start,
      const std::function<std::vector<std::uint32_t>()>& definitions = {});
  // All values of the tensor, in C order.
  bool AddTensorLater(std::int64_t step, std::uint32_t definition,
                      const Start& start, std::uint16_t call = 0,
                      std::uint16_t micro_batch = 0, std::uint32_t flags = 0);
  // An encoded histogram (format/record.h), of at most `n_bytes`.
  bool AddHistogramLater(std::int64_t step, std::uint32_t definition,
                         std::uint64_t n_bytes, const Start& start,
                         std::uint16_t call = 0, std::uint16_t micro_batch = 0);
  // Staging memory as a whole, to be locked for such copies; it stays in its
  // place until the writer is gone and its last Completion is destroyed.
  [[nodiscard]] std::span<std::byte> staging() const;

  // Counts `n` records as offered and dropped: tensors that capture refused, of
  // this definition if there is one.
  void Refuse(std::int64_t step, std::uint64_t n, std::uint64_t n_bytes,
              std::uint32_t definition = 0);

  // Closes `step.step`: offered, written, dropped, failed and the flag
  // kStepSampled are filled in here.  Readers see it within about 20 ms.
  // REQUIRES: the calls that offered the records of the step have returned.
  bool EndStep(StepRecord step);

  // Returns when everything offered before is visible to readers, and with
  // `durable` outlives a power failure.  Errors: the first one met since the
  // last Flush; kDeadlineExceeded; kClosed.
  Status Flush(bool durable, std::chrono::milliseconds timeout);

  // Writes what is queued, seals the shard and ends the thread; after
  // `timeout` the thread is left behind and what it still holds is lost.
  // Later offers are counted and dropped.  Idempotent.
  Status Close(std::chrono::milliseconds timeout);

  // True in a child process that was forked from the one that opened this.
  [[nodiscard]] bool inert() const;

  [[nodiscard]] Counters counters() const;
  // Records dropped or failed so far, without those that were refused for what
  // they are.  Takes no lock and costs next to nothing.
  [[nodiscard]] std::uint64_t n_lost() const;
  // Of which tensors, by reason.
  [[nodiscard]] std::vector<LostForReason> lost_tensors() const;
  [[nodiscard]] const std::string& directory() const;
  [[nodiscard]] std::uint32_t generation() const;

 private:
  struct State;  // Shared with the thread, which may outlive the Writer.
  explicit Writer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace tdbg
