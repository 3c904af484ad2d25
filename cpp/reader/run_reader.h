// RunReader reads all shards of one writer directory, while they are written
// or afterwards.
//
// Implements docs/format.md, "Reading".  Poll() takes in what has appeared
// since the last one.  A sealed shard with an index that fits is opened by it,
// whatever it holds; any other is walked, record by record.  Nothing is
// believed without its checksum.  Damage costs the damaged record and is
// reported in problems(), when the record is read: at once where the shard is
// walked, else when something asks for it.  It is never an error of Poll().
//
// Questions by step and definition are answered from the indexes, of which only
// some are held in memory.  The tables are put together when they are asked
// for, and only ever grow, so a caller remembers how much of each it has seen.
//
// Files are read with pread; sealed shards are mapped (read-only) where the
// options say so.
// Values of tensors and histograms are read and checked when asked for.
//
// Thread safety: none; the bindings hold a lock around each call.
//
// Errors: Open fails when the directory is no writer directory or belongs to
// another run.  ReadTensor and ReadHistogram name file, offset and kind.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "format/commit_page.h"
#include "format/index_tables.h"
#include "format/record.h"
#include "reader/commit_reader.h"
#include "reader/definitions.h"
#include "reader/directory.h"
#include "reader/envelope.h"
#include "reader/problem.h"
#include "reader/row_columns.h"
#include "reader/shard.h"
#include "reader/step_range.h"
#include "reader/tables.h"
#include "reader/tensor_values.h"

namespace tdbg {

struct ReaderOptions {
  // Refuse shards of any other run; unset: take the first shard's.
  std::optional<Uuid> run;
  // Use the index cache and the commit page.  Off, every record is walked and
  // checked: the answers about undamaged data are the same, and problems() has
  // all damage but that of tensors' chunks.
  bool use_caches = true;
  // Whether the index, a cache, is used.
  bool use_index = true;
  // Whether each index is compared with the records of its shard, all of which
  // are walked.  REQUIRES: !use_index.
  bool check_index = false;
  // Map sealed shards, so that raw values are given where they lie.  A map
  // faults where somebody truncates a file, or the file system loses a page.
  bool map_files = false;
  // The most memory that a tensor may decode to which the bytes it has on the
  // disk do not justify (one is justified by an eighth of it).
  std::uint64_t max_tensor_bytes = 2ULL << 30;
  // Bytes of indexes that are held in memory, beside the one that was asked
  // last.
  std::uint64_t cached_bytes = 32ULL << 20;
  // Threads that decode a large tensor; 0: as many as there are processors, and
  // at most 4.
  unsigned n_threads = 0;
};

// The rows of one `rows` record, as numbers over all shards.
struct Segment {
  std::int64_t step = 0;
  std::uint64_t first_row = 0;
  std::uint64_t n_rows = 0;
  std::uint64_t signature = 0;  // The definitions of its rows: Signature().
};

// A tensor or a scalar, and its place in the table over all shards.
template <typename Entry>
struct Placed {
  std::uint64_t place = 0;
  Entry entry;
};

class RunReader {
 public:
  // Opens `directory` (run/w/<role>-<rank>-<generation>) and polls once.
  static Result<std::unique_ptr<RunReader>> Open(const std::string& directory,
                                                 ReaderOptions options);
  // Likewise one that is not on this machine; `path` is what it is called.
  static Result<std::unique_ptr<RunReader>> Open(
      std::unique_ptr<Directory> directory, const std::string& path,
      ReaderOptions options);
  virtual ~RunReader() = default;
  RunReader(const RunReader&) = delete;
  RunReader& operator=(const RunReader&) = delete;

  // After any other call: gives up descriptors that can be opened again, where
  // this process has many readers.
  virtual void Rest() = 0;

  // Whether retention has replaced shards since they were opened: what they
  // held is answered for as long as their files are kept, and another reader
  // knows what is there now.
  [[nodiscard]] virtual bool WasReplaced() = 0;

  // Takes in new data; true when any table grew.
  virtual bool Poll() = 0;

  // Rows and tensors may name a definition that is not there, where its record
  // was damaged.
  [[nodiscard]] virtual const Definitions& definitions() const = 0;
  // Append-only tables, in the order of the records.
  virtual const std::vector<TensorEntry>& tensors() = 0;
  virtual const std::vector<ScalarEntry>& scalars() = 0;
  virtual const std::vector<EventEntry>& events() = 0;
  virtual const std::vector<SpanEntry>& spans() = 0;
  virtual const std::vector<Gap>& gaps() = 0;
  virtual const std::vector<HistogramEntry>& histograms() = 0;
  virtual const std::vector<Problem>& problems() = 0;

  // Records that were written and cannot be read, as far as was looked: a step
  // that was under way there may have lost some of its own.  Without those that
  // the writer itself reports as lost, in gaps().
  [[nodiscard]] virtual std::vector<Hole> holes() const = 0;
  // Whether nothing tells where the records end: there is no commit page, and
  // the last shard was not closed by its writer.
  [[nodiscard]] virtual bool end_is_unknown() const = 0;
  // How many there are, over all shards.
  [[nodiscard]] virtual std::uint64_t n_rows() const = 0;
  [[nodiscard]] virtual std::uint64_t n_tensors() const = 0;
  [[nodiscard]] virtual std::uint64_t n_scalars() const = 0;
  [[nodiscard]] virtual std::uint64_t n_steps() const = 0;

  // The `step` records [first, last) in the order of the records; of a shard
  // whose index told of more than there are, those that there are.
  virtual std::vector<StepEntry> ReadSteps(std::uint64_t first,
                                           std::uint64_t last) = 0;
  // All of them.
  std::vector<StepEntry> steps() { return ReadSteps(0, n_steps()); }
  // Those of a range of steps, and how many they are.
  virtual std::vector<StepEntry> FindSteps(StepRange steps) = 0;
  virtual std::uint64_t CountSteps(StepRange steps) = 0;
  // The smallest and the largest step that a `step` record ended.
  virtual std::optional<StepRange> RecordedSteps() = 0;
  // Whether a row, a tensor or a scalar belongs to this step.
  virtual bool HasData(std::int64_t step) = 0;

  // The steps of a range at which there are rows, tensors or scalars, as asked;
  // ascending, each once; without `definitions`, of any.
  struct Kinds {
    bool rows = true;
    bool tensors = true;
    bool scalars = true;
  };
  using DefinitionFilter = std::optional<std::vector<std::uint32_t>>;
  virtual std::vector<std::int64_t> SavedSteps(
      StepRange steps, const DefinitionFilter& definitions, Kinds kinds) = 0;

  // Entries in a range of steps, in the order of the records; without
  // `definitions`, the entries of all definitions.
  virtual std::vector<Segment> FindSegments(StepRange steps) = 0;
  virtual std::vector<Placed<TensorEntry>> FindTensors(
      StepRange steps, const DefinitionFilter& definitions) = 0;
  virtual std::vector<Placed<ScalarEntry>> FindScalars(
      StepRange steps, const DefinitionFilter& definitions) = 0;
  // The definitions of the rows of a segment, in the order of the rows.
  // REQUIRES: `number` is that of a segment of this reader.
  virtual std::span<const std::uint32_t> Signature(std::uint64_t number) = 0;

  // The rows [first, last) in the order of the records.  Where a record is
  // damaged and an index listed it, rows of definition 0 take its place, and a
  // problem says so.
  // REQUIRES: first <= last <= n_rows().
  virtual std::vector<ColumnRow> Rows(std::uint64_t first,
                                      std::uint64_t last) = 0;

  // The rows of these definitions within these steps: shard by shard, and in a
  // shard by step and position, which is the order of the records unless a
  // writer went back to an earlier step.  Where a shard has an index this reads
  // only their columns, or only the records of those steps, if that is less.
  virtual std::vector<ColumnRow> FindRows(
      StepRange steps, std::span<const std::uint32_t> definitions) = 0;
  // FindRows over all steps.
  std::vector<ColumnRow> Column(std::span<const std::uint32_t> definitions) {
    return FindRows(kAllSteps, definitions);
  }

  // Adds fields of the rows that are asked for: shard by shard, in a shard by
  // definition, and of a definition in the order of the records.
  virtual void GatherRows(const RowColumnsQuery& query,
                          RowColumns* gathered) = 0;

  // Adds to `grid` what the last of the first `n_shards` shards hold of a
  // query, as many as take some ten milliseconds; returns how many remain, so
  // that a caller may do something else in between.  Rows of steps that were
  // not ended are left out.
  virtual std::size_t AddToEnvelope(const EnvelopeIds& asked,
                                    std::size_t n_shards,
                                    EnvelopeGrid* grid) = 0;
  // The sealed shards with rows in a range of steps.
  virtual std::vector<CellBuckets> FindBuckets(StepRange steps) = 0;

  // The values of tensors()[i]: raw bytes in C order.
  // REQUIRES: i < n_tensors().
  virtual Result<TensorValue> ReadTensor(std::size_t i) = 0;
  // These tensors will be read next, which a directory that is far away wants
  // to know.  Those that are not there are passed over.
  virtual void ExpectTensors(std::span<const std::uint64_t> tensors) = 0;
  // The number of the shard that it lies in.
  // REQUIRES: i < n_tensors().
  virtual std::uint32_t ShardOfTensor(std::size_t i) = 0;
  // Completes problems(), when the reader uses no index and all was polled.
  virtual void FinishCheck() = 0;

  // The histogram of histograms()[i].
  // REQUIRES: i < histograms().size().
  virtual Result<Histogram> ReadHistogram(std::size_t i) = 0;

  // The `samples` records of these definitions that may have rows within these
  // times and come after this sequence, in the order of the records.
  virtual std::vector<SamplesPlace> FindSamples(
      TimeRange times, std::span<const std::uint32_t> definitions,
      std::uint64_t after) = 0;
  // The payload of one of them; empty where it cannot be read, which a problem
  // says.
  virtual std::vector<std::byte> ReadSamples(const SamplesPlace& place) = 0;

  [[nodiscard]] virtual const FileHeader& identity() const = 0;
  // State at the last poll.
  [[nodiscard]] virtual Liveness liveness() const = 0;
  // The last valid commit slot seen, if any.
  [[nodiscard]] virtual std::optional<CommitSlot> commit() const = 0;
  // Bytes of the tables that are in memory: definitions, those of shards that
  // grow, and of indexes as far as they are held.
  [[nodiscard]] virtual std::uint64_t n_held() const = 0;
  // Bytes of all files of the directory.
  [[nodiscard]] virtual std::uint64_t n_bytes() const = 0;

 protected:
  RunReader() = default;
};

}  // namespace tdbg
