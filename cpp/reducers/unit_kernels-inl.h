// The kernels that count the elements of units, written once as plain loops
// that the compiler turns into vectors of the instruction set it compiles for.
//
// In an anonymous namespace: see reducers/moments.h.  Thread safety: pure
// functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/unit_kernels.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Bounds as what elements are compared with: float where elements convert to it
// exactly, else double.
template <typename C>
struct Bounds {
  C low;
  C high;
};

// The least float >= bound.
inline float FloatAtLeast(double bound) {
  constexpr float kMax = __FLT_MAX__;
  constexpr float kInf = __builtin_huge_valf();
  if (bound > static_cast<double>(kMax)) return kInf;
  if (bound < -static_cast<double>(kMax)) {
    return bound < -__DBL_MAX__ ? -kInf : -kMax;
  }
  const auto nearest = static_cast<float>(bound);
  return nearest < bound ? __builtin_nextafterf(nearest, kInf) : nearest;
}

template <typename C>
inline Bounds<C> BoundsOf(UnitRange range) {
  if constexpr (sizeof(C) == sizeof(double)) return {range.low, range.high};
  return {static_cast<C>(FloatAtLeast(range.low)),
          static_cast<C>(-FloatAtLeast(-range.high))};
}

// True for NaN, too.
template <typename C>
inline std::uint32_t IsOutOfRange(C x, Bounds<C> bounds) {
  const std::uint32_t too_small = x >= bounds.low ? 0U : 1U;
  const std::uint32_t too_large = x <= bounds.high ? 0U : 1U;
  return too_small | too_large;
}

template <typename C>
inline std::uint32_t IsActive(C x) {
  return x > 0 ? 1U : 0U;
}

template <typename C, typename T>
inline C As(T x) {
  if constexpr (requires { ToFloat(x); })
    return static_cast<C>(ToFloat(x));
  else
    return static_cast<C>(x);
}

template <typename C, typename T>
inline void CountRunsOf(const void* data, std::size_t n, std::ptrdiff_t stride,
                        std::size_t n_units, UnitRange range,
                        UnitCounts* units) {
  const Bounds<C> bounds = BoundsOf<C>(range);
  for (std::size_t u = 0; u < n_units; ++u) {
    const auto* p =
        reinterpret_cast<const T*>(static_cast<const char*>(data) +
                                   stride * static_cast<std::ptrdiff_t>(u));
    std::uint32_t active = 0;
    std::uint32_t out_of_range = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const C x = As<C>(p[i]);
      active += IsActive(x);
      out_of_range += IsOutOfRange(x, bounds);
    }
    units[u].active += active;
    units[u].out_of_range += out_of_range;
  }
}

// Rows that are read side by side: counters are touched once for all of them.
constexpr std::size_t kRowsInStep = 8;
// Columns that are counted between two looks ahead.
constexpr std::size_t kColumnsInStep = 128;
constexpr std::size_t kLine = 64;

template <std::size_t kRows, typename C, typename T>
inline void CountRows(const T* const* rows, std::size_t n_columns,
                      Bounds<C> bounds, std::uint32_t* __restrict active,
                      std::uint32_t* __restrict out_of_range) {
  for (std::size_t i = 0; i < n_columns; ++i) {
    std::uint32_t n_active = 0;
    std::uint32_t n_out_of_range = 0;
    for (std::size_t r = 0; r < kRows; ++r) {
      const C x = As<C>(rows[r][i]);
      n_active += IsActive(x);
      n_out_of_range += IsOutOfRange(x, bounds);
    }
    active[i] += n_active;
    out_of_range[i] += n_out_of_range;
  }
}

template <typename C, typename T>
inline void CountColumnsOf(const void* const* rows, std::size_t n_rows,
                           std::size_t n_columns, UnitRange range,
                           std::uint32_t* active, std::uint32_t* out_of_range) {
  const Bounds<C> bounds = BoundsOf<C>(range);
  const T* p[kRowsInStep];
  std::size_t r = 0;
  for (; r + kRowsInStep <= n_rows; r += kRowsInStep) {
    // Memory fetches the rows of the next step meanwhile: so many streams at
    // once it does not foresee.
    const bool is_last = r + 2 * kRowsInStep > n_rows;
    const void* const* next = rows + r + (is_last ? 0 : kRowsInStep);
    for (std::size_t first = 0; first < n_columns; first += kColumnsInStep) {
      const std::size_t left = n_columns - first;
      const std::size_t n = left < kColumnsInStep ? left : kColumnsInStep;
      for (std::size_t k = 0; k < kRowsInStep; ++k) {
        p[k] = static_cast<const T*>(rows[r + k]) + first;
        const auto* ahead =
            static_cast<const char*>(next[k]) + first * sizeof(T);
        for (std::size_t at = 0; at < n * sizeof(T); at += kLine) {
          __builtin_prefetch(ahead + at, 0, 2);
        }
      }
      CountRows<kRowsInStep>(p, n, bounds, active + first,
                             out_of_range + first);
    }
  }
  for (; r < n_rows; ++r) {
    p[0] = static_cast<const T*>(rows[r]);
    CountRows<1>(p, n_columns, bounds, active, out_of_range);
  }
}

// Calls use.template operator()<C, T>() for elements T that are compared as C.
template <typename Use>
inline void WithTypes(DType dtype, Use use) {
  switch (dtype) {
    case DType::kFloat32:
      return use.template operator()<float, float>();
    case DType::kFloat16:
      return use.template operator()<float, Float16>();
    case DType::kBFloat16:
      return use.template operator()<float, BFloat16>();
    case DType::kFloat64:
      return use.template operator()<double, double>();
    case DType::kInt16:
      return use.template operator()<float, std::int16_t>();
    case DType::kUInt16:
      return use.template operator()<float, std::uint16_t>();
    case DType::kInt32:
      return use.template operator()<double, std::int32_t>();
    case DType::kUInt32:
      return use.template operator()<double, std::uint32_t>();
    case DType::kInt64:
      return use.template operator()<double, std::int64_t>();
    case DType::kUInt64:
      return use.template operator()<double, std::uint64_t>();
    default:  // Those of 8 bits are counted by value: unit_counts.cc.
      return;
  }
}

inline void CountRunsAny(const void* data, std::size_t n, std::ptrdiff_t stride,
                         std::size_t n_units, DType dtype, UnitRange range,
                         UnitCounts* units) {
  WithTypes(dtype, [&]<typename C, typename T> {
    CountRunsOf<C, T>(data, n, stride, n_units, range, units);
  });
}

inline void CountColumnsAny(const void* const* rows, std::size_t n_rows,
                            std::size_t n_columns, DType dtype, UnitRange range,
                            std::uint32_t* active,
                            std::uint32_t* out_of_range) {
  WithTypes(dtype, [&]<typename C, typename T> {
    CountColumnsOf<C, T>(rows, n_rows, n_columns, range, active, out_of_range);
  });
}

}  // namespace
}  // namespace tdbg
