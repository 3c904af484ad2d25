// Device functions that the kernels share: loads, sums over a warp, and
// arithmetic on pairs of 16-bit floats.
//
// nvcc compiles this for the device.  Any other compiler must have declared
// CUDA's own names (threadIdx, __shfl_xor_sync, ...) before: the emulator of
// tests/cpp does, and the pairs are then computed by plain C++.
//
// Functions that say "all lanes" are called by all 32 lanes of a warp together.

#pragma once

#include <cstdint>
#include <cstring>

#include "reducers/cuda/kernel_abi.h"
#include "reducers/moments.h"
#ifndef __CUDACC__
#include "reducers/widen-inl.h"
#endif

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

constexpr std::uint32_t kLanes = 32;
constexpr std::uint32_t kAllLanes = 0xffffffffU;
constexpr std::uint32_t kWarps = kBlockThreads / kLanes;
constexpr std::uint32_t kStatisticsWarps = kStatisticsThreads / kLanes;

__device__ inline std::uint32_t Lane() { return threadIdx.x % kLanes; }
__device__ inline std::uint32_t Warp() { return threadIdx.x / kLanes; }

// --- Memory ------------------------------------------------------------------

// 16 bytes.
struct alignas(16) Vec {
  std::uint32_t w[4];
};

// The address is a multiple of 16.  What is read once is not kept in L1.
__device__ inline Vec LoadVec(std::uint64_t address) {
  Vec v;
#ifdef __CUDACC__
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
      : "l"(address));
#else
  std::memcpy(&v, reinterpret_cast<const void*>(address), sizeof(v));
#endif
  return v;
}

template <typename T>
__device__ inline T Load(std::uint64_t address) {
  return *reinterpret_cast<const T*>(address);
}

// Past the cache of the multiprocessor: what another block wrote.
template <typename T>
__device__ inline T LoadShared(const T* p) {
  static_assert(sizeof(T) % sizeof(unsigned long long) == 0);
  constexpr int kWords = sizeof(T) / sizeof(unsigned long long);
  unsigned long long words[kWords];
  const auto* from = reinterpret_cast<const unsigned long long*>(p);
#pragma unroll
  for (int i = 0; i < kWords; ++i) words[i] = __ldcg(from + i);
  T value;
  std::memcpy(&value, words, sizeof(value));
  return value;
}

// Orders what this thread did before and after for all others of the device, as
// acq_rel does.  (__threadfence is sequentially consistent.)
__device__ inline void Fence() {
#ifdef __CUDACC__
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// --- Sums and extremes over a warp: all lanes --------------------------------

template <typename T>
__device__ inline T WarpSum(T x) {
#pragma unroll
  for (std::uint32_t d = kLanes / 2; d > 0; d /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, d);
  }
  return x;
}
template <typename T>
__device__ inline T WarpLeast(T x) {
#pragma unroll
  for (std::uint32_t d = kLanes / 2; d > 0; d /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, x, d);
    x = other < x ? other : x;
  }
  return x;
}
template <typename T>
__device__ inline T WarpGreatest(T x) {
#pragma unroll
  for (std::uint32_t d = kLanes / 2; d > 0; d /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, x, d);
    x = other > x ? other : x;
  }
  return x;
}
// One instruction each.
__device__ inline std::uint32_t WarpSum32(std::uint32_t x) {
  return __reduce_add_sync(kAllLanes, x);
}
__device__ inline std::uint32_t WarpLeast32(std::uint32_t x) {
  return __reduce_min_sync(kAllLanes, x);
}

// Floats in the order of unsigned integers, NaN left aside.
__device__ inline std::uint32_t OrderOf(float x) {
  const auto bits = static_cast<std::uint32_t>(__float_as_int(x));
  return bits ^ (bits >> 31 != 0 ? 0xffffffffU : 0x80000000U);
}
__device__ inline float FromOrder(std::uint32_t order) {
  const std::uint32_t flip = order >> 31 != 0 ? 0x80000000U : 0xffffffffU;
  return __int_as_float(static_cast<int>(order ^ flip));
}
__device__ inline float WarpLeast(float x) {
  return FromOrder(WarpLeast32(OrderOf(x)));
}
__device__ inline float WarpGreatest(float x) { return -WarpLeast(-x); }

// --- Pairs of 16-bit floats --------------------------------------------------

// Each has Min, Max, the two floats of a pair, and kInfinity.
struct BFloatPair {
  static constexpr std::uint32_t kInfinity = 0x7f807f80U;
  __device__ static float Low(std::uint32_t pair) {
    return __int_as_float(static_cast<int>(pair << 16));
  }
  __device__ static float High(std::uint32_t pair) {
    return __int_as_float(static_cast<int>(pair & 0xffff0000U));
  }
#ifdef __CUDACC__
  __device__ static std::uint32_t Min(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static std::uint32_t Max(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
#endif
};
struct HalfPair {
  static constexpr std::uint32_t kInfinity = 0x7c007c00U;
#ifdef __CUDACC__
  __device__ static float Low(std::uint32_t pair) {
    float x;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}"
        : "=f"(x)
        : "r"(pair));
    return x;
  }
  __device__ static float High(std::uint32_t pair) {
    float x;
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}"
        : "=f"(x)
        : "r"(pair));
    return x;
  }
  __device__ static std::uint32_t Min(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
  __device__ static std::uint32_t Max(std::uint32_t a, std::uint32_t b) {
    std::uint32_t r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
  }
#else
  static float Low(std::uint32_t pair) {
    return ToFloat(Float16{static_cast<std::uint16_t>(pair)});
  }
  static float High(std::uint32_t pair) { return Low(pair >> 16); }
#endif
};

#ifdef __CUDACC__
template <typename Pair>
__device__ inline std::uint32_t MinOf(std::uint32_t a, std::uint32_t b) {
  return Pair::Min(a, b);
}
template <typename Pair>
__device__ inline std::uint32_t MaxOf(std::uint32_t a, std::uint32_t b) {
  return Pair::Max(a, b);
}
#else
// As the device: a number rather than NaN.
inline std::uint32_t Chosen(bool low_a, bool high_a, std::uint32_t a,
                            std::uint32_t b) {
  return ((low_a ? a : b) & 0xffffU) | ((high_a ? a : b) & 0xffff0000U);
}
template <typename Pair>
inline std::uint32_t MinOf(std::uint32_t a, std::uint32_t b) {
  return Chosen(
      !(Pair::Low(b) < Pair::Low(a)) && Pair::Low(a) == Pair::Low(a),
      !(Pair::High(b) < Pair::High(a)) && Pair::High(a) == Pair::High(a), a, b);
}
template <typename Pair>
inline std::uint32_t MaxOf(std::uint32_t a, std::uint32_t b) {
  return Chosen(
      !(Pair::Low(b) > Pair::Low(a)) && Pair::Low(a) == Pair::Low(a),
      !(Pair::High(b) > Pair::High(a)) && Pair::High(a) == Pair::High(a), a, b);
}
#endif

}  // namespace
}  // namespace tdbg::cuda
