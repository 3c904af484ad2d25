// What is counted of the units of a tensor.
//
// Thread safety: a value.

#pragma once

#include <cstddef>
#include <limits>

#include "reducers/reduce.h"

namespace tdbg {

struct UnitQuestion {
  // Outside of [low, high], and NaN, is beyond.
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  // Of the gradient of an embedding: its rows are the units, active is what is
  // not zero, and nothing is beyond; `low` and `high` are not looked at.
  bool of_rows = false;

  [[nodiscard]] std::size_t Axis(std::size_t n_dims) const {
    return of_rows ? 0 : UnitAxis(n_dims);
  }
  // The range that is counted with: what is not zero is above it or beyond it.
  [[nodiscard]] double CountedLow() const { return of_rows ? 0.0 : low; }
  [[nodiscard]] double CountedHigh() const {
    return of_rows ? std::numeric_limits<double>::infinity() : high;
  }
};

}  // namespace tdbg
