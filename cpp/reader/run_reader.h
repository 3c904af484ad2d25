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
#include "reader/commit_reader.h"
#include "reader/problem.h"
#include "reader/tables.h"
#include "reader/tensor_values.h"

namespace tdbg {

struct ReaderOptions {
  // Refuse shards of any other run; unset: take the first shard's.
  std::optional<Uuid> run;
  // Use the index cache and the commit page.  Off for tests: the answers are
  // the same.
  bool use_caches = true;
  // Map sealed shards.  Off where others than the writer may truncate them, or
  // on a file system that loses pages: a map then faults.
  bool map_files = true;
  // The most memory that a tensor may decode to which the bytes it has on the
  // disk do not justify (one is justified by an eighth of it).
  std::uint64_t max_tensor_bytes = 2ULL << 30;
};

class RunReader {
 public:
  // Opens `directory` (run/w/<role>-<rank>-<generation>) and polls once.
  static Result<std::unique_ptr<RunReader>> Open(const std::string& directory,
                                                 ReaderOptions options);
  virtual ~RunReader() = default;
  RunReader(const RunReader&) = delete;
  RunReader& operator=(const RunReader&) = delete;

  // Takes in new data; true when any table grew.
  virtual bool Poll() = 0;

  // Append-only tables, in the order of the records.  A definition appears
  // again when its aliases have changed.  Rows and tensors may name a
  // definition that is not there, where its record was damaged.
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

  // The rows [first, last) in the order of the records.  Where a record was
  // damaged after it was taken in, rows of definition 0 take its place, and a
  // problem says so.
  // REQUIRES: first <= last <= n_rows().
  virtual std::vector<ColumnRow> Rows(std::uint64_t first,
                                      std::uint64_t last) = 0;

  // All rows of these definitions: shard by shard, and in a shard by step and
  // position, which is the order of the records unless a writer went back to
  // an earlier step.  Of a sealed, undamaged shard with a valid index this
  // reads only their columns.
  virtual std::vector<ColumnRow> Column(
      std::span<const std::uint32_t> definitions) = 0;

  // The values of tensors()[i]: raw bytes in C order.
  // REQUIRES: i < tensors().size().
  virtual Result<TensorValue> ReadTensor(std::size_t i) = 0;

  [[nodiscard]] virtual const FileHeader& identity() const = 0;
  // As of the last poll.
  [[nodiscard]] virtual Liveness liveness() const = 0;
  // The last valid commit slot seen, if any.
  [[nodiscard]] virtual std::optional<CommitSlot> commit() const = 0;
  // Bytes of all files of the directory.
  [[nodiscard]] virtual std::uint64_t n_bytes() const = 0;

 protected:
  RunReader() = default;
};

}  // namespace tdbg
