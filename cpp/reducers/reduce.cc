#include "reducers/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "reducers/element_walk.h"
#include "reducers/flush_to_zero.h"
#include "reducers/implementation.h"
#include "reducers/moments.h"
#include "reducers/segments.h"

namespace tdbg {
namespace {

// The range within which squares of float64 need no scaling.
constexpr double kGreatest = 1e140;
constexpr double kLeast = 1e-130;

void Accumulate(const TensorView& view, std::size_t n, Pass pass,
                unsigned n_threads, const Implementation& implementation,
                Moments* m) {
  const auto contiguous = [&](const void* data) {
    AccumulateSegments(static_cast<const std::byte*>(data), n, view.dtype, pass,
                       n_threads, implementation, m);
  };
  if (view.strides.empty()) {
    if (n > SegmentElements(view.item_size) ||
        !IsAligned(view.data, view.item_size)) {
      return contiguous(view.data);
    }
    // Most tensors: the short way.
    Clear(ExtremeClassOf(view.dtype), m);
    return implementation.accumulate(view.data, n, view.dtype, pass, m);
  }
  const ElementWalk walk(view);
  if (walk.is_contiguous(view.item_size)) return contiguous(walk.first());
  Clear(ExtremeClassOf(view.dtype), m);
  ForEachRun(walk, view.item_size, [&](const std::byte* data, std::size_t k) {
    implementation.accumulate(data, k, view.dtype, pass, m);
  });
}

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
  if (exponent == 0) {
    s->mean = m.mean;
    s->m2 = m.m2;
    s->l1 = m.l1;
    s->l2 = std::sqrt(m.m2 + n * m.mean * m.mean);
    return;
  }
  s->mean = std::ldexp(m.mean, exponent);
  s->m2 = std::ldexp(m.m2, 2 * exponent);
  s->l1 = std::ldexp(m.l1, exponent);
  s->l2 = std::ldexp(std::sqrt(m.m2 + n * m.mean * m.mean), exponent);
}

Summary ReduceElements(const TensorView& view, std::size_t n,
                       const ReduceOptions& options,
                       const Implementation& implementation) {
  const ExtremeClass extremes = ExtremeClassOf(view.dtype);
  Moments m;
  Accumulate(view, n, {.precise = options.precise}, options.n_threads,
             implementation, &m);
  Summary s;
  s.count = n;
  s.nan = m.nan;
  s.positive_infinity = m.positive_infinity;
  s.negative_infinity = m.negative_infinity;
  s.zero = m.zero;
  s.min = m.min;
  s.max = m.max;
  s.abs_min = m.abs_min;
  if (m.finite == 0) return s;
  int exponent = 0;
  if (view.dtype == DType::kFloat64) {
    const double greatest =
        std::fmax(std::fabs(s.min.f64), std::fabs(s.max.f64));
    if (greatest > kGreatest || (greatest < kLeast && greatest > 0)) {
      // 2^-exponent must itself be a normal number.
      exponent = std::clamp(std::ilogb(greatest), -1000, 1000);
      Accumulate(view, n, {.factor = std::ldexp(1.0, -exponent)},
                 options.n_threads, implementation, &m);
    }
  }
  SetMoments(m, exponent, extremes, &s);
  return s;
}

// The summary of the same elements, each multiplied by `scale`.
void Scale(double scale, Summary* s) {
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

}  // namespace

Summary ReduceWith(const TensorView& view, const ReduceOptions& options,
                   const Implementation& implementation) {
  const std::size_t n = view.count();
  if (n == 0) return Summary::Empty(ExtremeClassOf(view.dtype));
  const FlushToZeroOff exact;
  Summary s = ReduceElements(view, n, options, implementation);
  if (options.scale != 1.0) Scale(options.scale, &s);
  return s;
}

Summary Reduce(const TensorView& view, const ReduceOptions& options) {
  return ReduceWith(view, options, ImplementationInUse());
}

}  // namespace tdbg
