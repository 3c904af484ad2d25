// UnitSummarySpec says which elements of a tensor's units are counted.
//
// Thread safety: a value.

#pragma once

#include <cstddef>
#include <limits>

#include "reducers/reduce.h"

namespace tdbg {

struct UnitSummarySpec {
  // Elements outside of [low, high], and NaN, count as out of range.
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  // For the gradient of an embedding: its rows are the units, elements other
  // than zero are active, none is out of range, and `low` and `high` are
  // ignored.
  bool rows_are_units = false;
  // Whether the last dimension numbers the units, as where channels come last;
  // otherwise UnitAxis says which does.
  bool units_last = false;

  // REQUIRES: n_dims >= 1.
  [[nodiscard]] std::size_t Axis(std::size_t n_dims) const {
    if (rows_are_units) return 0;
    return units_last ? n_dims - 1 : UnitAxis(n_dims);
  }
  // The range to count with: for rows, elements other than zero are either
  // active or out of it.
  [[nodiscard]] double CountedLow() const { return rows_are_units ? 0.0 : low; }
  [[nodiscard]] double CountedHigh() const {
    return rows_are_units ? std::numeric_limits<double>::infinity() : high;
  }
};

}  // namespace tdbg
