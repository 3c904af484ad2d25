#include "reducers/finish.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace tdbg {
namespace {

// The range within which squares of float64 need no scaling.
constexpr double kGreatest = 1e140;
constexpr double kLeast = 1e-130;

bool IsConstant(const Summary& s, ExtremeClass extremes, double* value) {
  switch (extremes) {
    case ExtremeClass::kFloat64:
      *value = s.min.f64;
      return s.min.f64 == s.max.f64;
    case ExtremeClass::kInt64:
      *value = static_cast<double>(s.min.i64);
      return s.min.i64 == s.max.i64;
    case ExtremeClass::kUInt64:
      *value = static_cast<double>(s.min.u64);
      return s.min.u64 == s.max.u64;
  }
  return false;
}

// These two are not inlined, being rare: Finish is shorter without them.

// From the moments of the elements times 2^-exponent to their own.
[[gnu::noinline]] void Rescale(int exponent, Summary* s) {
  s->mean = std::ldexp(s->mean, exponent);
  s->m2 = std::ldexp(s->m2, 2 * exponent);
  s->l1 = std::ldexp(s->l1, exponent);
  s->l2 = std::ldexp(s->l2, exponent);
}

// The summary of the same elements, each multiplied by `scale`.
[[gnu::noinline]] void Scale(double scale, Summary* s) {
  const double magnitude = std::fabs(scale);
  s->min.f64 *= scale;
  s->max.f64 *= scale;
  if (scale < 0) {
    std::swap(s->min, s->max);
    std::swap(s->positive_infinity, s->negative_infinity);
  }
  s->abs_min *= magnitude;
  s->mean *= scale;
  s->m2 = s->m2 * scale * scale;
  s->l1 *= magnitude;
  s->l2 *= magnitude;
}

// Sets mean, m2, l1 and l2 from moments taken with elements times 2^-exponent.
// REQUIRES: the other fields of `*s` are set, and s->finite() > 0.
void SetMoments(const Moments& m, int exponent, ExtremeClass extremes,
                Summary* s) {
  const auto n = static_cast<double>(m.finite);
  double value = 0;
  if (IsConstant(*s, extremes, &value)) {
    s->mean = value;
    s->m2 = 0;
    s->l1 = std::fabs(value) * n;
    s->l2 = std::fabs(value) * std::sqrt(n);
    return;
  }
  s->mean = m.mean;
  s->m2 = m.m2;
  s->l1 = m.l1;
  s->l2 = std::sqrt(m.m2 + n * m.mean * m.mean);
  if (exponent != 0) Rescale(exponent, s);
}

}  // namespace

int RangeExponent(double min, double max) {
  const double greatest = std::fmax(std::fabs(min), std::fabs(max));
  if (greatest <= kGreatest && (greatest >= kLeast || greatest == 0)) return 0;
  // 2^-exponent must itself be a normal number.
  return std::clamp(std::ilogb(greatest), -1000, 1000);
}

bool FollowsFromElements(const Moments& m, DType dtype, double scale) {
  if (m.finite == 0) return true;
  // Of all narrower types, the least number that is not zero.
  constexpr double kLeastNarrow = 0x1p-149;
  const double greatest = std::fmax(std::fabs(m.min.f64), std::fabs(m.max.f64));
  double least = m.abs_min;
  if (least == 0) {
    // Beside zeros there may be anything.
    if (greatest == 0) return true;
    least = dtype == DType::kFloat64 ? 0 : kLeastNarrow;
  }
  const double magnitude = std::fabs(scale);
  return greatest <= kGreatest && greatest * magnitude <= kGreatest &&
         least >= kLeast && least * magnitude >= kLeast;
}

Summary Finish(const Moments& m, const MomentsOf& of) {
  TDBG_DCHECK(HasStatistics(of.dtype));
  const ExtremeClass extremes = ExtremeClassOf(of.dtype);
  Summary s;
  s.count = of.count;
  s.nan = m.nan;
  s.positive_infinity = m.positive_infinity;
  s.negative_infinity = m.negative_infinity;
  s.zero = m.zero;
  s.min = m.min;
  s.max = m.max;
  s.abs_min = m.abs_min;
  if (m.finite > 0) SetMoments(m, of.exponent, extremes, &s);
  if (of.scale != 1.0) Scale(of.scale, &s);
  return s;
}

}  // namespace tdbg
