// The sums and extremes that a thread keeps of its share of a tile, for each
// class of element types.
//
// Each class L has
//   kElements     elements of 16 bytes
//   kExtremes     class of the extremes
//   kSampled, Sample(v)  elements of 16 bytes of which the shift is made, and
//                 their sum
//   SetShift(sampled, has, n)  all lanes: chooses what is subtracted before
//                 squaring, from the sums of `n` elements of those that `has`
//   Add(v)        16 bytes of elements
//   AddOne(bits)  one element
//   Finish(n, &m) all lanes: the moments of the `n` > 0 elements of the warp;
//                 false where they must be taken exactly (exact-inl.h).
//
// The shift is the mean of the first 16 bytes of every lane, of tiles of 4 KiB
// and more of the first eight times that, so of elements of this very tile.  By
// Cauchy's inequality the sum of squares about it exceeds that about the mean
// at most by the factor 1 + n/k, k being the elements it is the mean of,
// whatever the elements are; for elements in no order it is 1 + 1/k.

#pragma once

#include <cstdint>
#include <type_traits>

#include "reducers/cuda/device-inl.h"
#include "reducers/cuda/elements-inl.h"
#include "reducers/row_math-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// As on the CPU (reducers/block-inl.h).
constexpr double kLeastSquare = 1e-28;
constexpr std::uint32_t kShortShare = 128;
constexpr double kFewElements = 64;
// The sum of squares about the shift, of that about the mean: beyond this the
// roundings of floats would count too much.
constexpr double kFarShift = 4;

// The moments but extremes and counts, from sums about a shift.
__device__ inline void SetSums(double n, double shift, double sum,
                               double squares, double l1, Moments* m) {
  const double step = sum / n;
  const double m2 = squares - sum * step;
  m->m2 = m2 < 0 ? 0 : m2;
  m->l1 = l1;
  // The exact sum of shift and step as two doubles (Knuth).
  const double mean = shift + step;
  const double moved = mean - shift;
  m->mean_low = (shift - (mean - moved)) + (step - moved);
  m->mean = mean;
}

// Sums of eight floats at most become doubles: as on the CPU, so that no more
// than a handful of roundings happen to an element.
struct FloatSums {
  double sum = 0;
  double squares = 0;
  double l1 = 0;

  template <int kCount>
  __device__ void Add(const float (&x)[kCount], float shift) {
    static_assert(kCount == 4 || kCount == 8);
    float d[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) d[i] = x[i] - shift;
    sum += static_cast<double>(Tree(d));
    float q = Squares(d);
    if constexpr (kCount == 8) q += Squares(d + 4);
    squares += static_cast<double>(q);
#pragma unroll
    for (int i = 0; i < kCount; ++i) d[i] = fabsf(x[i]);
    l1 += static_cast<double>(Tree(d));
  }
  __device__ void AddOne(float x, float shift) {
    const double d = static_cast<double>(x) - static_cast<double>(shift);
    sum += d;
    squares += d * d;
    l1 += static_cast<double>(fabsf(x));
  }

  template <int kCount>
  __device__ static float Tree(const float (&x)[kCount]) {
    const float four = (x[0] + x[1]) + (x[2] + x[3]);
    if constexpr (kCount == 8) {
      return four + ((x[4] + x[5]) + (x[6] + x[7]));
    }
    return four;
  }
  __device__ static float Squares(const float* d) {
    return fmaf(d[3], d[3], fmaf(d[2], d[2], fmaf(d[1], d[1], d[0] * d[0])));
  }

  // All lanes.  False where floats do not do: NaN, Inf, squares out of range,
  // few elements, a few that outweigh the others, or a shift far from the mean.
  __device__ bool Finish(std::uint32_t n, float shift, bool is_constant,
                         Moments* m) {
    const double s = WarpSum(sum);
    const double q = WarpSum(squares);
    const double a = WarpSum(l1);
    SetSums(n, static_cast<double>(shift), s, q, a, m);
    return n > kShortShare && q < __builtin_huge_val() &&
           q * kFewElements <= a * a &&
           (is_constant || (q >= static_cast<double>(n) * kLeastSquare &&
                            q <= kFarShift * m->m2));
  }
};

// All lanes: the mean of what `has` lanes' sums are made of, `count` elements
// each; of none 0.
template <typename F>
__device__ inline F MeanOfLanes(F sum, bool has, std::uint32_t count) {
  const std::uint32_t lanes = __popc(__ballot_sync(kAllLanes, has));
  const F all = WarpSum(has ? sum : F{0});
  return lanes == 0 ? F{0} : all / static_cast<F>(lanes * count);
}

__device__ inline void SetFloatExtremes(float min, float max, float abs_min,
                                        std::uint32_t zeros, Moments* m) {
  m->min.f64 = static_cast<double>(WarpLeast(min));
  m->max.f64 = static_cast<double>(WarpGreatest(max));
  m->abs_min = static_cast<double>(WarpLeast(abs_min));
  m->zero = WarpSum32(zeros);
}

// float32.
struct FloatLanes {
  using Element = Float32Element;
  static constexpr std::uint32_t kElements = 4;
  static constexpr ExtremeClass kExtremes = ExtremeClass::kFloat64;

  FloatSums sums;
  float min = __builtin_huge_valf();
  float max = -__builtin_huge_valf();
  float abs_min = __builtin_huge_valf();
  std::uint32_t zeros = 0;
  float shift = 0;

  __device__ static void Unpack(const Vec& v, float (&x)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = __int_as_float(static_cast<int>(v.w[i]));
  }
  static constexpr std::uint32_t kSampled = 4;
  __device__ static float Sample(const Vec& v) {
    float x[4];
    Unpack(v, x);
    return FloatSums::Tree(x);
  }
  __device__ void SetShift(float sampled, bool has, std::uint32_t n) {
    shift = MeanOfLanes(sampled, has, n);
  }
  __device__ void Add(const Vec& v) {
    float x[4];
    Unpack(v, x);
    sums.Add(x, shift);
    min = fminf(min, fminf(fminf(x[0], x[1]), fminf(x[2], x[3])));
    max = fmaxf(max, fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
    const float least =
        fminf(fminf(fabsf(x[0]), fabsf(x[1])), fminf(fabsf(x[2]), fabsf(x[3])));
    abs_min = fminf(abs_min, least);
    if (least == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) zeros += x[i] == 0 ? 1 : 0;
    }
  }
  __device__ void AddOne(std::uint32_t bits) {
    const float x = __int_as_float(static_cast<int>(bits));
    sums.AddOne(x, shift);
    min = fminf(min, x);
    max = fmaxf(max, x);
    abs_min = fminf(abs_min, fabsf(x));
    zeros += x == 0 ? 1 : 0;
  }
  __device__ bool Finish(std::uint32_t n, Moments* m) {
    SetFloatExtremes(min, max, abs_min, zeros, m);
    return sums.Finish(n, shift, m->min.f64 == m->max.f64, m);
  }
};

// float16 and bfloat16: extremes of two at a time.
template <typename E, typename Pair>
struct HalfLanes {
  using Element = E;
  static constexpr std::uint32_t kElements = 8;
  static constexpr ExtremeClass kExtremes = ExtremeClass::kFloat64;
  static constexpr std::uint32_t kSigns = 0x80008000U;

  FloatSums sums;
  std::uint32_t min = Pair::kInfinity;
  std::uint32_t max = Pair::kInfinity | kSigns;
  std::uint32_t abs_min = Pair::kInfinity;
  std::uint32_t zeros = 0;
  float shift = 0;

  __device__ static void Unpack(const Vec& v, float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = Pair::Low(v.w[i]);
      x[2 * i + 1] = Pair::High(v.w[i]);
    }
  }
  static constexpr std::uint32_t kSampled = 8;
  __device__ static float Sample(const Vec& v) {
    float x[8];
    Unpack(v, x);
    return FloatSums::Tree(x);
  }
  __device__ void SetShift(float sampled, bool has, std::uint32_t n) {
    shift = MeanOfLanes(sampled, has, n);
  }
  __device__ static std::uint32_t Least(std::uint32_t a, std::uint32_t b) {
    return MinOf<Pair>(a, b);
  }
  __device__ static std::uint32_t Greatest(std::uint32_t a, std::uint32_t b) {
    return MaxOf<Pair>(a, b);
  }
  __device__ void Add(const Vec& v) {
    float x[8];
    Unpack(v, x);
    sums.Add(x, shift);
    min = Least(min, Least(Least(v.w[0], v.w[1]), Least(v.w[2], v.w[3])));
    max = Greatest(
        max, Greatest(Greatest(v.w[0], v.w[1]), Greatest(v.w[2], v.w[3])));
    const std::uint32_t least =
        Least(Least(v.w[0] & ~kSigns, v.w[1] & ~kSigns),
              Least(v.w[2] & ~kSigns, v.w[3] & ~kSigns));
    abs_min = Least(abs_min, least);
    // Whether one of two numbers without sign is zero.
    if (((least - 0x00010001U) & kSigns) != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) CountZeros(v.w[i]);
    }
  }
  __device__ void CountZeros(std::uint32_t pair) {
    zeros += (pair & 0x7fffU) == 0 ? 1 : 0;
    zeros += (pair & 0x7fff0000U) == 0 ? 1 : 0;
  }
  __device__ void AddOne(std::uint32_t bits) {
    const std::uint32_t pair = bits | bits << 16;
    sums.AddOne(Pair::Low(pair), shift);
    min = Least(min, pair);
    max = Greatest(max, pair);
    abs_min = Least(abs_min, pair & ~kSigns);
    zeros += (bits & 0x7fffU) == 0 ? 1 : 0;
  }
  __device__ bool Finish(std::uint32_t n, Moments* m) {
    SetFloatExtremes(fminf(Pair::Low(min), Pair::High(min)),
                     fmaxf(Pair::Low(max), Pair::High(max)),
                     fminf(Pair::Low(abs_min), Pair::High(abs_min)), zeros, m);
    return sums.Finish(n, shift, m->min.f64 == m->max.f64, m);
  }
};
using Float16Lanes = HalfLanes<Float16Element, HalfPair>;
using BFloat16Lanes = HalfLanes<BFloat16Element, BFloatPair>;

// float8_e4m3fn and float8_e5m2, as float16 of the same digits.  The others
// have patterns that float16 lacks, and are always taken exactly.
struct E4M3Halves {
  using Element = E4M3FnElement;
  static constexpr double kScale = 0x1p8;
  // NaN, the greatest magnitude.
  static constexpr double kNotANumber = 480.0 / 256;
  // Of two bytes in the upper halves of two halves.
  __device__ static std::uint32_t Halves(std::uint32_t x) {
    return (x & 0x80008000U) | (x & 0x7f007f00U) >> 1;
  }
};
struct E5M2Halves {
  using Element = E5M2Element;
  static constexpr double kScale = 1;
  static constexpr double kNotANumber = __builtin_huge_val();
  __device__ static std::uint32_t Halves(std::uint32_t x) { return x; }
};

template <typename F>
struct Float8Lanes {
  using Element = typename F::Element;
  static constexpr std::uint32_t kElements = 16;
  static constexpr ExtremeClass kExtremes = ExtremeClass::kFloat64;

  Float16Lanes halves;

  // The first 8 of 16 bytes.
  __device__ static Vec Half(const Vec& v) {
    Vec half;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t w = v.w[i];
      half.w[2 * i] = F::Halves((w & 0xffU) << 8 | (w & 0xff00U) << 16);
      half.w[2 * i + 1] = F::Halves((w & 0xff0000U) >> 8 | (w & 0xff000000U));
    }
    return half;
  }
  static constexpr std::uint32_t kSampled = Float16Lanes::kSampled;
  __device__ static float Sample(const Vec& v) {
    return Float16Lanes::Sample(Half(v));
  }
  __device__ void SetShift(float sampled, bool has, std::uint32_t n) {
    halves.SetShift(sampled, has, n);
  }
  __device__ void Add(Vec v) {
    // Side by side they need too many registers.
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      halves.Add(Half(v));
      v.w[0] = v.w[2];
      v.w[1] = v.w[3];
    }
  }
  __device__ void AddOne(std::uint32_t bits) {
    halves.AddOne(F::Halves(bits << 8));
  }
  __device__ bool Finish(std::uint32_t n, Moments* m) {
    const bool ok = halves.Finish(n, m);
    const bool is_number =
        m->max.f64 < F::kNotANumber && m->min.f64 > -F::kNotANumber;
    m->min.f64 *= F::kScale;
    m->max.f64 *= F::kScale;
    m->abs_min *= F::kScale;
    m->mean *= F::kScale;
    m->mean_low *= F::kScale;
    m->m2 *= F::kScale * F::kScale;
    m->l1 *= F::kScale;
    return ok && is_number;
  }
};

}  // namespace
}  // namespace tdbg::cuda
