// Summary is the statistics row of one tensor at one step.
//
// Implements docs/statistics.md.  Counts cover all elements; every other field
// covers the finite ones only.  The summary of no element is the value of a
// default-constructed Summary after Reset(class): merging it changes nothing.
//
// Thread safety: a value.

#pragma once

#include <cstdint>
#include <limits>

#include "tensor/dtype.h"

namespace tdbg {

// A minimum or maximum in its dtype's class; the class lies beside it.
union Extreme {
  double f64;
  std::int64_t i64;
  std::uint64_t u64;
};
static_assert(sizeof(Extreme) == 8);

struct Summary {
  std::uint64_t count = 0;  // All elements.
  std::uint64_t nan = 0;
  std::uint64_t positive_infinity = 0;
  std::uint64_t negative_infinity = 0;
  std::uint64_t zero = 0;  // +0 and -0.
  Extreme min{.f64 = std::numeric_limits<double>::infinity()};
  Extreme max{.f64 = -std::numeric_limits<double>::infinity()};
  double abs_min = std::numeric_limits<double>::infinity();  // min of |x|.
  double mean = 0.0;
  double m2 = 0.0;  // Sum of squared deviations from the mean.
  double l1 = 0.0;  // Sum of |x|.
  double l2 = 0.0;  // Square root of the sum of x^2, safe against overflow.

  [[nodiscard]] std::uint64_t finite() const {
    return count - nan - positive_infinity - negative_infinity;
  }

  // The summary of no element of a dtype of class `extremes`.
  [[nodiscard]] static Summary Empty(ExtremeClass extremes);

  // Makes this the summary of both sets of elements (Chan et al. 1983).
  // REQUIRES: both are of class `extremes`.
  void Merge(const Summary& other, ExtremeClass extremes);
};
static_assert(sizeof(Summary) == 12 * sizeof(double),
              "the row on disk has 12 fields");

// A summary for each unit of a layer: docs/statistics.md, "The unit summary".
struct UnitCounts {
  std::uint64_t active = 0;        // Elements > 0.
  std::uint64_t out_of_range = 0;  // Elements < low or > high, or NaN.
  std::uint64_t count = 0;         // All elements.
};

}  // namespace tdbg
