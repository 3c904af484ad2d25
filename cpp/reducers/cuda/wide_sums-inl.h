// The sums of float64 and of integers: see sums-inl.h.

#pragma once

#include <cstdint>
#include <type_traits>

#include "reducers/cuda/sums-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

template <typename T>
__device__ inline T Lowest() {
  return std::is_signed_v<T> ? static_cast<T>(T{1} << (8 * sizeof(T) - 1))
                             : T{0};
}
template <typename T>
__device__ inline T Highest() {
  return static_cast<T>(~Lowest<T>());
}

// All lanes.
template <typename T>
__device__ inline void SetIntegerExtremes(T min, T max, Moments* m) {
  using Wide =
      std::conditional_t<std::is_signed_v<T>, long long, unsigned long long>;
  const Wide least = WarpLeast(static_cast<Wide>(min));
  const Wide greatest = WarpGreatest(static_cast<Wide>(max));
  m->min.u64 = static_cast<std::uint64_t>(least);
  m->max.u64 = static_cast<std::uint64_t>(greatest);
}

// float64, and integers of 32 and 64 bits: their values as doubles.
template <typename E>
struct DoubleLanes {
  using Element = E;
  using Bits = typename E::Bits;
  static constexpr std::uint32_t kElements = 16 / sizeof(Bits);
  static constexpr bool kIsFloat = std::is_same_v<E, Float64Element>;

  using T = typename E::Number;
  static constexpr ExtremeClass kExtremes = kIsFloat ? ExtremeClass::kFloat64
                                            : std::is_signed_v<T>
                                                ? ExtremeClass::kInt64
                                                : ExtremeClass::kUInt64;

  double sum = 0;
  double squares = 0;
  double l1 = 0;
  T min = Most();
  T max = Least();
  double abs_min = __builtin_huge_val();
  std::uint32_t zeros = 0;
  double shift = 0;

  __device__ static T Most() {
    if constexpr (kIsFloat) {
      return __builtin_huge_val();
    } else {
      return Highest<T>();
    }
  }
  __device__ static T Least() {
    if constexpr (kIsFloat) {
      return -__builtin_huge_val();
    } else {
      return Lowest<T>();
    }
  }
  __device__ static Bits BitsAt(const Vec& v, int i) {
    if constexpr (sizeof(Bits) == 8) {
      return static_cast<std::uint64_t>(v.w[2 * i + 1]) << 32 | v.w[2 * i];
    } else {
      return v.w[i];
    }
  }
  static constexpr std::uint32_t kSampled = kElements;
  __device__ static double Sample(const Vec& v) {
    double x = 0;
#pragma unroll
    for (int i = 0; i < static_cast<int>(kElements); ++i) {
      x += static_cast<double>(E::ToNumber(BitsAt(v, i)));
    }
    return x;
  }
  __device__ void SetShift(double sampled, bool has, std::uint32_t n) {
    shift = MeanOfLanes(sampled, has, n);
  }
  __device__ void Add(const Vec& v) {
#pragma unroll
    for (int i = 0; i < static_cast<int>(kElements); ++i) AddOne(BitsAt(v, i));
  }
  __device__ void AddOne(Bits bits) {
    const T number = E::ToNumber(bits);
    const auto x = static_cast<double>(number);
    const double d = x - shift;
    const double a = fabs(x);
    sum += d;
    squares = fma(d, d, squares);
    l1 += a;
    min = number < min ? number : min;
    max = number > max ? number : max;
    abs_min = a < abs_min ? a : abs_min;
    zeros += x == 0 ? 1 : 0;
  }
  __device__ bool Finish(std::uint32_t n, Moments* m) {
    if constexpr (kIsFloat) {
      m->min.f64 = WarpLeast(min);
      m->max.f64 = WarpGreatest(max);
    } else {
      SetIntegerExtremes(min, max, m);
    }
    m->abs_min = WarpLeast(abs_min);
    m->zero = WarpSum32(zeros);
    const double q = WarpSum(squares);
    SetSums(n, shift, WarpSum(sum), q, WarpSum(l1), m);
    if constexpr (kIsFloat) {
      // Squares neither overflow nor lose digits by underflow.
      const double greatest = fmax(fabs(m->min.f64), fabs(m->max.f64));
      return q < __builtin_huge_val() && greatest <= 1e140 &&
             (greatest >= 1e-130 || greatest == 0);
    }
    return true;
  }
};

// Integers of 8 and 16 bits and bool: sums as integers, without any rounding.
template <typename E>
struct ShortLanes {
  using Element = E;
  using T = typename E::Number;
  using Bits = typename E::Bits;
  static constexpr std::uint32_t kElements = 16 / sizeof(Bits);
  static constexpr ExtremeClass kExtremes =
      std::is_signed_v<T> ? ExtremeClass::kInt64 : ExtremeClass::kUInt64;

  // A thread has at most 2 KiB of a tile: sums fit.
  std::int32_t sum = 0;
  std::uint32_t l1 = 0;
  unsigned long long squares = 0;
  std::int32_t min = INT32_MAX;
  std::int32_t max = INT32_MIN;
  std::uint32_t abs_min = 0xffffffffU;
  std::uint32_t zeros = 0;

  static constexpr std::uint32_t kSampled = 1;
  __device__ static float Sample(const Vec& /*v*/) { return 0; }
  __device__ void SetShift(float /*sampled*/, bool /*has*/,
                           std::uint32_t /*n*/) {}
  __device__ void Add(const Vec& v) {
    constexpr int kPerWord = 4 / sizeof(Bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int k = 0; k < kPerWord; ++k) {
        AddOne(static_cast<Bits>(v.w[i] >> (8 * sizeof(Bits) * k)));
      }
    }
  }
  __device__ void AddOne(Bits bits) {
    const std::int32_t x = E::ToNumber(bits);
    const auto a = static_cast<std::uint32_t>(x < 0 ? -x : x);
    sum += x;
    l1 += a;
    squares += static_cast<unsigned long long>(a) * a;
    min = x < min ? x : min;
    max = x > max ? x : max;
    abs_min = a < abs_min ? a : abs_min;
    zeros += a == 0 ? 1 : 0;
  }
  __device__ bool Finish(std::uint32_t n, Moments* m) {
    SetIntegerExtremes(min, max, m);
    m->abs_min = static_cast<double>(WarpLeast32(abs_min));
    m->zero = WarpSum32(zeros);
    // A tile has at most 32768 elements of 16 bits, twice as many of 8: the
    // products are below 2^63.
    const long long s = WarpSum(static_cast<long long>(sum));
    const auto q = static_cast<long long>(WarpSum(squares));
    const auto count = static_cast<double>(n);
    m->m2 = static_cast<double>(static_cast<long long>(n) * q - s * s) / count;
    m->l1 = static_cast<double>(WarpSum(static_cast<long long>(l1)));
    SetMean(static_cast<double>(s), count, m);
    return true;
  }
  // The quotient as two doubles.
  __device__ static void SetMean(double s, double n, Moments* m) {
    m->mean = s / n;
    m->mean_low = fma(-m->mean, n, s) / n;
  }
};

}  // namespace
}  // namespace tdbg::cuda
