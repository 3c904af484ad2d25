// The statistics kernel for AVX-512 (F, BW, VL, DQ).  Compiled with those
// flags, so that only AccumulateAvx512 may have external linkage
// (reducers/moments.h).

// GCC's intrinsics begin with vectors that are undefined on purpose, and GCC
// warns of them (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

struct Doubles {
  using Scalar = double;
  using V = __m512d;
  using M = __mmask8;
  using Acc = __m512d;
  static constexpr std::size_t kLanes = 8;

  static V Set(double x) { return _mm512_set1_pd(x); }
  static V Load(const double* p) { return _mm512_loadu_pd(p); }
  static V Load(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  static V Load(const Float16* p) {
    return FromFloat16(_mm_loadu_si128(As128(p)));
  }
  static V Load(const BFloat16* p) {
    return FromBFloat16(_mm_loadu_si128(As128(p)));
  }
  // The first n < kLanes elements; the other lanes are zero.
  static V LoadFirst(const double* p, std::size_t n) {
    return _mm512_maskz_loadu_pd(FirstLanes(n), p);
  }
  static V LoadFirst(const float* p, std::size_t n) {
    return _mm512_cvtps_pd(_mm256_maskz_loadu_ps(FirstLanes(n), p));
  }
  static V LoadFirst(const Float16* p, std::size_t n) {
    return FromFloat16(_mm_maskz_loadu_epi16(FirstLanes(n), p));
  }
  static V LoadFirst(const BFloat16* p, std::size_t n) {
    return FromBFloat16(_mm_maskz_loadu_epi16(FirstLanes(n), p));
  }
  static void Store(double* p, V v) { _mm512_storeu_pd(p, v); }

  static V Add(V a, V b) { return _mm512_add_pd(a, b); }
  static V Sub(V a, V b) { return _mm512_sub_pd(a, b); }
  static V Mul(V a, V b) { return _mm512_mul_pd(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm512_fmadd_pd(a, b, c); }
  static V Min(V a, V b) { return _mm512_min_pd(a, b); }
  static V Max(V a, V b) { return _mm512_max_pd(a, b); }
  static V Abs(V v) { return _mm512_abs_pd(v); }

  static M IsZero(V v) { return _mm512_cmp_pd_mask(v, Set(0), _CMP_EQ_OQ); }
  static M IsFinite(V v) {
    return _mm512_cmp_pd_mask(Abs(v), Set(__DBL_MAX__), _CMP_LE_OQ);
  }
  static M FirstLanes(std::size_t n) { return static_cast<M>((1U << n) - 1U); }
  static M And(M a, M b) { return static_cast<M>(a & b); }
  static bool Any(M mask) { return mask != 0; }
  static V Select(M mask, V a, V b) { return _mm512_mask_blend_pd(mask, b, a); }
  static V CountIf(V counts, M mask) {
    return _mm512_mask_add_pd(counts, mask, counts, Set(1));
  }

  static Acc Zero() { return _mm512_setzero_pd(); }
  static void Accumulate(Acc* acc, V v) { *acc = _mm512_add_pd(*acc, v); }
  static double Sum(Acc acc) { return _mm512_reduce_add_pd(acc); }

 private:
  static const __m128i* As128(const void* p) {
    return static_cast<const __m128i*>(p);
  }
  static V FromFloat16(__m128i halves) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(halves));
  }
  static V FromBFloat16(__m128i halves) {
    return _mm512_cvtps_pd(_mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
  }
};

struct Floats {
  using Scalar = float;
  using V = __m512;
  using M = __mmask16;
  struct Acc {
    __m512d low;
    __m512d high;
  };
  static constexpr std::size_t kLanes = 16;

  static V Set(float x) { return _mm512_set1_ps(x); }
  static V Load(const float* p) { return _mm512_loadu_ps(p); }
  static V Load(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(As256(p)));
  }
  static V Load(const BFloat16* p) {
    return FromHalves(_mm256_loadu_si256(As256(p)));
  }
  static V LoadFirst(const float* p, std::size_t n) {
    return _mm512_maskz_loadu_ps(FirstLanes(n), p);
  }
  static V LoadFirst(const Float16* p, std::size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
  }
  static V LoadFirst(const BFloat16* p, std::size_t n) {
    return FromHalves(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
  }
  static void Store(float* p, V v) { _mm512_storeu_ps(p, v); }

  static V Add(V a, V b) { return _mm512_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V Min(V a, V b) { return _mm512_min_ps(a, b); }
  static V Max(V a, V b) { return _mm512_max_ps(a, b); }
  static V Abs(V v) { return _mm512_abs_ps(v); }

  static M IsZero(V v) { return _mm512_cmp_ps_mask(v, Set(0), _CMP_EQ_OQ); }
  static M FirstLanes(std::size_t n) { return static_cast<M>((1U << n) - 1U); }
  static M And(M a, M b) { return static_cast<M>(a & b); }
  static bool Any(M mask) { return mask != 0; }
  static V Select(M mask, V a, V b) { return _mm512_mask_blend_ps(mask, b, a); }
  static V CountIf(V counts, M mask) {
    return _mm512_mask_add_ps(counts, mask, counts, Set(1));
  }

  static Acc Zero() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static void Accumulate(Acc* acc, V v) {
    const __m256 low = _mm512_castps512_ps256(v);
    const __m256 high = _mm512_extractf32x8_ps(v, 1);
    acc->low = _mm512_add_pd(acc->low, _mm512_cvtps_pd(low));
    acc->high = _mm512_add_pd(acc->high, _mm512_cvtps_pd(high));
  }
  static double Sum(Acc acc) {
    return Doubles::Sum(_mm512_add_pd(acc.low, acc.high));
  }

 private:
  static const __m256i* As256(const void* p) {
    return static_cast<const __m256i*>(p);
  }
  static V FromHalves(__m256i halves) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace
}  // namespace tdbg

#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulateAvx512(const void* data, std::size_t n, DType dtype,
                      double factor, Moments* moments) {
  AccumulateAny(data, n, dtype, factor, moments);
}

}  // namespace tdbg
