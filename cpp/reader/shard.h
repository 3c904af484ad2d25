// Shard answers what one shard holds: from its index where it is sealed and the
// index fits, else from its records.
//
// Implements docs/format.md, "Reading" and "The index".  A shard that is opened
// by its index is not walked: each table is read and checked when it is asked
// for, and each record when its bytes are.  Where the index turns out damaged
// the records are walked after all.
//
// Thread safety: none.
//
// Errors: problems, in the list that was given.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "reader/directory.h"
#include "reader/envelope.h"
#include "reader/index_reader.h"
#include "reader/row_columns.h"
#include "reader/shard_reader.h"
#include "reader/step_range.h"
#include "reader/tables.h"

namespace tdbg {

class Shard {
 public:
  // `problems` outlives this.
  Shard(const Directory* directory, const ShardPlace& place, bool map_files,
        bool use_index, std::shared_ptr<Definitions> definitions,
        std::vector<Problem>* problems);
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // Walks the records, and once the shard is sealed compares its index with
  // them.
  void CheckIndex() {
    checks_index_ = true;
    reader_.RebuildIndex();
  }
  // Takes in what is there, as ShardReader::Scan does.
  bool Scan(bool settled);
  // Of a shard that was walked while it grew, and is sealed: from now on its
  // tables come from its index, if that has them all, and need no memory.
  void Settle();

  ShardReader& reader() { return reader_; }
  [[nodiscard]] const ShardReader& reader() const { return reader_; }
  [[nodiscard]] std::uint32_t number() const { return reader_.number(); }
  // Changes whenever anything but a definition or a problem is added.
  [[nodiscard]] std::uint64_t Size() const;

  // How many there are; those of a shard that was opened by its index stay,
  // even if its records turn out to hold fewer.
  [[nodiscard]] std::uint64_t n_rows() const;
  [[nodiscard]] std::uint64_t n_tensors() const;
  [[nodiscard]] std::uint64_t n_scalars() const;
  [[nodiscard]] std::uint64_t n_steps() const;
  // The steps of the `step` records, if there are any.
  std::optional<StepRange> RecordedSteps();

  // The tables, valid until the next call of anything here.
  std::span<const StepEntry> Steps();
  std::span<const TensorEntry> Tensors();
  std::span<const ScalarEntry> Scalars();
  std::span<const RowsPlace> Places();
  std::span<const EventEntry> Events();
  std::span<const SpanEntry> Spans();
  std::span<const Gap> Gaps();
  std::span<const HistogramEntry> Histograms();
  std::span<const SamplesPlace> Samples();
  // Whether retention made it, of a shard that held more.
  [[nodiscard]] bool was_copied();
  // Records of this shard that cannot be read, as far as was looked.
  [[nodiscard]] const std::vector<Hole>& holes() const { return tables_.holes; }
  // REQUIRES: `entry` is of Histograms().
  Result<Histogram> ReadHistogram(const HistogramEntry& entry) {
    reader_.Map();
    return reader_.ReadHistogram(entry);
  }
  // Calls `visit` for the places of samples of these definitions (ascending)
  // that may have rows within these times.
  void FindSamples(TimeRange times, std::span<const std::uint32_t> definitions,
                   const std::function<void(const SamplesPlace&)>& visit);
  // The payload of a `samples` record; empty, and once a problem says why,
  // where it cannot be read.
  // REQUIRES: `place` is of Samples().
  std::vector<std::byte> ReadSamples(const SamplesPlace& place);
  // The definitions of the rows of a place.
  std::span<const std::uint32_t> Signature(const RowsPlace& place);

  // Room for what a caller calls the signatures of this shard, by their numbers
  // here; emptied when those change.
  std::vector<std::uint64_t>& signature_names() { return signature_names_; }

  // Calls `visit(place)` for the places of these entries, ascending.
  // Without `definitions`: of all.
  using Visit = std::function<void(std::uint64_t)>;
  using DefinitionFilter =
      std::optional<std::span<const std::uint32_t>>;  // Ascending.
  void FindTensors(StepRange steps, DefinitionFilter definitions,
                   const Visit& visit);
  void FindScalars(StepRange steps, DefinitionFilter definitions,
                   const Visit& visit);
  void FindPlaces(StepRange steps, const Visit& visit);
  void FindSteps(StepRange steps, const Visit& visit);
  // Calls `visit` for those of the places that have a row of `definitions`.
  void FindRowsPlaces(StepRange steps, DefinitionFilter definitions,
                      const std::function<void(const RowsPlace&)>& visit);
  // How many `step` records there are of these steps.
  std::uint64_t CountSteps(StepRange steps);

  // Appends the rows of `definitions` (ascending) within `steps`, by step and
  // position.
  void FindRows(StepRange steps, std::span<const std::uint32_t> definitions,
                std::vector<ColumnRow>* rows);
  // Adds the rows that are asked for, definition by definition.
  void GatherRows(const RowColumnsQuery& query, RowColumns* gathered);
  // Appends the rows [first, last) in the order of the records, as many.
  // REQUIRES: first <= last <= n_rows().
  void ReadRows(std::uint64_t first, std::uint64_t last,
                std::vector<ColumnRow>* rows);
  // Appends the rows of the `rows` record at `place`.  Where its bytes do not
  // hold, rows of definition 0 take its place, and a problem says so.
  void ReadPlace(const RowsPlace& place, std::vector<ColumnRow>* rows);

  // Adds the rows that are asked for to `grid`: by their cells where these lie
  // within its columns.  Rows and cells of steps whose `step` record is not in
  // this shard go to `loose` instead, whatever their mode.
  void AddToEnvelope(const EnvelopeQuery& query, EnvelopeGrid* grid,
                     std::vector<LooseCell>* loose);
  // Of a sealed shard: the logarithm of the steps of a bucket.
  [[nodiscard]] std::optional<unsigned> CellShift();
  // Bytes of cells that were made of rows, where the index has none.
  [[nodiscard]] std::uint64_t n_made() const;
  void DropMadeCells() { made_cells_.reset(); }

  // Whether there may be rows of these steps.
  [[nodiscard]] bool FindsPlaces(StepRange steps) const {
    return MayHave(SectionKind::kRowsPlaces, steps);
  }
  [[nodiscard]] bool MayHaveSteps(StepRange steps) const {
    return MayHave(SectionKind::kSteps, steps);
  }
  // Whether tables come from the index.
  [[nodiscard]] bool has_index() const { return index_ && is_indexed_; }

  // Of a shard with an index, what a reader will read, for Directory::Expect:
  // the tables that a question by step and definition looks at,
  void AddTables(SectionKind about, StepRange steps,
                 std::vector<FileRange>* ranges) const;
  // the columns, or cells, of `definitions`,
  void AddGroups(SectionKind groups, SectionKind members, StepRange steps,
                 std::span<const std::uint32_t> definitions,
                 std::vector<FileRange>* ranges);
  // the places of the records that TakeRecords reads, and these records.
  void AddRecordPlaces(std::vector<FileRange>* ranges) const;
  void AddRecords(std::vector<FileRange>* ranges);

  // Gives descriptors up: they are few, and shards may be many.
  void Retire();
  // Bytes of all tables that are in memory.
  [[nodiscard]] std::uint64_t n_held() const;
  // Of what can be read again: tables of the index, and a map.
  [[nodiscard]] std::uint64_t n_cached() const {
    return index_ ? index_->n_held() : 0;
  }
  void DropTables() {
    if (index_) index_->DropAll();
  }
  [[nodiscard]] std::uint64_t n_mapped() const { return reader_.n_mapped(); }
  void Unmap() { reader_.file().Unmap(); }

 private:
  bool OpenIndex(const End& end);
  void CompareIndexOfSealed();
  bool TakeDefinitions();
  // The index does not hold: from now on the records are walked.
  void Demote();
  void MoveProblems();
  // Reads the records of which the index has only the places into their tables.
  void TakeRecords();

  // Whether the steps of a table that grows have ascended so far.
  struct Ascent {
    std::size_t n_seen = 0;
    std::int64_t last_step = std::numeric_limits<std::int64_t>::min();
    bool ascends = true;
  };
  template <typename Entry, typename StepOf>
  bool Ascends(SectionKind kind, std::span<const Entry> entries,
               StepOf step_of);
  // A table of the index, or of the records.
  template <typename Entry>
  std::span<const Entry> Table(SectionKind kind,
                               std::vector<Entry> Tables::* table);
  // The entries in the range of steps: [first, second).
  template <typename Entry, typename StepOf>
  std::pair<std::uint64_t, std::uint64_t> Range(SectionKind kind,
                                                std::span<const Entry> entries,
                                                StepRange steps,
                                                StepOf step_of);
  template <typename Entry, typename DefinitionOf>
  void Find(SectionKind kind, SectionKind groups, SectionKind postings,
            std::span<const Entry> (Shard::*table)(),
            DefinitionOf definition_of, StepRange steps,
            DefinitionFilter definitions, const Visit& visit);
  [[nodiscard]] bool MayHave(SectionKind kind, StepRange steps) const;
  void OpenColumns();
  // In ns, roughly.
  struct ColumnCost {
    std::uint64_t per_column = 0;
    std::uint64_t per_row = 0;
  };
  // The columns of `definitions`, where reading them costs less than reading
  // records; nothing where it does not, or where there is no index.
  std::optional<std::vector<Group>> ChooseColumns(
      StepRange steps, std::span<const std::uint32_t> definitions,
      const std::function<ColumnCost(std::size_t n_columns)>& cost);
  void GatherRecords(StepRange steps,
                     std::span<const std::uint32_t> definitions,
                     RowColumns* gathered);
  bool FindRowsInColumns(StepRange steps, std::span<const Group> columns,
                         std::vector<ColumnRow>* rows);
  void FindRowsInRecords(StepRange steps,
                         std::span<const std::uint32_t> definitions,
                         std::vector<ColumnRow>* rows);

  // Cells that were made of rows.
  struct MadeCells {
    std::vector<Group> groups;  // Without checksums.
    std::vector<Cell> cells;
    bool are_many = false;  // So many that rows are read instead: none is here.
  };
  class EnvelopeAdder;
  // Adds the cells of tensors; returns those whose rows must be read.
  std::vector<EnvelopeQuery::Tensor> AddCells(EnvelopeAdder* adder);
  bool AddIndexedCells(EnvelopeAdder* adder,
                       std::vector<EnvelopeQuery::Tensor>* by_rows);
  void AddRows(std::vector<EnvelopeQuery::Tensor> tensors,
               EnvelopeAdder* adder);
  const MadeCells& MakeCells(unsigned shift);
  bool MakeCellsOfColumns(unsigned shift, StepModes* modes, MadeCells* made);
  void MakeCellsOfRecords(unsigned shift, StepModes* modes, MadeCells* made);
  [[nodiscard]] ExtremeClass ClassOf(std::uint32_t definition) const;

  // Constant after construction.
  const Directory* const directory_;
  const bool use_index_;
  std::vector<Problem>* const problems_;

  ShardReader reader_;
  Tables tables_;
  std::optional<IndexReader> index_;
  bool checks_index_ = false;
  bool is_indexed_ = false;  // Opened by an index, which may be gone by now.
  std::set<std::uint64_t> lost_samples_;  // Sequences, each told once.
  bool has_records_ = false;              // TakeRecords was done.
  bool index_failed_ = false;
  bool cells_failed_ = false;  // Those of the index do not hold.
  std::optional<MadeCells> made_cells_;
  std::optional<StepRange> range_;  // Of the first n_ranged_ `step` records.
  std::size_t n_ranged_ = 0;
  std::vector<std::uint64_t> signature_names_;
  std::array<Ascent, kSectionKinds + 1> ascents_{};
  // Size() when the index took over from the records.
  std::optional<std::uint64_t> walked_size_;
  // Set from its index for an indexed shard.
  std::array<std::uint64_t, kSectionKinds + 1> counts_{};
};

}  // namespace tdbg
