// The tables of a shard as the index holds them and readers answer from them.
//
// Implements docs/format.md, "The index".  Each entry lies on the disk as it
// lies in memory, so that a section of the index is a table, and so is a NumPy
// array of the same layout.
//
// Thread safety: values.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "format/record.h"

namespace tdbg {

static_assert(std::endian::native == std::endian::little);

// A row with the step it belongs to, as readers and columns hold it.
struct ColumnRow {
  std::int64_t step = 0;
  std::uint32_t definition = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint32_t flags = 0;
  std::uint32_t position = 0;  // Execution order within the step.
  Summary summary;
};
static_assert(sizeof(ColumnRow) == 120);

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
static_assert(sizeof(StepEntry) == 104);

struct ScalarEntry {
  std::int64_t step = 0;
  Scalar scalar;
};
static_assert(sizeof(ScalarEntry) == 32);

// Where a `rows` record lies, and which rows of the shard are its own.
struct RowsPlace {
  std::int64_t step = 0;
  std::uint64_t offset = 0;  // Of the payload, in its shard.
  std::uint64_t payload_length = 0;
  std::uint64_t first_row = 0;  // Counted over the shard.
  std::uint32_t n_rows = 0;
  std::uint32_t payload_crc = 0;     // Masked.
  std::uint32_t first_position = 0;  // Of its first row.
  std::uint32_t signature = 0;       // The definitions of its rows, by number.
};
static_assert(sizeof(RowsPlace) == 48);

// Where a `samples` record lies, and when its rows were taken.
struct SamplesPlace {
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;  // Of the record, in its shard.
  std::uint64_t payload_length = 0;
  std::int64_t first_time = 0;
  std::int64_t last_time = -1;
  std::uint32_t definition = 0;
  std::uint32_t n_rows = 0;
  std::uint32_t payload_crc = 0;  // Masked.
  std::uint32_t shard_number = 0;
};
static_assert(sizeof(SamplesPlace) == 56);

// What of a table belongs to one definition: of rows a range of the columns, of
// tensors and scalars a range of the postings.
struct Group {
  std::uint32_t definition = 0;
  std::uint32_t crc = 0;  // Masked, of its rows; 0 for postings.
  std::uint64_t first = 0;
  std::uint64_t n = 0;
};
static_assert(sizeof(Group) == 24);

// Lists of definition ids, each once, by number.  The rows of nearly all steps
// share a few.
class Signatures {
 public:
  // The number of this list, which is added if it is new.
  std::uint32_t Add(std::span<const std::uint32_t> ids);

  [[nodiscard]] std::span<const std::uint32_t> Get(std::uint32_t number) const {
    const std::uint64_t first = number == 0 ? 0 : ends_[number - 1];
    return std::span(ids_).subspan(first, ends_[number] - first);
  }
  // All lists, one after the other, and where each ends.
  [[nodiscard]] const std::vector<std::uint32_t>& ids() const { return ids_; }
  [[nodiscard]] const std::vector<std::uint64_t>& ends() const { return ends_; }

 private:
  std::vector<std::uint32_t> ids_;
  std::vector<std::uint64_t> ends_;
  std::unordered_multimap<std::uint32_t, std::uint32_t> numbers_;  // By crc.
};

// Numbers the records of a step: 0 for the first one whose step is not that of
// the record of this type before it.
class PositionCounter {
 public:
  // The position of the first of `n` things of `step`.
  std::uint32_t Next(std::int64_t step, std::uint32_t n) {
    if (!has_step_ || step_ != step) next_ = 0;
    has_step_ = true;
    step_ = step;
    next_ += n;
    return next_ - n;
  }

 private:
  bool has_step_ = false;
  std::int64_t step_ = 0;
  std::uint32_t next_ = 0;
};

}  // namespace tdbg
