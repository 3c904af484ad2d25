// How the moments of parts become those of the whole: one source for the host
// and for CUDA kernels (reducers/cuda).
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "reducers/moments.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// The moments of no element.
TDBG_HOST_DEVICE inline void Clear(ExtremeClass extremes, Moments* m) {
  *m = {};
  m->abs_min = __builtin_huge_val();
  switch (extremes) {
    case ExtremeClass::kFloat64:
      m->min.f64 = __builtin_huge_val();
      m->max.f64 = -__builtin_huge_val();
      break;
    case ExtremeClass::kInt64:
      m->min.i64 = INT64_MAX;
      m->max.i64 = INT64_MIN;
      break;
    case ExtremeClass::kUInt64:
      m->min.u64 = UINT64_MAX;
      m->max.u64 = 0;
      break;
  }
}

template <typename T>
TDBG_HOST_DEVICE inline void KeepLeast(T x, T* least) {
  if (x < *least) *least = x;
}
template <typename T>
TDBG_HOST_DEVICE inline void KeepGreatest(T x, T* greatest) {
  if (x > *greatest) *greatest = x;
}

// Makes `*m` the moments of both sets of elements.
TDBG_HOST_DEVICE inline void MergeMoments(const Moments& part,
                                          ExtremeClass extremes, Moments* m) {
  m->nan += part.nan;
  m->positive_infinity += part.positive_infinity;
  m->negative_infinity += part.negative_infinity;
  m->zero += part.zero;
  if (part.finite == 0) return;
  const auto n_before = static_cast<double>(m->finite);
  const auto n_part = static_cast<double>(part.finite);
  const double weight = n_part / (n_before + n_part);
  const double delta = (part.mean - m->mean) + (part.mean_low - m->mean_low);
  m->m2 += part.m2 + delta * delta * (n_before * weight);
  // The exact sum of mean and step as two doubles (Dekker).  Of a first part,
  // exactly its mean.
  if (m->finite == 0) {
    m->mean = part.mean;
    m->mean_low = part.mean_low;
  } else {
    const double step = m->mean_low + delta * weight;
    const double mean = m->mean + step;
    const double moved = mean - m->mean;
    m->mean_low = (m->mean - (mean - moved)) + (step - moved);
    m->mean = mean;
  }
  m->finite += part.finite;
  m->l1 += part.l1;
  KeepLeast(part.abs_min, &m->abs_min);
  switch (extremes) {
    case ExtremeClass::kFloat64:
      KeepLeast(part.min.f64, &m->min.f64);
      KeepGreatest(part.max.f64, &m->max.f64);
      break;
    case ExtremeClass::kInt64:
      KeepLeast(part.min.i64, &m->min.i64);
      KeepGreatest(part.max.i64, &m->max.i64);
      break;
    case ExtremeClass::kUInt64:
      KeepLeast(part.min.u64, &m->min.u64);
      KeepGreatest(part.max.u64, &m->max.u64);
      break;
  }
}

}  // namespace
}  // namespace tdbg
