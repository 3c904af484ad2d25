// Compares a row with the reference's, within the bounds of docs/statistics.md.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "tensor/summary.h"
#include "testing.h"

namespace tdbg::testing {

inline void ExpectExtremes(const Summary& actual, const Summary& expected,
                           DType dtype) {
  switch (ExtremeClassOf(dtype)) {
    case ExtremeClass::kFloat64:
      EXPECT_EQ(actual.min.f64, expected.min.f64);
      EXPECT_EQ(actual.max.f64, expected.max.f64);
      break;
    case ExtremeClass::kInt64:
      EXPECT_EQ(actual.min.i64, expected.min.i64);
      EXPECT_EQ(actual.max.i64, expected.max.i64);
      break;
    case ExtremeClass::kUInt64:
      EXPECT_EQ(actual.min.u64, expected.min.u64);
      EXPECT_EQ(actual.max.u64, expected.max.u64);
      break;
  }
}

// Checks all fields; says what was being checked when one differs.
inline void ExpectRow(const Summary& actual, const Summary& expected,
                      DType dtype, const std::string& what) {
  const int before = Failures();
  const bool narrow =
      ExtremeClassOf(dtype) == ExtremeClass::kFloat64 && ItemSize(dtype) < 8;
  const double bound = narrow ? 1e-7 : 1e-12;
  EXPECT_EQ(actual.count, expected.count);
  EXPECT_EQ(actual.nan, expected.nan);
  EXPECT_EQ(actual.positive_infinity, expected.positive_infinity);
  EXPECT_EQ(actual.negative_infinity, expected.negative_infinity);
  EXPECT_EQ(actual.zero, expected.zero);
  ExpectExtremes(actual, expected, dtype);
  EXPECT_EQ(actual.abs_min, expected.abs_min);
  const auto n =
      static_cast<double>(std::max<std::uint64_t>(1, expected.finite()));
  const double mean_abs = expected.l1 / n;
  EXPECT_LE(std::fabs(actual.mean - expected.mean), bound * mean_abs);
  // Long double has a rounding error, too.
  const double noise = n * mean_abs * mean_abs * 1e-36;
  if (std::fabs(actual.m2 - expected.m2) > noise) {
    EXPECT_CLOSE(actual.m2, expected.m2, 2 * bound);
  }
  EXPECT_CLOSE(actual.l1, expected.l1, bound);
  EXPECT_CLOSE(actual.l2, expected.l2, bound);
  if (Failures() != before) Fail(__FILE__, __LINE__, "for " + what);
}

}  // namespace tdbg::testing
