// IndexBuilder collects what the index file of a shard holds, record by record,
// and lays it out.
//
// Implements docs/format.md, "The index".  It holds as much memory as the file
// will have bytes, so whoever feeds it bounds the shard.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "format/cells.h"
#include "format/index.h"
#include "format/index_file.h"
#include "format/index_tables.h"

namespace tdbg {

// Where a `samples` record lies, of which the whole payload is given.
Result<SamplesPlace> PlaceOfSamples(const IndexEntry& entry,
                                    std::span<const std::byte> payload,
                                    std::uint32_t shard_number);

class IndexBuilder {
 public:
  IndexBuilder() = default;
  IndexBuilder(std::uint64_t salt, std::uint32_t shard_number)
      : header_{.salt = salt, .shard_number = shard_number} {}

  // Takes in a record at entry.offset whose payload begins with `payload`: of a
  // tensor the head, of all others the whole payload.  Records of other types
  // than those of the tables, and any whose content does not hold, are passed
  // over: the latter make `is_complete` false.
  void Add(const IndexEntry& entry, std::span<const std::byte> payload);
  // Adds a `rows` record whose rows are at hand.
  void AddRows(const IndexEntry& entry, std::span<const Row> rows);

  // Whether the index says all that a reader finds in the records.
  [[nodiscard]] bool is_complete() const { return is_complete_; }
  [[nodiscard]] std::size_t n_rows() const { return rows_.size(); }

  // Has cells over buckets of 2^shift steps, however many these are.  Otherwise
  // the steps decide, and an index that hardly gains has none.
  void UseBuckets(unsigned shift) { bucket_shift_ = shift; }

  // The whole file, and the crc of its directory for the `end` record.  Orders
  // the rows by definition: nothing may be added afterwards.
  struct File {
    std::vector<std::byte> bytes;
    std::uint32_t directory_crc = 0;
  };
  File Finish(std::uint64_t n_records, std::uint64_t shard_length);

 private:
  class Layout;

  Status Take(const IndexEntry& entry, std::span<const std::byte> payload);

  // The cells of the rows, which are ordered by definition, unless they are so
  // many that reading the rows costs hardly more.
  void PutCells(std::span<const Group> columns, Layout* layout) const;

  IndexHeader header_;
  bool is_complete_ = true;
  std::optional<unsigned> bucket_shift_;
  // By id; of one id in the order of the records.
  std::map<std::uint32_t, std::vector<std::vector<std::byte>>> definitions_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> definition_order_;
  std::map<std::uint32_t, ExtremeClass> classes_;  // By id.
  std::vector<StepEntry> steps_;
  std::vector<TensorEntry> tensors_;
  std::vector<ScalarEntry> scalars_;
  std::vector<RowsPlace> places_;
  Signatures signatures_;
  std::vector<ColumnRow> rows_;
  std::vector<SamplesPlace> samples_;
  std::vector<IndexEntry> records_;
  PositionCounter row_positions_;
  PositionCounter tensor_positions_;
};

}  // namespace tdbg
