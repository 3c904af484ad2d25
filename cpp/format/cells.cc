#include "format/cells.h"

#include <algorithm>
#include <cmath>

namespace tdbg {
namespace {

// Of so many cells of a definition the newest are looked through for one that a
// row belongs to: modes may take turns.
constexpr std::size_t kOpenCells = 4;

float ToFloat(double value) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kLargest, kLargest));
}

double AsDouble(const Extreme& extreme, ExtremeClass extremes) {
  switch (extremes) {
    case ExtremeClass::kInt64:
      return static_cast<double>(extreme.i64);
    case ExtremeClass::kUInt64:
      return static_cast<double>(extreme.u64);
    case ExtremeClass::kFloat64:
      break;
  }
  return extreme.f64;
}

// The cell that is being made, whose means are sums yet.
struct OpenCell {
  std::int64_t bucket = 0;
  Cell cell;
  std::array<double, kCellFields> sums{};
};

void Take(const CellRow& row, std::int64_t step, OpenCell* open) {
  Cell& cell = open->cell;
  cell.first_step = std::min(cell.first_step, step);
  cell.last_step = std::max(cell.last_step, step);
  ++cell.n_rows;
  if (row.is_bad()) {
    cell.first_bad = cell.n_bad == 0 ? step : std::min(cell.first_bad, step);
    ++cell.n_bad;
  }
  if (!row.is_valued()) return;
  ++cell.n_valued;
  for (std::size_t i = 0; i < kCellFields; ++i) {
    CellRange& range = cell.ranges[i];
    const float value = row.Value(static_cast<CellField>(i));
    range.least = std::min(range.least, value);
    range.greatest = std::max(range.greatest, value);
    open->sums[i] += value;
  }
}

Cell Closed(const OpenCell& open) {
  Cell cell = open.cell;
  for (std::size_t i = 0; i < kCellFields && cell.n_valued > 0; ++i) {
    cell.ranges[i].mean = static_cast<float>(open.sums[i] / cell.n_valued);
  }
  return cell;
}

OpenCell Begin(const ColumnRow& row, std::uint32_t mode, std::int64_t bucket) {
  OpenCell open;
  open.bucket = bucket;
  open.cell.first_step = open.cell.last_step = row.step;
  open.cell.definition = row.definition;
  open.cell.mode = mode;
  return open;
}

}  // namespace

CellRow::CellRow(const Summary& summary, ExtremeClass extremes)
    : summary_(&summary),
      finite_(static_cast<double>(summary.finite())),
      is_bad_(summary.finite() != summary.count) {
  if (summary.finite() == 0) return;
  abs_max_ = std::max(std::abs(AsDouble(summary.min, extremes)),
                      std::abs(AsDouble(summary.max, extremes)));
  is_valued_ = summary.finite() <= summary.count && summary.l2 >= 0 &&
               summary.m2 >= 0 && !std::isnan(summary.mean) &&
               !std::isnan(abs_max_);
  is_bad_ = is_bad_ || !is_valued_;
}

float CellRow::Value(CellField field) const {
  switch (field) {
    case CellField::kL2:
      return ToFloat(summary_->l2);
    case CellField::kRms:
      return ToFloat(summary_->l2 / std::sqrt(finite_));
    case CellField::kMean:
      return ToFloat(summary_->mean);
    case CellField::kStd:
      return ToFloat(std::sqrt(summary_->m2 / finite_));
    case CellField::kAbsMax:
      return ToFloat(abs_max_);
    case CellField::kZeroShare:
      return ToFloat(static_cast<double>(summary_->zero) /
                     static_cast<double>(summary_->count));
  }
  return 0.0F;
}

Cell CellOf(const ColumnRow& row, ExtremeClass extremes, std::uint32_t mode) {
  OpenCell open = Begin(row, mode, 0);
  Take(CellRow(row.summary, extremes), row.step, &open);
  return Closed(open);
}

ExtremeClass CellClassOf(DType dtype) {
  return HasStatistics(dtype) ? ExtremeClassOf(dtype) : ExtremeClass::kFloat64;
}

StepModes::StepModes(std::span<const StepEntry> steps) {
  modes_.reserve(steps.size());
  for (const StepEntry& entry : steps) {
    modes_.emplace_back(entry.record.step, entry.record.mode);
  }
  std::stable_sort(
      modes_.begin(), modes_.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
}

std::uint32_t StepModes::Find(std::int64_t step) {
  // The same as before, or the next one: rows come by their steps.
  for (std::size_t i = last_; i < std::min(last_ + 2, modes_.size()); ++i) {
    const bool is_latest = i + 1 == modes_.size() || modes_[i + 1].first > step;
    if (modes_[i].first == step && is_latest) {
      last_ = i;
      return modes_[i].second;
    }
  }
  // Of two records of a step the later counts.
  const auto after = std::upper_bound(
      modes_.begin(), modes_.end(), step,
      [](std::int64_t s, const auto& entry) { return s < entry.first; });
  if (after == modes_.begin() || (after - 1)->first != step) {
    return kModeUnknown;
  }
  last_ = static_cast<std::size_t>(after - 1 - modes_.begin());
  return modes_[last_].second;
}

unsigned BucketShift(std::int64_t first, std::int64_t last,
                     std::uint64_t n_steps) {
  const double span =
      static_cast<double>(last) - static_cast<double>(first) + 1.0;
  const double steps = static_cast<double>(std::max<std::uint64_t>(n_steps, 1));
  unsigned shift = kLeastBucketShift;
  while (shift < kMostBucketShift &&
         std::ldexp(steps, static_cast<int>(shift)) <
             std::ldexp(span, kLeastBucketShift)) {
    ++shift;
  }
  return shift;
}

void AppendCells(std::span<const ColumnRow> rows, ExtremeClass extremes,
                 unsigned shift, StepModes* modes, std::vector<Cell>* cells) {
  std::vector<OpenCell> open;
  for (const ColumnRow& row : rows) {
    const std::uint32_t mode = modes->Find(row.step);
    const std::int64_t bucket =
        mode == kModeUnknown ? row.step : row.step >> shift;
    std::size_t i = open.size();
    const std::size_t oldest = i > kOpenCells ? i - kOpenCells : 0;
    while (i > oldest &&
           (open[i - 1].bucket != bucket || open[i - 1].cell.mode != mode)) {
      --i;
    }
    if (i == oldest) {
      open.push_back(Begin(row, mode, bucket));
      i = open.size();
    }
    Take(CellRow(row.summary, extremes), row.step, &open[i - 1]);
  }
  for (const OpenCell& one : open) cells->push_back(Closed(one));
}

bool CellHolds(const Cell& cell, std::uint32_t definition,
               std::int64_t first_step, std::int64_t last_step) {
  return cell.definition == definition && cell.n_rows > 0 &&
         cell.reserved == 0 && cell.n_bad <= cell.n_rows &&
         cell.n_valued <= cell.n_rows && first_step <= cell.first_step &&
         cell.first_step <= cell.last_step && cell.last_step <= last_step &&
         (cell.mode != kModeUnknown || cell.first_step == cell.last_step) &&
         (cell.n_bad == 0 || (cell.first_step <= cell.first_bad &&
                              cell.first_bad <= cell.last_step));
}

}  // namespace tdbg
