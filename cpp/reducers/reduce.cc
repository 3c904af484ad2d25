#include "reducers/reduce.h"

#include <cmath>
#include <cstddef>

#include "reducers/element_walk.h"
#include "reducers/finish.h"
#include "reducers/flush_to_zero.h"
#include "reducers/implementation.h"
#include "reducers/moments.h"
#include "reducers/row_math-inl.h"
#include "reducers/segments.h"

namespace tdbg {
namespace {

[[gnu::noinline]] void AccumulateAny(const TensorView& view, std::size_t n,
                                     Pass pass, unsigned n_threads,
                                     const Implementation& implementation,
                                     Moments* m) {
  const auto contiguous = [&](const void* data) {
    AccumulateSegments(static_cast<const std::byte*>(data), n, view.dtype, pass,
                       n_threads, implementation, m);
  };
  if (view.strides.empty()) return contiguous(view.data);
  const ElementWalk walk(view);
  if (walk.is_contiguous(view.item_size)) return contiguous(walk.first());
  Clear(ExtremeClassOf(view.dtype), m);
  ForEachRun(walk, view.item_size, [&](const std::byte* data, std::size_t k) {
    implementation.accumulate(data, k, view.dtype, pass, m);
  });
}

inline void Accumulate(const TensorView& view, std::size_t n, Pass pass,
                       unsigned n_threads, const Implementation& implementation,
                       Moments* m) {
  // Most tensors: the short way.
  if (view.strides.empty() && n <= SegmentElements(view.item_size) &&
      IsAligned(view.data, view.item_size)) {
    Clear(ExtremeClassOf(view.dtype), m);
    return implementation.accumulate(view.data, n, view.dtype, pass, m);
  }
  AccumulateAny(view, n, pass, n_threads, implementation, m);
}

Summary ReduceElements(const TensorView& view, std::size_t n,
                       const ReduceOptions& options,
                       const Implementation& implementation) {
  Moments m;
  Accumulate(view, n, {.precise = options.precise}, options.n_threads,
             implementation, &m);
  int exponent = 0;
  if (view.dtype == DType::kFloat64 && m.finite > 0) {
    exponent = RangeExponent(m.min.f64, m.max.f64);
    if (exponent != 0) {
      Moments in_range;
      Accumulate(view, n, {.factor = std::ldexp(1.0, -exponent)},
                 options.n_threads, implementation, &in_range);
      m.mean = in_range.mean;
      m.m2 = in_range.m2;
      m.l1 = in_range.l1;
    }
  }
  return Finish(m, {.count = n,
                    .dtype = view.dtype,
                    .exponent = exponent,
                    .scale = options.scale});
}

}  // namespace

Summary ReduceWith(const TensorView& view, const ReduceOptions& options,
                   const Implementation& implementation) {
  const std::size_t n = view.count();
  if (n == 0) return Summary::Empty(ExtremeClassOf(view.dtype));
  const FlushToZeroOff exact;
  return ReduceElements(view, n, options, implementation);
}

Summary Reduce(const TensorView& view, const ReduceOptions& options) {
  return ReduceWith(view, options, ImplementationInUse());
}

}  // namespace tdbg
