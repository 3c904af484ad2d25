// The statistics kernel for any processor, in the vectors of 16 bytes that
// GCC and Clang provide everywhere.

#include <cstddef>
#include <cstdint>

#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {

struct Doubles {
  using Scalar = double;
  using V = double __attribute__((vector_size(16)));
  using M = std::int64_t __attribute__((vector_size(16)));
  using Acc = V;
  static constexpr std::size_t kLanes = 2;

  static V Set(double x) { return V{x, x}; }
  static V Load(const double* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  template <typename T>
  static V Load(const T* p) {
    return V{ToFloat(p[0]), ToFloat(p[1])};
  }
  // The first n < kLanes elements; the other lanes are zero.
  template <typename T>
  static V LoadFirst(const T* p, std::size_t n) {
    V v = Set(0);
    for (std::size_t i = 0; i < n; ++i) v[i] = ToFloat(p[i]);
    return v;
  }
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
};

struct Floats {
  using Scalar = float;
  using V = float __attribute__((vector_size(16)));
  using M = std::int32_t __attribute__((vector_size(16)));
  struct Acc {
    Doubles::V low;
    Doubles::V high;
  };
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
  static void Store(float* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }

  static V Add(V a, V b) { return a + b; }
  static V Sub(V a, V b) { return a - b; }
  static V Mul(V a, V b) { return a * b; }
  static V MulAdd(V a, V b, V c) { return a * b + c; }
  static V Min(V a, V b) { return a < b ? a : b; }
  static V Max(V a, V b) { return a > b ? a : b; }
  static V Abs(V v) {
    return reinterpret_cast<V>(reinterpret_cast<M>(v) & INT32_MAX);
  }

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
};

}  // namespace
}  // namespace tdbg

#include "reducers/kernel-inl.h"

namespace tdbg {

void AccumulatePortable(const void* data, std::size_t n, DType dtype,
                        double factor, Moments* moments) {
  AccumulateAny(data, n, dtype, factor, moments);
}

}  // namespace tdbg
