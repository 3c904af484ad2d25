// Tables are what a reader has taken in from the records of one shard, in their
// order.
//
// Tables only grow.  Of rows and tensors they hold places, not values.
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
struct HistogramEntry {
  std::int64_t step = 0;
  Histogram histogram;
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
  std::vector<Problem> problems;
  std::vector<RowsPlace> rows;
  Signatures signatures;
  std::uint64_t n_rows = 0;

  // Changes whenever anything but a definition is added.
  [[nodiscard]] std::uint64_t Size() const {
    return steps.size() + tensors.size() + scalars.size() + events.size() +
           spans.size() + gaps.size() + histograms.size() + problems.size() +
           rows.size();
  }
};

}  // namespace tdbg
