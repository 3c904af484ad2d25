#include "reducers/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "reducers/byte_values.h"
#include "reducers/element_walk.h"
#include "reducers/finish.h"
#include "reducers/flush_to_zero.h"
#include "reducers/implementation.h"
#include "reducers/moments.h"
#include "reducers/row_math-inl.h"
#include "reducers/segments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

[[gnu::noinline]] void AccumulateAny(const TensorView& view, std::size_t n,
                                     Pass pass, const ReduceOptions& options,
                                     const Implementation& implementation,
                                     Moments* m) {
  const auto contiguous = [&](const void* data) {
    AccumulateSegments(static_cast<const std::byte*>(data), n, view.dtype, pass,
                       options.n_threads, implementation, m, options.beside);
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
                       const ReduceOptions& options,
                       const Implementation& implementation, Moments* m) {
  // Most tensors: the short way.
  const bool is_alone =
      options.beside.minus == nullptr && options.beside.copy == nullptr;
  if (is_alone && view.strides.empty() &&
      n <= SegmentElements(view.item_size) &&
      IsAligned(view.data, view.item_size)) {
    Clear(ExtremeClassOf(view.dtype), m);
    return implementation.accumulate(view.data, n, view.dtype, pass, m);
  }
  AccumulateAny(view, n, pass, options, implementation, m);
}

// The elements as double, times `scale`.
void Multiply(const std::byte* data, std::size_t n, DType dtype, double scale,
              double* out) {
  const auto widen = [&]<typename T>(T x) {
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(&x, data + i * sizeof(T), sizeof(T));
      Widen(&x, 1, scale, out + i);
    }
  };
  switch (dtype) {
    case DType::kFloat64:
      return widen(double());
    case DType::kFloat32:
      return widen(float());
    case DType::kFloat16:
      return widen(Float16());
    case DType::kBFloat16:
      return widen(BFloat16());
    default:
      break;
  }
  const auto& values = ByteValues(dtype);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = values[std::to_integer<std::size_t>(data[i])] * scale;
  }
}

// As Accumulate, of the products with `scale`, as float64 elements.
void AccumulateProducts(const TensorView& view, double scale, Pass pass,
                        const Implementation& implementation, Moments* m) {
  constexpr std::size_t kBlock = 2048;
  std::vector<double> products(kBlock);
  Clear(ExtremeClass::kFloat64, m);
  ForEachRun(ElementWalk(view), view.item_size,
             [&](const std::byte* data, std::size_t n) {
               while (n > 0) {
                 const std::size_t k = std::min(n, kBlock);
                 Multiply(data, k, view.dtype, scale, products.data());
                 implementation.accumulate(products.data(), k, DType::kFloat64,
                                           pass, m);
                 data += k * view.item_size;
                 n -= k;
               }
             });
}

// Adds the moments of elements that are out of range, of a second pass.
template <typename Again>
int BringIntoRange(Moments* m, Again again) {
  if (m->finite == 0) return 0;
  const int exponent = RangeExponent(m->min.f64, m->max.f64);
  if (exponent == 0) return 0;
  Moments in_range;
  again(Pass{.factor = std::ldexp(1.0, -exponent)}, &in_range);
  m->mean = in_range.mean;
  m->m2 = in_range.m2;
  m->l1 = in_range.l1;
  return exponent;
}

// Multiplies each element first.
[[gnu::noinline]] Summary ReduceProducts(const TensorView& view, std::size_t n,
                                         double scale,
                                         const Implementation& implementation) {
  Moments m;
  AccumulateProducts(view, scale, {}, implementation, &m);
  const int exponent = BringIntoRange(&m, [&](Pass pass, Moments* in_range) {
    AccumulateProducts(view, scale, pass, implementation, in_range);
  });
  return Finish(m,
                {.count = n, .dtype = DType::kFloat64, .exponent = exponent});
}

Summary ReduceElements(const TensorView& view, std::size_t n,
                       const ReduceOptions& options,
                       const Implementation& implementation) {
  Moments m;
  Accumulate(view, n, {.precise = options.precise}, options, implementation,
             &m);
  if (options.scale != 1.0 &&
      !FollowsFromElements(m, view.dtype, options.scale)) {
    return ReduceProducts(view, n, options.scale, implementation);
  }
  int exponent = 0;
  if (view.dtype == DType::kFloat64) {
    exponent = BringIntoRange(&m, [&](Pass pass, Moments* in_range) {
      ReduceOptions again = options;
      again.beside.copy = nullptr;  // It is made.
      Accumulate(view, n, pass, again, implementation, in_range);
    });
  }
  return Finish(m, {.count = n,
                    .dtype = view.dtype,
                    .exponent = exponent,
                    .scale = options.scale});
}

}  // namespace

bool IsDense(const TensorView& view, const std::byte** first) {
  *first = static_cast<const std::byte*>(view.data);
  if (view.strides.empty() || view.count() == 0) return true;
  const ElementWalk walk(view);
  *first = walk.first();
  return walk.is_contiguous(view.item_size);
}

void SubtractInto(const TensorView& view, std::byte* minus) {
  TDBG_DCHECK(HasDifference(view.dtype));
  const std::byte* first = nullptr;
  const bool is_dense = IsDense(view, &first);
  TDBG_DCHECK(is_dense);
  if (!is_dense) return;
  ImplementationInUse().subtract(first, minus, view.count(), view.dtype, minus);
}

Summary ReduceWith(const TensorView& view, const ReduceOptions& options,
                   const Implementation& implementation) {
  TDBG_DCHECK(HasStatistics(view.dtype));
  TDBG_DCHECK(view.device == DeviceKind::kCpu);
  TDBG_DCHECK(view.shape.size() <= ElementWalk::kMaxDimensions);
  TDBG_DCHECK(std::isfinite(options.scale) && options.scale != 0);
  TDBG_DCHECK(implementation.supported());
  TDBG_DCHECK(options.beside.minus == nullptr ||
              (HasDifference(view.dtype) && options.scale == 1));
  const std::size_t n = view.count();
  if (n == 0) return Summary::Empty(ExtremeClassOf(view.dtype));
  const FlushToZeroOff exact;
  return ReduceElements(view, n, options, implementation);
}

Summary Reduce(const TensorView& view, const ReduceOptions& options) {
  return ReduceWith(view, options, ImplementationInUse());
}

}  // namespace tdbg
