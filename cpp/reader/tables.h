// Tables are what a reader has taken in from the records of one shard, in their
// order.
//
// Tables only grow.  Of rows, tensors, histograms and samples they hold places,
// not values.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "format/index_tables.h"
#include "format/record.h"
#include "reader/definitions.h"
#include "reader/problem.h"

namespace tdbg {

struct EventEntry {
  std::int64_t step = 0;
  std::uint64_t sequence = 0;
  Event event;
};
struct SpanEntry {
  std::int64_t step = 0;
  Span span;
};
// Where a histogram lies: it may take 25 KB, so it is decoded when asked for.
struct HistogramEntry {
  std::int64_t step = 0;
  std::uint64_t sequence = 0;
  std::uint64_t offset = 0;  // Of the record, in its shard.
  std::uint64_t payload_length = 0;
  std::uint32_t definition = 0;
  std::uint32_t shard_number = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint32_t payload_crc = 0;  // Masked.
};
static_assert(sizeof(HistogramEntry) == 48);

// Sequences of records that were written and cannot be read:
// [first_sequence, end_sequence).
struct Hole {
  std::uint64_t first_sequence = 0;
  std::uint64_t end_sequence = 0;
  bool operator==(const Hole&) const = default;
};

struct Tables {
  // Shared by the shards of a writer.
  std::shared_ptr<Definitions> definitions = std::make_shared<Definitions>();
  std::vector<StepEntry> steps;
  std::vector<TensorEntry> tensors;
  std::vector<ScalarEntry> scalars;
  std::vector<EventEntry> events;
  std::vector<SpanEntry> spans;
  std::vector<Gap> gaps;
  std::vector<HistogramEntry> histograms;
  std::vector<SamplesPlace> samples;
  std::vector<Problem> problems;
  std::vector<Hole> holes;  // Within the shard.
  std::vector<RowsPlace> rows;
  Signatures signatures;
  std::uint64_t n_rows = 0;

  // Changes whenever anything but a definition is added.
  [[nodiscard]] std::uint64_t Size() const {
    return steps.size() + tensors.size() + scalars.size() + events.size() +
           spans.size() + gaps.size() + histograms.size() + problems.size() +
           rows.size() + samples.size();
  }
};

}  // namespace tdbg
