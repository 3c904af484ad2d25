// Tables are what a reader has taken in from the shards of a writer, in the
// order of the records.
//
// Tables only grow.  Of rows and tensors they hold places, not values.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "format/record.h"
#include "reader/problem.h"

namespace tdbg {

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

// Where a `rows` record lies, and which of all rows are its own.
struct RowsPlace {
  std::int64_t step = 0;
  std::uint64_t offset = 0;  // Of the payload, in its shard.
  std::uint64_t payload_length = 0;
  std::uint64_t first_row = 0;  // Counted over all shards.
  std::uint32_t n_rows = 0;
  std::uint32_t payload_crc = 0;
  std::uint32_t first_position = 0;
  std::uint32_t shard_number = 0;
};

struct Tables {
  std::vector<Definition> definitions;
  std::vector<StepEntry> steps;
  std::vector<TensorEntry> tensors;
  std::vector<ScalarEntry> scalars;
  std::vector<EventEntry> events;
  std::vector<SpanEntry> spans;
  std::vector<Gap> gaps;
  std::vector<HistogramEntry> histograms;
  std::vector<Problem> problems;
  std::vector<RowsPlace> rows;
  std::uint64_t n_rows = 0;
  // The place in `definitions` of the last one of an id.
  std::unordered_map<std::uint32_t, std::size_t> definition_of_id;

  // The definition of this id, or null.
  [[nodiscard]] const Definition* Find(std::uint32_t id) const {
    const auto found = definition_of_id.find(id);
    return found == definition_of_id.end() ? nullptr
                                           : &definitions[found->second];
  }
  // Changes whenever anything is added.
  [[nodiscard]] std::uint64_t Size() const {
    return definitions.size() + steps.size() + tensors.size() + scalars.size() +
           events.size() + spans.size() + gaps.size() + histograms.size() +
           problems.size() + rows.size();
  }
};

}  // namespace tdbg
