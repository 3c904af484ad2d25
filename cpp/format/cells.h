// A cell is what is known of the rows that a tensor has in a bucket of steps:
// how many there are, and of each of a few statistics the least, the greatest
// and the mean.  A picture is drawn from cells where it has fewer columns than
// a run has steps.
//
// Implements docs/format.md, "Cells".  Pure functions over values.
//
// Thread safety: values and pure functions.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "format/index_tables.h"
#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg {

// On disk: never renumber.
enum class CellField : std::uint8_t {
  kL2 = 0,
  kRms = 1,  // l2 / sqrt(finite elements)
  kMean = 2,
  kStd = 3,
  kAbsMax = 4,     // max of |x|
  kZeroShare = 5,  // Zeros / elements.
};
inline constexpr std::size_t kCellFields = 6;

// Of no value: a range that any value extends.
struct CellRange {
  float least = std::numeric_limits<float>::infinity();
  float greatest = -std::numeric_limits<float>::infinity();
  float mean = 0.0F;
};

// Lies on the disk as in memory.
struct Cell {
  std::int64_t first_step = 0;  // Of its rows.
  std::int64_t last_step = 0;
  std::int64_t first_bad = 0;  // The first step of a bad row, if there is one.
  std::uint32_t definition = 0;
  std::uint32_t mode = 0;      // Of its steps.
  std::uint32_t n_rows = 0;    // At least one.
  std::uint32_t n_bad = 0;     // With an element that is NaN or infinite.
  std::uint32_t n_valued = 0;  // With a finite element: those in `ranges`.
  std::uint32_t reserved = 0;
  std::array<CellRange, kCellFields> ranges;
};
static_assert(sizeof(Cell) == 120);

// Cell::mode of rows of one step whose `step` record is not in the shard.
inline constexpr std::uint32_t kModeUnknown = 0;

// A row as cells take it.  Values of fields are computed when they are asked
// for.  A row of moments that no tensor can have is bad and has no value.
class CellRow {
 public:
  // `extremes` is the class of the row's minimum and maximum.  `summary`
  // outlives this.
  CellRow(const Summary& summary, ExtremeClass extremes);

  [[nodiscard]] bool is_bad() const { return is_bad_; }
  // Whether it has a finite element.
  [[nodiscard]] bool is_valued() const { return is_valued_; }
  // What is beyond float32 becomes its largest number.
  // REQUIRES: is_valued().
  [[nodiscard]] float Value(CellField field) const;

 private:
  const Summary* summary_;
  double finite_ = 0.0;
  double abs_max_ = 0.0;
  bool is_valued_ = false;
  bool is_bad_ = false;
};
// The cell of one row.
[[nodiscard]] Cell CellOf(const ColumnRow& row, ExtremeClass extremes,
                          std::uint32_t mode);

// The class of the extremes of a dtype; that of floats where it has none.
[[nodiscard]] ExtremeClass CellClassOf(DType dtype);

// The modes of the steps that a writer ended, as far as they are known.
class StepModes {
 public:
  StepModes() = default;
  explicit StepModes(std::span<const StepEntry> steps);
  // The mode of a step; kModeUnknown where it is not known.
  [[nodiscard]] std::uint32_t Find(std::int64_t step);

 private:
  std::vector<std::pair<std::int64_t, std::uint32_t>> modes_;  // By step.
  std::size_t last_ = 0;  // Of the last question, which is mostly that again.
};

// Buckets are 2^shift steps wide, and begin at multiples of that.
inline constexpr unsigned kLeastBucketShift = 6;
inline constexpr unsigned kMostBucketShift = 40;

// The shift for `n_steps` recorded ones from `first` to `last`: such that a
// bucket has some 64 of them or more.
[[nodiscard]] unsigned BucketShift(std::int64_t first, std::int64_t last,
                                   std::uint64_t n_steps);

// Appends the cells of the rows of one definition, in the order in which they
// were written; rows of a step without a known mode are cells of their own.
void AppendCells(std::span<const ColumnRow> rows, ExtremeClass extremes,
                 unsigned shift, StepModes* modes, std::vector<Cell>* cells);

// Whether `cell` may be one of `definition` within these steps.
[[nodiscard]] bool CellHolds(const Cell& cell, std::uint32_t definition,
                             std::int64_t first_step, std::int64_t last_step);

}  // namespace tdbg
