// The statistics kernel for AVX2, FMA and F16C.  Compiled with those flags, so
// that only AccumulateAvx2 may have external linkage (reducers/moments.h).

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

struct Doubles {
  using Scalar = double;
  using V = __m256d;
  using M = __m256d;
  using Acc = __m256d;
  static constexpr std::size_t kLanes = 4;

  static V Set(double x) { return _mm256_set1_pd(x); }
  static V Load(const double* p) { return _mm256_loadu_pd(p); }
  static V Load(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static V Load(const Float16* p) {
    return _mm256_cvtps_pd(_mm_cvtph_ps(LoadHalves(p)));
  }
  static V Load(const BFloat16* p) {
    return _mm256_cvtps_pd(_mm_castsi128_ps(
        _mm_slli_epi32(_mm_cvtepu16_epi32(LoadHalves(p)), 16)));
  }
  // The first n < kLanes elements; the other lanes are zero.
  static V LoadFirst(const double* p, std::size_t n) {
    return _mm256_maskload_pd(p, _mm256_castpd_si256(FirstLanes(n)));
  }
  template <typename T>
  static V LoadFirst(const T* p, std::size_t n) {
    T first[kLanes] = {};
    for (std::size_t i = 0; i < n; ++i) first[i] = p[i];
    return Load(first);
  }
  static void Store(double* p, V v) { _mm256_storeu_pd(p, v); }

  static V Add(V a, V b) { return _mm256_add_pd(a, b); }
  static V Sub(V a, V b) { return _mm256_sub_pd(a, b); }
  static V Mul(V a, V b) { return _mm256_mul_pd(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm256_fmadd_pd(a, b, c); }
  static V Min(V a, V b) { return _mm256_min_pd(a, b); }
  static V Max(V a, V b) { return _mm256_max_pd(a, b); }
  static V Abs(V v) { return _mm256_andnot_pd(Set(-0.0), v); }

  static M IsZero(V v) { return _mm256_cmp_pd(v, Set(0), _CMP_EQ_OQ); }
  static M IsFinite(V v) {
    return _mm256_cmp_pd(Abs(v), Set(__DBL_MAX__), _CMP_LE_OQ);
  }
  static M FirstLanes(std::size_t n) {
    const __m256i lanes = _mm256_setr_epi64x(0, 1, 2, 3);
    const __m256i limit = _mm256_set1_epi64x(static_cast<long long>(n));
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(limit, lanes));
  }
  static M And(M a, M b) { return _mm256_and_pd(a, b); }
  static bool Any(M mask) { return _mm256_movemask_pd(mask) != 0; }
  static V Select(M mask, V a, V b) { return _mm256_blendv_pd(b, a, mask); }
  static V CountIf(V counts, M mask) {
    return _mm256_add_pd(counts, _mm256_and_pd(mask, Set(1)));
  }

  static Acc Zero() { return _mm256_setzero_pd(); }
  static void Accumulate(Acc* acc, V v) { *acc = _mm256_add_pd(*acc, v); }
  static double Sum(Acc acc) {
    const __m128d pair =
        _mm_add_pd(_mm256_castpd256_pd128(acc), _mm256_extractf128_pd(acc, 1));
    return _mm_cvtsd_f64(pair) + _mm_cvtsd_f64(_mm_unpackhi_pd(pair, pair));
  }

 private:
  static __m128i LoadHalves(const void* p) { return _mm_loadu_si64(p); }
};

struct Floats {
  using Scalar = float;
  using V = __m256;
  using M = __m256;
  struct Acc {
    __m256d low;
    __m256d high;
  };
  static constexpr std::size_t kLanes = 8;

  static V Set(float x) { return _mm256_set1_ps(x); }
  static V Load(const float* p) { return _mm256_loadu_ps(p); }
  static V Load(const Float16* p) { return _mm256_cvtph_ps(LoadHalves(p)); }
  static V Load(const BFloat16* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(LoadHalves(p)), 16));
  }
  static V LoadFirst(const float* p, std::size_t n) {
    return _mm256_maskload_ps(p, _mm256_castps_si256(FirstLanes(n)));
  }
  template <typename T>
  static V LoadFirst(const T* p, std::size_t n) {
    T first[kLanes] = {};
    for (std::size_t i = 0; i < n; ++i) first[i] = p[i];
    return Load(first);
  }
  static void Store(float* p, V v) { _mm256_storeu_ps(p, v); }

  static V Add(V a, V b) { return _mm256_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V Min(V a, V b) { return _mm256_min_ps(a, b); }
  static V Max(V a, V b) { return _mm256_max_ps(a, b); }
  static V Abs(V v) { return _mm256_andnot_ps(Set(-0.0F), v); }

  static M IsZero(V v) { return _mm256_cmp_ps(v, Set(0), _CMP_EQ_OQ); }
  static M FirstLanes(std::size_t n) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i limit = _mm256_set1_epi32(static_cast<int>(n));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, lanes));
  }
  static M And(M a, M b) { return _mm256_and_ps(a, b); }
  static bool Any(M mask) { return _mm256_movemask_ps(mask) != 0; }
  static V Select(M mask, V a, V b) { return _mm256_blendv_ps(b, a, mask); }
  static V CountIf(V counts, M mask) {
    return _mm256_add_ps(counts, _mm256_and_ps(mask, Set(1)));
  }

  static Acc Zero() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static void Accumulate(Acc* acc, V v) {
    const __m128 low = _mm256_castps256_ps128(v);
    const __m128 high = _mm256_extractf128_ps(v, 1);
    acc->low = _mm256_add_pd(acc->low, _mm256_cvtps_pd(low));
    acc->high = _mm256_add_pd(acc->high, _mm256_cvtps_pd(high));
  }
  static double Sum(Acc acc) {
    return Doubles::Sum(_mm256_add_pd(acc.low, acc.high));
  }

 private:
  static __m128i LoadHalves(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
};

}  // namespace
}  // namespace tdbg

#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulateAvx2(const void* data, std::size_t n, DType dtype, double factor,
                    Moments* moments) {
  AccumulateAny(data, n, dtype, factor, moments);
}

}  // namespace tdbg
