#include "reader/envelope.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tdbg {

EnvelopeGrid::EnvelopeGrid(std::size_t n_names, std::vector<std::int64_t> edges,
                           std::vector<CellField> fields)
    : edges_(std::move(edges)), fields_(std::move(fields)) {
  TDBG_DCHECK(!edges_.empty() && std::is_sorted(edges_.begin(), edges_.end()));
  for (std::size_t i = 0; i + 1 < edges_.size(); ++i) {
    widest_ = std::max(widest_, edges_[i + 1] - edges_[i]);
  }
  const std::size_t n = n_names * n_columns();
  rows_.resize(n);
  bad_.resize(n);
  valued_.resize(n);
  first_bad_.assign(n_names, kNone);
  ranges_.resize(n * fields_.size());
}

std::optional<std::size_t> EnvelopeGrid::SeekColumn(std::int64_t step) {
  if (step < edges_.front() || step >= edges_.back()) return std::nullopt;
  if (column_ + 2 < edges_.size() && step >= edges_[column_ + 1] &&
      step < edges_[column_ + 2]) {
    ++column_;
  } else {
    const auto after = std::upper_bound(edges_.begin(), edges_.end(), step);
    column_ = static_cast<std::size_t>(after - edges_.begin()) - 1;
  }
  low_ = edges_[column_];
  high_ = edges_[column_ + 1];
  return column_;
}

void EnvelopeGrid::AddRow(std::size_t name, std::size_t column,
                          std::int64_t step, const CellRow& row) {
  const std::size_t at = name * n_columns() + column;
  ++n_rows_;
  ++rows_[at];
  if (row.is_bad()) {
    ++bad_[at];
    first_bad_[name] = std::min(first_bad_[name], step);
  }
  if (!row.is_valued()) return;
  ++valued_[at];
  Range* range = At(at);
  for (const CellField field : fields_) {
    const float value = row.Value(field);
    range->least = std::min(range->least, value);
    range->greatest = std::max(range->greatest, value);
    range->sum += value;
    ++range;
  }
}

void EnvelopeGrid::AddCell(std::size_t name, std::size_t column,
                           const Cell& cell) {
  const std::size_t at = name * n_columns() + column;
  n_rows_ += cell.n_rows;
  rows_[at] += cell.n_rows;
  bad_[at] += cell.n_bad;
  if (cell.n_bad > 0) {
    first_bad_[name] = std::min(first_bad_[name], cell.first_bad);
  }
  if (cell.n_valued == 0) return;
  valued_[at] += cell.n_valued;
  Range* range = At(at);
  for (const CellField field : fields_) {
    const CellRange& of_cell = cell.ranges[static_cast<std::size_t>(field)];
    range->least = std::min(range->least, of_cell.least);
    range->greatest = std::max(range->greatest, of_cell.greatest);
    range->sum += static_cast<double>(of_cell.mean) * cell.n_valued;
    ++range;
  }
}

template <typename Value>
std::vector<float> EnvelopeGrid::Gather(std::size_t field, Value value) const {
  TDBG_DCHECK(field < fields_.size());
  std::vector<float> values(rows_.size());
  for (std::size_t at = 0; at < values.size(); ++at) {
    values[at] = valued_[at] == 0
                     ? std::numeric_limits<float>::quiet_NaN()
                     : value(ranges_[at * fields_.size() + field], valued_[at]);
  }
  return values;
}

std::vector<float> EnvelopeGrid::Low(std::size_t field) const {
  return Gather(field, [](const Range& r, std::uint32_t) { return r.least; });
}
std::vector<float> EnvelopeGrid::High(std::size_t field) const {
  return Gather(field,
                [](const Range& r, std::uint32_t) { return r.greatest; });
}
std::vector<float> EnvelopeGrid::Mean(std::size_t field) const {
  return Gather(field, [](const Range& r, std::uint32_t n) {
    return static_cast<float>(r.sum / n);
  });
}

}  // namespace tdbg
