// The statistics kernel for any processor, in the vectors of 16 bytes that
// GCC and Clang provide everywhere.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reducers/extremes-inl.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

struct Doubles {
  using Scalar = double;
  using V = double __attribute__((vector_size(16)));
  using M = std::int64_t __attribute__((vector_size(16)));
  using Acc = V;
  using Extremes = NumberExtremes<Doubles>;
  static constexpr std::size_t kLanes = 2;

  static V Set(double x) { return V{x, x}; }
  static V Load(const double* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <typename T>
  static V Load(const T* p) {
    return V{Number(p[0]), Number(p[1])};
  }
  // The first n < kLanes elements; the other lanes are zero.
  template <typename T>
  static V LoadFirst(const T* p, std::size_t n) {
    V v = Set(0);
    for (std::size_t i = 0; i < n; ++i) v[i] = Number(p[i]);
    return v;
  }

  static void Prefetch(const void* /*p*/) {}
  static void Store(double* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }

  static V Add(V a, V b) { return a + b; }
  static V Sub(V a, V b) { return a - b; }
  static V Mul(V a, V b) { return a * b; }
  static V MulAdd(V a, V b, V c) { return a * b + c; }
  static V Min(V a, V b) { return a < b ? a : b; }
  static V Max(V a, V b) { return a > b ? a : b; }
  static V Abs(V v) {
    return reinterpret_cast<V>(reinterpret_cast<M>(v) & INT64_MAX);
  }

  static M IsZero(V v) { return v == 0; }
  static M IsFinite(V v) { return Abs(v) <= __DBL_MAX__; }
  static M FirstLanes(std::size_t n) {
    return M{0, 1} < static_cast<std::int64_t>(n);
  }
  static M And(M a, M b) { return a & b; }
  static bool Any(M mask) { return (mask[0] | mask[1]) != 0; }
  static V Select(M mask, V a, V b) { return mask ? a : b; }
  static V CountIf(V counts, M mask) {
    return counts + (mask ? Set(1) : Set(0));
  }

  static Acc Zero() { return Set(0); }
  static void Accumulate(Acc* acc, V v) { *acc += v; }
  static double Sum(Acc acc) { return acc[0] + acc[1]; }
  static double Least(V v) { return v[0] < v[1] ? v[0] : v[1]; }

 private:
  template <typename T>
  static double Number(T x) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<double>(x);
    } else {
      return static_cast<double>(ToFloat(x));
    }
  }
};

struct Floats {
  using Scalar = float;
  using V = float __attribute__((vector_size(16)));
  using M = std::int32_t __attribute__((vector_size(16)));
  struct Acc {
    Doubles::V low;
    Doubles::V high;
  };
  using Extremes = NumberExtremes<Floats>;
  static constexpr std::size_t kLanes = 4;

  static V Set(float x) { return V{x, x, x, x}; }
  static V Load(const float* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <typename T>
  static V Load(const T* p) {
    return V{ToFloat(p[0]), ToFloat(p[1]), ToFloat(p[2]), ToFloat(p[3])};
  }
  template <typename T>
  static V LoadFirst(const T* p, std::size_t n) {
    V v = Set(0);
    for (std::size_t i = 0; i < n; ++i) v[i] = ToFloat(p[i]);
    return v;
  }

  static void Prefetch(const void* /*p*/) {}
  static void Store(float* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }
  static void Stream(float* p, V v) { Store(p, v); }
  static void EndStream() {}
  template <typename T>
  static void Store(T* p, V v) {
    for (std::size_t i = 0; i < kLanes; ++i) RoundTo(v[i], p + i);
  }

  static V Add(V a, V b) { return a + b; }
  static V Sub(V a, V b) { return a - b; }
  static V Mul(V a, V b) { return a * b; }
  static V MulAdd(V a, V b, V c) { return a * b + c; }
  static V Min(V a, V b) { return a < b ? a : b; }
  static V Max(V a, V b) { return a > b ? a : b; }
  static V Abs(V v) {
    return reinterpret_cast<V>(reinterpret_cast<M>(v) & INT32_MAX);
  }
  static void Hold(V* /*a*/, V* /*b*/, V* /*c*/) {}

  static M IsZero(V v) { return v == 0; }
  static M FirstLanes(std::size_t n) {
    return M{0, 1, 2, 3} < static_cast<std::int32_t>(n);
  }
  static M And(M a, M b) { return a & b; }
  static bool Any(M mask) {
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
  }
  static V Select(M mask, V a, V b) { return mask ? a : b; }
  static V CountIf(V counts, M mask) {
    return counts + (mask ? Set(1) : Set(0));
  }

  static Acc Zero() { return {Doubles::Set(0), Doubles::Set(0)}; }
  static void Accumulate(Acc* acc, V v) {
    acc->low +=
        Doubles::V{static_cast<double>(v[0]), static_cast<double>(v[1])};
    acc->high +=
        Doubles::V{static_cast<double>(v[2]), static_cast<double>(v[3])};
  }
  static double Sum(Acc acc) { return Doubles::Sum(acc.low + acc.high); }
  static double Least(V v) {
    const float low = v[0] < v[1] ? v[0] : v[1];
    const float high = v[2] < v[3] ? v[2] : v[3];
    return static_cast<double>(low < high ? low : high);
  }
};

// Elements of 16 bits: integers, or the bits of floats.
struct Shorts {
  using Signed = std::int16_t __attribute__((vector_size(16)));
  using V = std::uint16_t __attribute__((vector_size(16)));
  using M = Signed;
  using Bits = std::uint16_t;
  static constexpr std::size_t kLanes = 8;

  static V Load(const void* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <typename T>
  static V Widen(const T* p) {
    V v;
    for (std::size_t i = 0; i < kLanes; ++i) {
      const int x = p[i];  // With its sign.
      v[i] = static_cast<Bits>(x);
    }
    return v;
  }
  static void Store(void* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }
  template <int kBits>
  static V ShiftLeft(V v) {
    return v << kBits;
  }
  static V And(V a, V b) { return a & b; }
  static V Or(V a, V b) { return a | b; }
  static V Set(std::int16_t x) { return V{} + static_cast<std::uint16_t>(x); }
  static V SignBit() { return Set(INT16_MIN); }
  static V None() { return V{}; }
  static V All() { return Set(-1); }
  static V Xor(V a, V b) { return a ^ b; }
  static V Abs(V v) { return reinterpret_cast<Signed>(v) < 0 ? V{} - v : v; }
  static V WithoutSign(V v) { return v & Set(INT16_MAX); }
  static V MaxSigned(V a, V b) {
    return reinterpret_cast<Signed>(a) > reinterpret_cast<Signed>(b) ? a : b;
  }
  static V MinSigned(V a, V b) {
    return reinterpret_cast<Signed>(a) < reinterpret_cast<Signed>(b) ? a : b;
  }
  static V MaxUnsigned(V a, V b) { return a > b ? a : b; }
  static V MinUnsigned(V a, V b) { return a < b ? a : b; }
  static M FirstLanes(std::size_t n) {
    return Signed{0, 1, 2, 3, 4, 5, 6, 7} < static_cast<std::int16_t>(n);
  }
  static V Select(M mask, V a, V b) { return mask ? a : b; }
  static bool AnyZero(V v) { return LeastUnsigned(v) == 0; }
  // Whether a lane of `s` is >= infinity, or one of `u` >= -infinity.
  static bool AnyAtLeast(V s, V u, Bits infinity) {
    const Bits greatest = GreatestSigned(s);
    return (greatest >= infinity && greatest <= 0x7fffU) ||
           GreatestUnsigned(u) >= (infinity | 0x8000U);
  }
  static Bits LeastUnsigned(V v) {
    Bits least = v[0];
    for (std::size_t i = 1; i < kLanes; ++i)
      least = v[i] < least ? v[i] : least;
    return least;
  }
  static Bits GreatestUnsigned(V v) {
    return static_cast<Bits>(~LeastUnsigned(~v));
  }
  // Flipping all bits but the sign turns the order of signed integers into the
  // reverse one of unsigned integers.
  static Bits GreatestSigned(V v) {
    return LeastUnsigned(v ^ Set(INT16_MAX)) ^ 0x7fffU;
  }

  // Of products of integers, each the sum of two neighbours.
  using Words = std::int32_t __attribute__((vector_size(16)));
  static Words MulAdd(V a, V b) {
    const auto x = reinterpret_cast<Words>(a);
    const auto y = reinterpret_cast<Words>(b);
    // Unsigned: twice 2^30 is 2^31.
    using Unsigned = std::uint32_t __attribute__((vector_size(16)));
    return reinterpret_cast<Words>(
        reinterpret_cast<Unsigned>(((x << 16) >> 16) * ((y << 16) >> 16)) +
        reinterpret_cast<Unsigned>((x >> 16) * (y >> 16)));
  }
  static Words NoWords() { return Words{}; }
  static Words Add(Words a, Words b) { return a + b; }
  static std::int64_t Sum(Words v) {
    return std::int64_t{v[0]} + v[1] + v[2] + v[3];
  }
  // Unsigned ones, added up in 64 bits.
  static Words AddWide(Words sums, Words v) {
    using Wide = std::uint64_t __attribute__((vector_size(16)));
    const auto wide = reinterpret_cast<Wide>(v);
    return reinterpret_cast<Words>(reinterpret_cast<Wide>(sums) +
                                   (wide & 0xffffffffU) + (wide >> 32));
  }
  static std::int64_t SumWide(Words sums) {
    using Wide = std::int64_t __attribute__((vector_size(16)));
    const auto wide = reinterpret_cast<Wide>(sums);
    return wide[0] + wide[1];
  }

  // Of words of 64 bits: the lower halves of those of both, in any order.
  static V LowerHalves(V a, V b) {
    return V{a[0], a[1], a[4], a[5], b[0], b[1], b[4], b[5]};
  }
  // Of signed words of 32 bits, as unsigned ones.
  static V MagnitudesOfWords(V v) {
    using Unsigned = std::uint32_t __attribute__((vector_size(16)));
    const auto x = reinterpret_cast<Unsigned>(v);
    const Unsigned sign = -(x >> 31);
    return reinterpret_cast<V>((x ^ sign) - sign);
  }
  // Of unsigned words of 32 bits: sums of two squares, in 64 bits.
  static Words SquaresOfWords(V v) {
    using Wide = std::uint64_t __attribute__((vector_size(16)));
    const Wide even = reinterpret_cast<Wide>(v) & 0xffffffffU;
    const Wide odd = reinterpret_cast<Wide>(v) >> 32;
    return reinterpret_cast<Words>(even * even + odd * odd);
  }
};

// Two vectors of floats for each vector of 16-bit ones, in any order.
struct Halves {
  static Floats::V First(const Float16* p) { return Floats::Load(p); }
  static Floats::V Second(const Float16* p) {
    return Floats::Load(p + Floats::kLanes);
  }
  static Floats::V First(const BFloat16* p) {
    return reinterpret_cast<Floats::V>(reinterpret_cast<Words>(Shorts::Load(p))
                                       << 16);
  }
  static Floats::V Second(const BFloat16* p) {
    return reinterpret_cast<Floats::V>(
        reinterpret_cast<Words>(Shorts::Load(p)) & 0xffff0000U);
  }

 private:
  using Words = std::uint32_t __attribute__((vector_size(16)));
};

}  // namespace
}  // namespace tdbg

#include "reducers/beside-inl.h"
#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulatePortable(const void* data, std::size_t n, DType dtype, Pass pass,
                        Moments* moments) {
  AccumulateAny(data, n, dtype, pass, moments);
}

void AccumulateDifferencePortable(const void* a, const void* b, std::size_t n,
                                  DType dtype, Pass pass, Moments* moments) {
  AccumulateDifferenceAny(a, b, n, dtype, pass, moments);
}

void SubtractPortable(const void* a, const void* b, std::size_t n, DType dtype,
                      void* out) {
  SubtractAny(a, b, n, dtype, out);
}

void AccumulateAndCopyPortable(const float* data, std::size_t n, float* copy,
                               Moments* moments) {
  AccumulateAndCopyFloats(data, n, copy, moments);
}

}  // namespace tdbg
