// Vectors of AVX2, FMA and F16C for the statistics kernel.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reducers/extremes-inl.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

struct Doubles {
  using Scalar = double;
  using V = __m256d;
  using M = __m256d;
  using Acc = __m256d;
  using Extremes = NumberExtremes<Doubles>;
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
  static V Load(const std::int32_t* p) {
    return _mm256_cvtepi32_pd(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static V Load(const std::uint32_t* p) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    // The mantissa of 2^52 + x is x.
    const __m256i bits = _mm256_or_si256(_mm256_cvtepu32_epi64(words),
                                         _mm256_castpd_si256(Set(0x1p52)));
    return Sub(_mm256_castsi256_pd(bits), Set(0x1p52));
  }
  static V Load(const std::int64_t* p) {
    return FromWords(LoadWords(p), Set(0x1p84 + 0x1p63),
                     0x1p84 + 0x1p63 + 0x1p52);
  }
  static V Load(const std::uint64_t* p) {
    return FromWords(LoadWords(p), Set(0x1p84), 0x1p84 + 0x1p52);
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

  static void Prefetch(const void* /*p*/) {}
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
  static double Least(V v) {
    const __m128d pair =
        _mm_min_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_min_sd(pair, _mm_unpackhi_pd(pair, pair)));
  }

 private:
  static __m256i LoadWords(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  // The upper halves as multiples of 2^32 in the mantissa of `high`, the lower
  // ones in that of 2^52; their exact difference from `both`, rounded once.
  static V FromWords(__m256i words, V high, double both) {
    const __m256i upper = _mm256_xor_si256(_mm256_srli_epi64(words, 32),
                                           _mm256_castpd_si256(high));
    const __m256i lower =
        _mm256_blend_epi32(words, _mm256_castpd_si256(Set(0x1p52)), 0b10101010);
    return Add(Sub(_mm256_castsi256_pd(upper), Set(both)),
               _mm256_castsi256_pd(lower));
  }
  static __m128i LoadHalves(const void* p) { return _mm_loadu_si64(p); }
};

// The bits of floats.
struct FloatBits {
  using V = __m256i;
  using M = __m256i;
  using Bits = std::uint32_t;

  static V SignBit() { return _mm256_set1_epi32(INT32_MIN); }
  static V None() { return _mm256_setzero_si256(); }
  static V All() { return _mm256_set1_epi32(-1); }
  static V MaxSigned(V a, V b) { return _mm256_max_epi32(a, b); }
  static V MaxUnsigned(V a, V b) { return _mm256_max_epu32(a, b); }
  static V MinUnsigned(V a, V b) { return _mm256_min_epu32(a, b); }
  static V Select(M mask, V a, V b) { return _mm256_blendv_epi8(b, a, mask); }
  static bool AnyZero(V v) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(v, None())) != 0;
  }
  static Bits GreatestSigned(V v) {
    return Fold(v, [](__m128i a, __m128i b) { return _mm_max_epi32(a, b); });
  }
  static Bits GreatestUnsigned(V v) {
    return Fold(v, [](__m128i a, __m128i b) { return _mm_max_epu32(a, b); });
  }
  static Bits LeastUnsigned(V v) {
    return Fold(v, [](__m128i a, __m128i b) { return _mm_min_epu32(a, b); });
  }
  static double ToDouble(Bits bits) {
    return static_cast<double>(__builtin_bit_cast(float, bits));
  }
  static V Cast(__m256 v) { return _mm256_castps_si256(v); }

 private:
  template <typename Combine>
  static Bits Fold(V v, Combine combine) {
    __m128i rest =
        combine(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    rest = combine(rest, _mm_shuffle_epi32(rest, 0b01001110));
    rest = combine(rest, _mm_shuffle_epi32(rest, 0b10110001));
    return static_cast<Bits>(_mm_cvtsi128_si32(rest));
  }
};

struct Floats {
  using Scalar = float;
  using V = __m256;
  using M = __m256;
  struct Acc {
    __m256d low;
    __m256d high;
  };
  using Extremes = FloatExtremes<FloatBits, Floats>;
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

  static void Prefetch(const void* /*p*/) {}
  static void Store(float* p, V v) { _mm256_storeu_ps(p, v); }
  // Past the caches; whoever is told so with a release store, after EndStream,
  // finds it in memory.
  static void Stream(float* p, V v) { _mm256_stream_ps(p, v); }
  static void EndStream() { _mm_sfence(); }
  // Rounded to the nearest, ties to even.
  static void Store(Float16* p, V v) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void Store(BFloat16* p, V v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)),
                         odd),
        16);
    const __m256i is_nan =
        _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i words =
        _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi32(_mm256_castsi256_si128(words),
                                      _mm256_extracti128_si256(words, 1)));
  }

  static V Add(V a, V b) { return _mm256_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm256_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  static V Abs(V v) { return _mm256_andnot_ps(Set(-0.0F), v); }
  // Has these sums computed before anything else is loaded: the compiler would
  // load all of a step first, for which there are not enough registers.
  static void Hold(V* a, V* b, V* c) {
    asm volatile(""  // NOLINT(portability-no-assembler)
                 : "+x"(*a), "+x"(*b), "+x"(*c)
                 :
                 : "memory");
  }

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

// Elements of 16 bits: integers, or the bits of floats.
struct Shorts {
  using V = __m256i;
  using M = __m256i;
  using Bits = std::uint16_t;
  static constexpr std::size_t kLanes = 16;

  static V Load(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static V Widen(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi16(Load128(p));
  }
  static V Widen(const std::int8_t* p) {
    return _mm256_cvtepi8_epi16(Load128(p));
  }
  static void Store(void* p, V v) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), v);
  }
  template <int kBits>
  static V ShiftLeft(V v) {
    return _mm256_slli_epi16(v, kBits);
  }
  static V And(V a, V b) { return _mm256_and_si256(a, b); }
  static V Or(V a, V b) { return _mm256_or_si256(a, b); }
  static V Set(std::int16_t x) { return _mm256_set1_epi16(x); }
  static V SignBit() { return Set(INT16_MIN); }
  static V None() { return _mm256_setzero_si256(); }
  static V All() { return Set(-1); }
  static V Xor(V a, V b) { return _mm256_xor_si256(a, b); }
  static V Abs(V v) { return _mm256_abs_epi16(v); }
  static V WithoutSign(V v) { return _mm256_and_si256(v, Set(INT16_MAX)); }
  static V MaxSigned(V a, V b) { return _mm256_max_epi16(a, b); }
  static V MinSigned(V a, V b) { return _mm256_min_epi16(a, b); }
  static V MaxUnsigned(V a, V b) { return _mm256_max_epu16(a, b); }
  static V MinUnsigned(V a, V b) { return _mm256_min_epu16(a, b); }
  static M FirstLanes(std::size_t n) {
    const __m256i lanes =
        _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm256_cmpgt_epi16(Set(static_cast<std::int16_t>(n)), lanes);
  }
  static V Select(M mask, V a, V b) { return _mm256_blendv_epi8(b, a, mask); }
  static bool AnyZero(V v) { return Any(_mm256_cmpeq_epi16(v, None())); }
  // Whether a lane of `s` is >= infinity, or one of `u` >= -infinity.
  static bool AnyAtLeast(V s, V u, Bits infinity) {
    const V positive = Set(static_cast<std::int16_t>(infinity));
    const V negative = Set(static_cast<std::int16_t>(infinity | 0x8000U));
    return Any(_mm256_cmpeq_epi16(MaxSigned(s, positive), s)) ||
           Any(_mm256_cmpeq_epi16(MaxUnsigned(u, negative), u));
  }
  static Bits LeastUnsigned(V v) {
    const __m128i half = _mm_min_epu16(_mm256_castsi256_si128(v),
                                       _mm256_extracti128_si256(v, 1));
    return static_cast<Bits>(_mm_cvtsi128_si32(_mm_minpos_epu16(half)));
  }
  static Bits GreatestUnsigned(V v) {
    return static_cast<Bits>(~LeastUnsigned(Xor(v, All())));
  }
  // Flipping all bits but the sign turns the order of signed integers into the
  // reverse one of unsigned integers.
  static Bits GreatestSigned(V v) {
    return LeastUnsigned(Xor(v, Set(INT16_MAX))) ^ 0x7fffU;
  }

  // Of products of integers, each the sum of two neighbours.
  using Words = __m256i;
  static Words MulAdd(V a, V b) { return _mm256_madd_epi16(a, b); }
  static Words NoWords() { return _mm256_setzero_si256(); }
  static Words Add(Words a, Words b) { return _mm256_add_epi32(a, b); }
  static std::int64_t Sum(Words v) {
    const __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v),
                                       _mm256_extracti128_si256(v, 1));
    const __m128i quarter =
        _mm_add_epi32(half, _mm_shuffle_epi32(half, 0b01001110));
    return _mm_cvtsi128_si32(
        _mm_add_epi32(quarter, _mm_shuffle_epi32(quarter, 0b10110001)));
  }
  // Unsigned ones, added up in 64 bits.
  static Words AddWide(Words sums, Words v) {
    const Words even = _mm256_and_si256(v, _mm256_set1_epi64x(0xffffffff));
    return _mm256_add_epi64(_mm256_add_epi64(sums, even),
                            _mm256_srli_epi64(v, 32));
  }
  static std::int64_t SumWide(Words sums) {
    const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums),
                                       _mm256_extracti128_si256(sums, 1));
    return _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1);
  }

  // Of words of 64 bits: the lower halves of those of both, in any order.
  static V LowerHalves(V a, V b) {
    return _mm256_castps_si256(_mm256_shuffle_ps(
        _mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0b10001000));
  }
  // Of signed words of 32 bits, as unsigned ones.
  static V MagnitudesOfWords(V v) { return _mm256_abs_epi32(v); }
  // Of unsigned words of 32 bits: sums of two squares, in 64 bits.
  static Words SquaresOfWords(V v) {
    const Words odd = _mm256_srli_epi64(v, 32);
    return _mm256_add_epi64(_mm256_mul_epu32(v, v), _mm256_mul_epu32(odd, odd));
  }

 private:
  static __m128i Load128(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static bool Any(V mask) { return _mm256_movemask_epi8(mask) != 0; }
};

// Two vectors of floats for each vector of 16-bit ones, in any order.
struct Halves {
  static Floats::V First(const Float16* p) { return Floats::Load(p); }
  static Floats::V Second(const Float16* p) { return Floats::Load(p + 8); }
  static Floats::V First(const BFloat16* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(Shorts::Load(p), 16));
  }
  static Floats::V Second(const BFloat16* p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(Shorts::Load(p), _mm256_set1_epi32(-65536)));
  }
};

}  // namespace
}  // namespace tdbg
