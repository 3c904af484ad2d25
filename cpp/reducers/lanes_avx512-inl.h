// Vectors of AVX-512 (F, BW, VL, DQ) for the statistics kernel.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

// GCC's intrinsics begin with vectors that are undefined on purpose, and GCC
// warns of them (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reducers/extremes-inl.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

// More than a page: the prefetcher of the processor stops at pages, and the
// processor itself at the end of a block, where sums are folded.
constexpr std::ptrdiff_t kAhead = 5120;

struct Doubles {
  using Scalar = double;
  using V = __m512d;
  using M = __mmask8;
  using Acc = __m512d;
  using Extremes = NumberExtremes<Doubles>;
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
  static V Load(const std::int32_t* p) {
    return _mm512_cvtepi32_pd(_mm256_loadu_si256(As256(p)));
  }
  static V Load(const std::uint32_t* p) {
    return _mm512_cvtepu32_pd(_mm256_loadu_si256(As256(p)));
  }
  static V Load(const std::int64_t* p) {
    return _mm512_cvtepi64_pd(_mm512_loadu_si512(p));
  }
  static V Load(const std::uint64_t* p) {
    return _mm512_cvtepu64_pd(_mm512_loadu_si512(p));
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
  static V LoadFirst(const std::int32_t* p, std::size_t n) {
    return _mm512_cvtepi32_pd(_mm256_maskz_loadu_epi32(FirstLanes(n), p));
  }
  static V LoadFirst(const std::uint32_t* p, std::size_t n) {
    return _mm512_cvtepu32_pd(_mm256_maskz_loadu_epi32(FirstLanes(n), p));
  }
  static V LoadFirst(const std::int64_t* p, std::size_t n) {
    return _mm512_cvtepi64_pd(_mm512_maskz_loadu_epi64(FirstLanes(n), p));
  }
  static V LoadFirst(const std::uint64_t* p, std::size_t n) {
    return _mm512_cvtepu64_pd(_mm512_maskz_loadu_epi64(FirstLanes(n), p));
  }
  // What is read kAhead bytes further on, which may be beyond the end.
  static void Prefetch(const void* p) {
    __builtin_prefetch(static_cast<const char*>(p) + kAhead);
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
  static double Least(V v) { return _mm512_reduce_min_pd(v); }

 private:
  static const __m128i* As128(const void* p) {
    return static_cast<const __m128i*>(p);
  }
  static const __m256i* As256(const void* p) {
    return static_cast<const __m256i*>(p);
  }
  static V FromFloat16(__m128i halves) {
    return _mm512_cvtps_pd(_mm256_cvtph_ps(halves));
  }
  static V FromBFloat16(__m128i halves) {
    return _mm512_cvtps_pd(_mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
  }
};

// The bits of floats.
struct FloatBits {
  using V = __m512i;
  using M = __mmask16;
  using Bits = std::uint32_t;

  static V SignBit() { return _mm512_set1_epi32(INT32_MIN); }
  static V None() { return _mm512_setzero_si512(); }
  static V All() { return _mm512_set1_epi32(-1); }
  static V MaxSigned(V a, V b) { return _mm512_max_epi32(a, b); }
  static V MaxUnsigned(V a, V b) { return _mm512_max_epu32(a, b); }
  static V MinUnsigned(V a, V b) { return _mm512_min_epu32(a, b); }
  static V Select(M mask, V a, V b) {
    return _mm512_mask_blend_epi32(mask, b, a);
  }
  static bool AnyZero(V v) { return _mm512_testn_epi32_mask(v, v) != 0; }
  static Bits GreatestSigned(V v) {
    return static_cast<Bits>(_mm512_reduce_max_epi32(v));
  }
  static Bits GreatestUnsigned(V v) { return _mm512_reduce_max_epu32(v); }
  static Bits LeastUnsigned(V v) { return _mm512_reduce_min_epu32(v); }
  static double ToDouble(Bits bits) {
    return static_cast<double>(__builtin_bit_cast(float, bits));
  }
  static V Cast(__m512 v) { return _mm512_castps_si512(v); }
  static M Cast(__mmask16 mask) { return mask; }
};

struct Floats {
  using Scalar = float;
  using V = __m512;
  using M = __mmask16;
  struct Acc {
    __m512d low;
    __m512d high;
  };
  using Extremes = FloatExtremes<FloatBits, Floats>;
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
  // What is read kAhead bytes further on, which may be beyond the end.
  static void Prefetch(const void* p) {
    __builtin_prefetch(static_cast<const char*>(p) + kAhead);
  }
  static void Store(float* p, V v) { _mm512_storeu_ps(p, v); }
  // Past the caches; whoever is told so with a release store, after EndStream,
  // finds it in memory.
  static void Stream(float* p, V v) { _mm512_stream_ps(p, v); }
  static void EndStream() { _mm_sfence(); }
  // Rounded to the nearest, ties to even.
  static void Store(Float16* p, V v) {
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(p),
        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void Store(BFloat16* p, V v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)),
                         odd),
        16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(
                            rounded, is_nan, _mm512_set1_epi32(0x7fc0))));
  }

  static V Add(V a, V b) { return _mm512_add_ps(a, b); }
  static V Sub(V a, V b) { return _mm512_sub_ps(a, b); }
  static V Mul(V a, V b) { return _mm512_mul_ps(a, b); }
  static V MulAdd(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static V Abs(V v) { return _mm512_abs_ps(v); }
  // There are registers enough.
  static void Hold(V* /*a*/, V* /*b*/, V* /*c*/) {}

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

// Elements of 16 bits: integers, or the bits of floats.
struct Shorts {
  using V = __m512i;
  using M = __mmask32;
  using Bits = std::uint16_t;
  static constexpr std::size_t kLanes = 32;

  static V Load(const void* p) { return _mm512_loadu_si512(p); }
  static V Widen(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi16(Load256(p));
  }
  static V Widen(const std::int8_t* p) {
    return _mm512_cvtepi8_epi16(Load256(p));
  }
  static void Store(void* p, V v) { _mm512_storeu_si512(p, v); }
  template <int kBits>
  static V ShiftLeft(V v) {
    return _mm512_slli_epi16(v, kBits);
  }
  static V And(V a, V b) { return _mm512_and_si512(a, b); }
  static V Or(V a, V b) { return _mm512_or_si512(a, b); }
  static V Set(std::int16_t x) { return _mm512_set1_epi16(x); }
  static V SignBit() { return Set(INT16_MIN); }
  static V None() { return _mm512_setzero_si512(); }
  static V All() { return Set(-1); }
  static V Xor(V a, V b) { return _mm512_xor_si512(a, b); }
  static V Abs(V v) { return _mm512_abs_epi16(v); }
  static V WithoutSign(V v) { return _mm512_and_si512(v, Set(INT16_MAX)); }
  static V MaxSigned(V a, V b) { return _mm512_max_epi16(a, b); }
  static V MinSigned(V a, V b) { return _mm512_min_epi16(a, b); }
  static V MaxUnsigned(V a, V b) { return _mm512_max_epu16(a, b); }
  static V MinUnsigned(V a, V b) { return _mm512_min_epu16(a, b); }
  static M FirstLanes(std::size_t n) {
    return n >= kLanes ? ~M{0} : (M{1} << n) - 1U;
  }
  static V Select(M mask, V a, V b) {
    return _mm512_mask_blend_epi16(mask, b, a);
  }
  static bool AnyZero(V v) { return _mm512_testn_epi16_mask(v, v) != 0; }
  // Whether a lane of `s` is >= infinity, or one of `u` >= -infinity.
  static bool AnyAtLeast(V s, V u, Bits infinity) {
    const V positive = Set(static_cast<std::int16_t>(infinity));
    const V negative = Set(static_cast<std::int16_t>(infinity | 0x8000U));
    return (_mm512_cmpge_epi16_mask(s, positive) |
            _mm512_cmpge_epu16_mask(u, negative)) != 0;
  }
  static Bits LeastUnsigned(V v) {
    const __m256i half = _mm256_min_epu16(Low(v), High(v));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half),
                                          _mm256_extracti128_si256(half, 1));
    return static_cast<Bits>(_mm_cvtsi128_si32(_mm_minpos_epu16(quarter)));
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
  using Words = __m512i;
  static Words MulAdd(V a, V b) { return _mm512_madd_epi16(a, b); }
  static Words NoWords() { return _mm512_setzero_si512(); }
  static Words Add(Words a, Words b) { return _mm512_add_epi32(a, b); }
  static std::int64_t Sum(Words v) { return _mm512_reduce_add_epi32(v); }
  // Unsigned ones, added up in 64 bits.
  static Words AddWide(Words sums, Words v) {
    const Words even = _mm512_and_si512(v, _mm512_set1_epi64(0xffffffff));
    return _mm512_add_epi64(_mm512_add_epi64(sums, even),
                            _mm512_srli_epi64(v, 32));
  }
  static std::int64_t SumWide(Words sums) {
    return _mm512_reduce_add_epi64(sums);
  }

  // Of words of 64 bits: the lower halves of those of both, in any order.
  static V LowerHalves(V a, V b) {
    return _mm512_castps_si512(_mm512_shuffle_ps(
        _mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0b10001000));
  }
  // Of signed words of 32 bits, as unsigned ones.
  static V MagnitudesOfWords(V v) { return _mm512_abs_epi32(v); }
  // Of unsigned words of 32 bits: sums of two squares, in 64 bits.
  static Words SquaresOfWords(V v) {
    const Words odd = _mm512_srli_epi64(v, 32);
    return _mm512_add_epi64(_mm512_mul_epu32(v, v), _mm512_mul_epu32(odd, odd));
  }

 private:
  static __m256i Load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static __m256i Low(V v) { return _mm512_castsi512_si256(v); }
  static __m256i High(V v) { return _mm512_extracti64x4_epi64(v, 1); }
};

// Two vectors of floats for each vector of 16-bit ones, in any order.
struct Halves {
  static Floats::V First(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(As256(p)));
  }
  static Floats::V Second(const Float16* p) { return First(p + 16); }
  static Floats::V First(const BFloat16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(Shorts::Load(p), 16));
  }
  static Floats::V Second(const BFloat16* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(Shorts::Load(p), _mm512_set1_epi32(-65536)));
  }
#ifdef TDBG_HAVE_DOT_OF_BFLOAT16
  // sums + the products of neighbours.  Flushes subnormal numbers.
  static Floats::V Dot(Floats::V sums, Shorts::V a, Shorts::V b) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a),
                            reinterpret_cast<__m512bh>(b));
  }
#endif

 private:
  static const __m256i* As256(const void* p) {
    return static_cast<const __m256i*>(p);
  }
};

}  // namespace
}  // namespace tdbg
