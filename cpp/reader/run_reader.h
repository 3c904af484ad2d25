// RunReader reads all shards of one writer directory, while they are written
// or afterwards.
//
// Implements docs/format.md, "Reading".  poll() takes in what has appeared
// since the last one; the tables below only ever grow, so a caller remembers
// how much of each it has seen.  Nothing is believed without its checksum.
// Damage costs the damaged record and is reported in problems(); it is never
// an error of poll().
//
// Sealed shards are mapped (read-only), the live one is read with pread.
// Values of tensors are read and checked when asked for.
//
// Thread safety: none; the bindings hold a lock around each call.
//
// Errors: Open fails when the directory is no writer directory or belongs to
// another run.  ReadTensor names file, offset and kind.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/commit_page.h"
#include "format/index.h"
#include "format/record.h"
#include "format/tensor_record.h"

namespace tdbg {

enum class ProblemKind : std::uint8_t {
  kDamage = 1,       // A record failed a check, and others follow.
  kTornTail = 2,     // The writer died in the middle of a record.
  kForeign = 3,      // A shard of another run, writer, or place.
  kUnsupported = 4,  // Written with a feature that this build lacks.
  kIo = 5,           // The operating system refused to open or read.
  kMissing = 6,      // Sequence numbers or a whole shard are not there.
};

// Something in the files that is not as it should be.
struct Problem {
  ProblemKind kind;
  std::string file;  // Path relative to the writer directory.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // Bytes skipped; 0 where unknown.
  std::string message;       // What was expected, what was found.
};

// Where the values of a tensor lie.
struct TensorEntry {
  std::int64_t step = 0;
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;  // Of the record, in its shard.
  std::uint64_t payload_length = 0;
  std::uint32_t definition = 0;
  std::uint32_t shard_number = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint32_t position = 0;  // Execution order within the step.
};
static_assert(sizeof(TensorEntry) == 48);

struct StepEntry {
  StepRecord record;
  std::uint64_t sequence = 0;
};
struct ScalarEntry {
  std::int64_t step = 0;
  Scalar scalar;
};
struct EventEntry {
  std::int64_t step = 0;
  std::uint64_t sequence = 0;
  Event event;
};
struct SpanEntry {
  std::int64_t step = 0;
  Span span;
};
struct HistogramEntry {
  std::int64_t step = 0;
  Histogram histogram;
};

// Whether the writer still lives, as far as its commit page tells.
enum class Liveness : std::uint8_t {
  kUnknown = 0,  // No valid page, another host, or another boot.
  kRunning = 1,
  kStalled = 2,  // The process is there; no heartbeat for 10 s.
  kClosed = 3,   // It closed its last shard: nothing more will come.
  kDead = 4,     // The process is gone without closing.
};

struct ReaderOptions {
  // Refuse shards of any other run; unset: take the first shard's.
  std::optional<Uuid> run;
  // Use the index cache and the commit page.  Off for tests: the answers are
  // the same.
  bool use_caches = true;
};

// The bytes of a tensor.  `bytes` points into `owned`, or into a mapped shard
// that `keep_alive` holds.
struct TensorValue {
  std::span<const std::byte> bytes;
  std::vector<std::byte> owned;
  std::shared_ptr<const void> keep_alive;
};

class RunReader {
 public:
  // Opens `directory` (run/w/<role>-<rank>-<generation>) and polls once.
  static Result<std::unique_ptr<RunReader>> Open(std::string directory,
                                                 ReaderOptions options);
  virtual ~RunReader() = default;
  RunReader(const RunReader&) = delete;
  RunReader& operator=(const RunReader&) = delete;

  // Takes in new data; true when any table grew.
  virtual bool Poll() = 0;

  // Append-only tables, in the order of the records.
  [[nodiscard]] virtual const std::vector<Definition>& definitions() const = 0;
  [[nodiscard]] virtual const std::vector<StepEntry>& steps() const = 0;
  [[nodiscard]] virtual const std::vector<TensorEntry>& tensors() const = 0;
  [[nodiscard]] virtual const std::vector<ScalarEntry>& scalars() const = 0;
  [[nodiscard]] virtual const std::vector<EventEntry>& events() const = 0;
  [[nodiscard]] virtual const std::vector<SpanEntry>& spans() const = 0;
  [[nodiscard]] virtual const std::vector<Gap>& gaps() const = 0;
  [[nodiscard]] virtual const std::vector<HistogramEntry>& histograms()
      const = 0;
  [[nodiscard]] virtual const std::vector<Problem>& problems() const = 0;

  // How many rows there are, over all shards.
  [[nodiscard]] virtual std::uint64_t n_rows() const = 0;

  // The rows [first, last) in the order of the records.
  // REQUIRES: first <= last <= n_rows().
  virtual std::vector<ColumnRow> Rows(std::uint64_t first,
                                      std::uint64_t last) = 0;

  // All rows of these definitions, in the order of the records.  Of a sealed
  // shard with a valid index this reads only their columns.
  virtual std::vector<ColumnRow> Column(
      std::span<const std::uint32_t> definitions) = 0;

  // The values of tensors()[i]: raw bytes in C order.
  // REQUIRES: i < tensors().size().
  virtual Result<TensorValue> ReadTensor(std::size_t i) = 0;

  [[nodiscard]] virtual const FileHeader& identity() const = 0;
  [[nodiscard]] virtual Liveness liveness() const = 0;
  // The last valid commit slot seen, if any.
  [[nodiscard]] virtual std::optional<CommitSlot> commit() const = 0;
  // Bytes of all files of the directory.
  [[nodiscard]] virtual std::uint64_t n_bytes() const = 0;

 protected:
  RunReader() = default;
};

}  // namespace tdbg
