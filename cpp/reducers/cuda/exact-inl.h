// A tile, element by element in double: for what the quick
// sums cannot do, such as NaN among the elements.
//
// Three passes: what there is, the mean, and the deviations from it, the
// corrected two-pass algorithm of the definition.  The elements come from the
// caches the second time.

#pragma once

#include <cstdint>

#include "reducers/cuda/device-inl.h"
#include "reducers/cuda/elements-inl.h"
#include "reducers/cuda/sums-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// The value of a float of any type: one copy of this code is enough.
__device__ inline double ValueAt(std::uint32_t dtype, std::uint64_t address) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat64:
      return Load<double>(address);
    case DType::kFloat32:
      return static_cast<double>(Load<float>(address));
    case DType::kFloat16:
      return Float16Element::Value(Load<std::uint16_t>(address));
    case DType::kBFloat16:
      return BFloat16Element::Value(Load<std::uint16_t>(address));
    case DType::kFloat8E4M3Fn:
      return E4M3FnElement::Value(Load<std::uint8_t>(address));
    case DType::kFloat8E5M2:
      return E5M2Element::Value(Load<std::uint8_t>(address));
    case DType::kFloat8E4M3FnUz:
      return E4M3FnUzElement::Value(Load<std::uint8_t>(address));
    case DType::kFloat8E5M2FnUz:
      return E5M2FnUzElement::Value(Load<std::uint8_t>(address));
    default:
      return E8M0FnuElement::Value(Load<std::uint8_t>(address));
  }
}

// Calls use(value) with each element of the calling lane: 16 bytes of every
// kLanes times 16, and one of those that fill no 16 bytes.
template <typename Use>
__device__ __forceinline__ void ForEachOwn(const Part& part,
                                           std::uint32_t dtype,
                                           std::uint32_t size, Use use) {
  const std::uint32_t n_in_vec = 16 / size;
  const std::uint32_t n_vecs = part.n / n_in_vec;
  const std::uint32_t own_vecs = (n_vecs + kLanes - 1 - Lane()) / kLanes;
  const std::uint32_t last = n_vecs * n_in_vec + Lane();
  const std::uint32_t n = own_vecs * n_in_vec;
#pragma unroll 1
  for (std::uint32_t s = 0; s < n + (last < part.n ? 1U : 0U); ++s) {
    const std::uint32_t vec = Lane() + s / n_in_vec * kLanes;
    const std::uint32_t i = s < n ? vec * n_in_vec + s % n_in_vec : last;
    use(ValueAt(dtype, AddressOf(part, i, size)));
  }
}

// The exponent that brings squares of numbers up to `greatest` into range, as
// RangeExponent (reducers/finish.h) has it for a whole tensor.
__device__ inline int ExponentOf(double greatest) {
  if ((greatest <= 1e140 && greatest >= 1e-130) || greatest == 0) return 0;
  const int exponent = ilogb(greatest);
  return exponent > 1000 ? 1000 : exponent < -1000 ? -1000 : exponent;
}

// All lanes.
__device__ __forceinline__ void TakeExactly(const Part& part,
                                            std::uint32_t dtype,
                                            std::uint32_t size,
                                            DeviceRow* row) {
  constexpr double kInf = __builtin_huge_val();
  std::uint32_t nan = 0;
  std::uint32_t positive = 0;
  std::uint32_t negative = 0;
  std::uint32_t finite = 0;
  std::uint32_t zeros = 0;
  double min = kInf;
  double max = -kInf;
  double abs_min = kInf;
  ForEachOwn(part, dtype, size, [&](double x) {
    const double a = fabs(x);
    if (!(a < kInf)) {
      nan += x != x ? 1 : 0;
      positive += x == kInf ? 1 : 0;
      negative += x == -kInf ? 1 : 0;
      return;
    }
    ++finite;
    zeros += a == 0 ? 1 : 0;
    min = x < min ? x : min;
    max = x > max ? x : max;
    abs_min = a < abs_min ? a : abs_min;
  });
  Moments m;
  m.nan = WarpSum32(nan);
  m.positive_infinity = WarpSum32(positive);
  m.negative_infinity = WarpSum32(negative);
  m.finite = WarpSum32(finite);
  m.zero = WarpSum32(zeros);
  m.min.f64 = WarpLeast(min);
  m.max.f64 = WarpGreatest(max);
  m.abs_min = WarpLeast(abs_min);
  m.mean = 0;
  m.mean_low = 0;
  m.m2 = 0;
  m.l1 = 0;
  int exponent = 0;
  if (m.finite > 0) {
    exponent = ExponentOf(fmax(fabs(m.min.f64), fabs(m.max.f64)));
    const double factor = ldexp(1.0, -exponent);
    const auto n = static_cast<double>(m.finite);
    double sum = 0;
    double l1 = 0;
    ForEachOwn(part, dtype, size, [&](double x) {
      if (!(fabs(x) < kInf)) return;
      sum += x * factor;
      l1 += fabs(x) * factor;
    });
    const double mean = WarpSum(sum) / n;
    double squares = 0;
    double off = 0;
    ForEachOwn(part, dtype, size, [&](double x) {
      if (!(fabs(x) < kInf)) return;
      const double d = x * factor - mean;
      squares += d * d;
      off += d;
    });
    SetSums(n, mean, WarpSum(off), WarpSum(squares), WarpSum(l1), &m);
  }
  *row = {m, exponent, 1.0};
}

}  // namespace
}  // namespace tdbg::cuda
