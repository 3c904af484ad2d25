// Writer takes records from any thread and appends them to the shards of one
// writer directory, from a thread of its own.
//
// Implements docs/format.md, "Writing".  Data, flush and stop go through one
// queue, in order.  What crosses it is owned bytes in bounded staging memory;
// the writer thread never touches Python.
//
// Thread safety: all methods may be called from any thread.  After fork() the
// child's copy is inert: every call returns at once, and nothing is written.
//
// Errors: Open reports them.  Afterwards nothing is returned from the
// producers' calls but "taken" or "not taken": disk errors are met by the
// writer thread, counted, and returned by the next Flush or Close.
//
// Accounting: a call that offers records adds them to `offered`, and each ends
// in exactly one of written, dropped, failed; at any time after Flush
// offered == written + dropped + failed.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/codec.h"
#include "format/commit_page.h"
#include "format/record.h"
#include "tensor/tensor_view.h"

namespace tdbg {

// What a producer does when staging memory is full.
enum class Overflow : std::uint8_t {
  kBlock,  // Wait while the writer makes progress; after 1 s without, drop.
  kDrop,   // Drop at once.
};

struct WriterOptions {
  std::string run_directory;  // Must exist; w/<role>-<rank>-<gen> is made in it.
  WriterRole role = WriterRole::kTrain;
  Uuid run{};
  Uuid attempt{};
  std::uint32_t attempt_ordinal = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint64_t queue_bytes = 256ULL << 20;  // Bound of staging memory.
  std::uint64_t shard_bytes = 1ULL << 30;    // A shard is sealed beyond this.
  std::uint64_t min_free_bytes = 2ULL << 30;
  Overflow overflow = Overflow::kBlock;
  bool compress = true;
  std::chrono::milliseconds flush_interval{200};  // Visible at least this often.
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
};

class Writer {
 public:
  static Result<std::unique_ptr<Writer>> Open(const WriterOptions& options);

  // Closes with the default timeout, if Close was not called.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // The id of this definition: that of an equal earlier one, or a new one.
  // `definition.id` and `definition.aliases` do not take part in the
  // comparison.
  std::uint32_t Define(Definition definition);
  // What was defined under `id`; null for an id never given out.  The pointer
  // stays valid as long as the writer.
  [[nodiscard]] const Definition* definition(std::uint32_t id) const;

  // Each offers one record (AddRows: one per 64 Ki rows) and returns whether
  // it was taken.  Everything is copied before the call returns.
  bool AddRows(std::int64_t step, std::span<const Row> rows);
  bool AddTensor(std::int64_t step, std::uint32_t definition,
                 const TensorView& view, std::uint16_t call = 0,
                 std::uint16_t micro_batch = 0, std::uint32_t flags = 0);
  bool AddScalars(std::int64_t step, std::span<const Scalar> scalars);
  bool AddEvent(std::int64_t step, const Event& event);
  bool AddSpans(std::int64_t step, std::span<const Span> spans);
  bool AddHistogram(std::int64_t step, const Histogram& histogram);

  // Counts `n` records as offered and dropped: tensors that capture refused.
  void Refuse(std::int64_t step, std::uint64_t n, std::uint64_t n_bytes);

  // Closes `step.step`: offered, written, dropped and failed are filled in
  // here.  Wakes the writer thread.
  bool EndStep(StepRecord step);

  // Returns when everything offered before is visible to readers, and with
  // `durable` outlives a power failure.  Errors: the first one met since the
  // last Flush; kDeadlineExceeded; kClosed.
  Status Flush(bool durable, std::chrono::milliseconds timeout);

  // Writes what is queued, seals the shard and ends the thread; after
  // `timeout` the thread is left behind and what it still holds is lost.
  // Idempotent.
  Status Close(std::chrono::milliseconds timeout);

  [[nodiscard]] Counters counters() const;
  [[nodiscard]] const std::string& directory() const;
  [[nodiscard]] std::uint32_t generation() const;

 private:
  struct State;  // Shared with the thread, which may outlive the Writer.
  explicit Writer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace tdbg
