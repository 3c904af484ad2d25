// EnvelopeGrid is what is drawn of many tensors over many steps: of each tensor
// in each column, which covers some steps, the least, the greatest and the mean
// row.  Rows and cells are added to it, in any order.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "format/cells.h"
#include "reader/step_range.h"

namespace tdbg {

class EnvelopeGrid {
 public:
  // Column i covers the steps edges[i] <= step < edges[i + 1].
  // REQUIRES: there is an edge, they ascend, and the cells fit into memory.
  EnvelopeGrid(std::size_t n_names, std::vector<std::int64_t> edges,
               std::vector<CellField> fields);

  // The column of a step; nothing where it is outside of all.  Quick where the
  // last question was about the same column or the one before.
  std::optional<std::size_t> FindColumn(std::int64_t step) {
    if (step >= low_ && step < high_) return column_;
    return SeekColumn(step);
  }
  // Whether a column ends in this range of steps.
  bool IsCut(std::int64_t first, std::int64_t last) {
    const auto column = FindColumn(first);
    return !column || *column != FindColumn(last);
  }
  // The steps of the widest column.
  [[nodiscard]] std::int64_t widest() const { return widest_; }

  // REQUIRES: name < n_names, column < n_columns().
  void AddRow(std::size_t name, std::size_t column, std::int64_t step,
              const CellRow& row);
  void AddCell(std::size_t name, std::size_t column, const Cell& cell);

  [[nodiscard]] std::size_t n_names() const { return first_bad_.size(); }
  [[nodiscard]] std::size_t n_columns() const { return edges_.size() - 1; }
  [[nodiscard]] std::uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] const std::vector<CellField>& fields() const { return fields_; }
  // By name and column; NaN in what has no value.
  // REQUIRES: field < fields().size().
  [[nodiscard]] std::vector<float> Low(std::size_t field) const;
  [[nodiscard]] std::vector<float> High(std::size_t field) const;
  [[nodiscard]] std::vector<float> Mean(std::size_t field) const;
  [[nodiscard]] const std::vector<std::uint32_t>& rows() const { return rows_; }
  [[nodiscard]] const std::vector<std::uint32_t>& bad() const { return bad_; }
  // By name: the first step of a bad row; nothing is kNone.
  static constexpr std::int64_t kNone =
      std::numeric_limits<std::int64_t>::max();
  [[nodiscard]] const std::vector<std::int64_t>& first_bad() const {
    return first_bad_;
  }

 private:
  std::optional<std::size_t> SeekColumn(std::int64_t step);

  // Constant after construction.
  const std::vector<std::int64_t> edges_;
  const std::vector<CellField> fields_;
  std::int64_t widest_ = 0;

  // The column of the last question: [low_, high_).
  std::size_t column_ = 0;
  std::int64_t low_ = 0;
  std::int64_t high_ = 0;

  std::uint64_t n_rows_ = 0;
  // By name and column.
  std::vector<std::uint32_t> rows_;
  std::vector<std::uint32_t> bad_;
  std::vector<std::uint32_t> valued_;
  std::vector<std::int64_t> first_bad_;  // By name.
  // By name, column and field.
  struct Range {
    float least = std::numeric_limits<float>::infinity();
    float greatest = -std::numeric_limits<float>::infinity();
    double sum = 0.0;
  };
  [[nodiscard]] Range* At(std::size_t at) {
    return ranges_.data() + at * fields_.size();
  }
  template <typename Value>
  [[nodiscard]] std::vector<float> Gather(std::size_t field, Value value) const;
  std::vector<Range> ranges_;
};

// What is asked of one writer: which definitions are which names of a grid,
// within which steps.
struct EnvelopeIds {
  std::vector<std::uint32_t> definitions;
  std::vector<std::uint32_t> names;  // One for each definition.
  StepRange steps;
  std::optional<std::uint32_t> mode;  // Of any, without.
};

// The same, as shards are asked.
struct EnvelopeQuery {
  struct Tensor {
    std::uint32_t definition = 0;
    std::uint32_t name = 0;
    ExtremeClass extremes = ExtremeClass::kFloat64;
  };
  StepRange steps;
  std::vector<Tensor> tensors;  // Ascending by definition, each once.
  std::optional<std::uint32_t> mode;

  [[nodiscard]] bool HasMode(std::uint32_t of_step) const {
    return of_step != kModeUnknown && (!mode || *mode == of_step);
  }
};

// Of a sealed shard: the steps of a bucket of its cells, and how many rows it
// has.
struct CellBuckets {
  std::int64_t steps = 0;
  std::uint64_t n_rows = 0;
};

// A cell, or a row as one, of a step whose mode its shard does not tell.
struct LooseCell {
  std::size_t name = 0;
  std::size_t column = 0;
  Cell cell;
};

}  // namespace tdbg
