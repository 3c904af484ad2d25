#include "tensor/summary.h"

#include <algorithm>
#include <cmath>

namespace tdbg {

Summary Summary::Empty(ExtremeClass extremes) {
  Summary empty;
  switch (extremes) {
    case ExtremeClass::kFloat64:
      break;
    case ExtremeClass::kInt64:
      empty.min.i64 = std::numeric_limits<std::int64_t>::max();
      empty.max.i64 = std::numeric_limits<std::int64_t>::min();
      break;
    case ExtremeClass::kUInt64:
      empty.min.u64 = std::numeric_limits<std::uint64_t>::max();
      empty.max.u64 = 0;
      break;
  }
  return empty;
}

void Summary::Merge(const Summary& other, ExtremeClass extremes) {
  const auto n_this = static_cast<double>(finite());
  const auto n_other = static_cast<double>(other.finite());
  if (n_other > 0) {
    if (n_this > 0) {
      const double n = n_this + n_other;
      const double delta = other.mean - mean;
      mean += delta * (n_other / n);
      m2 += other.m2 + delta * delta * (n_this * (n_other / n));
    } else {
      mean = other.mean;
      m2 = other.m2;
    }
    l1 += other.l1;
    l2 = std::hypot(l2, other.l2);
    abs_min = std::min(abs_min, other.abs_min);
    switch (extremes) {
      case ExtremeClass::kFloat64:
        min.f64 = std::min(min.f64, other.min.f64);
        max.f64 = std::max(max.f64, other.max.f64);
        break;
      case ExtremeClass::kInt64:
        min.i64 = std::min(min.i64, other.min.i64);
        max.i64 = std::max(max.i64, other.max.i64);
        break;
      case ExtremeClass::kUInt64:
        min.u64 = std::min(min.u64, other.min.u64);
        max.u64 = std::max(max.u64, other.max.u64);
        break;
    }
  }
  count += other.count;
  nan += other.nan;
  positive_infinity += other.positive_infinity;
  negative_infinity += other.negative_infinity;
  zero += other.zero;
}

}  // namespace tdbg
