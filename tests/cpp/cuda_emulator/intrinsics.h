// CUDA's names for the host: what the kernels use of them, by way of the
// emulator.  Included before a .cu file that the host's compiler compiles.
//
// Warp-wide operations take all 32 lanes only, as the kernels use them.

#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda_emulator/emulator.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

namespace tdbg::cuda_emulator {

// Where the calling fiber is.
struct Place {
  Dim3 thread;
  Dim3 block;
  Dim3 grid;
};
const Place& Here();

// Each lane gives 8 bytes and gets those of lane `from`; all 32 lanes meet.
std::uint64_t Exchange(const char* operation, std::uint64_t value,
                       unsigned from);
// Likewise; gets the sum, the least or the like over all lanes.
using Combine = std::uint64_t (*)(std::uint64_t, std::uint64_t);
std::uint64_t Reduce(const char* operation, std::uint64_t value,
                     Combine combine);
void MeetWarp();
void MeetBlock();
// Memory of the block, the same for each of its threads; `size` is the same
// at each call.
void* Shared(std::size_t size);
[[noreturn]] void Refuse(const char* what);

}  // namespace tdbg::cuda_emulator

#define threadIdx (::tdbg::cuda_emulator::Here().thread)
#define blockIdx (::tdbg::cuda_emulator::Here().block)
#define gridDim (::tdbg::cuda_emulator::Here().grid)

inline void* EmulatedShared(std::size_t size) {
  return ::tdbg::cuda_emulator::Shared(size);
}

inline void __syncthreads() { ::tdbg::cuda_emulator::MeetBlock(); }
inline void __syncwarp() { ::tdbg::cuda_emulator::MeetWarp(); }
inline void __threadfence() {}

inline void CheckLanes(unsigned mask) {
  if (mask != 0xffffffffU) ::tdbg::cuda_emulator::Refuse("not all lanes");
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned bits) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  CheckLanes(mask);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(value));
  word = ::tdbg::cuda_emulator::Exchange("__shfl_xor_sync", word,
                                         (threadIdx.x % 32) ^ bits);
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  CheckLanes(mask);
  return static_cast<unsigned>(::tdbg::cuda_emulator::Reduce(
      "__reduce_add_sync", value,
      [](std::uint64_t a, std::uint64_t b) { return a + b; }));
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  CheckLanes(mask);
  return static_cast<unsigned>(::tdbg::cuda_emulator::Reduce(
      "__reduce_min_sync", value,
      [](std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  CheckLanes(mask);
  const std::uint64_t bit = predicate != 0 ? 1ULL << (threadIdx.x % 32) : 0;
  return static_cast<unsigned>(::tdbg::cuda_emulator::Reduce(
      "__ballot_sync", bit,
      [](std::uint64_t a, std::uint64_t b) { return a | b; }));
}
inline int __popc(unsigned x) { return std::popcount(x); }

template <typename T>
T atomicAdd(T* where, T value) {
  return __atomic_fetch_add(where, value, __ATOMIC_SEQ_CST);
}
inline unsigned atomicMax(unsigned* where, unsigned value) {
  const unsigned before = *where;  // Fibers take turns.
  if (value > before) *where = value;
  return before;
}
template <typename T>
T __ldcg(const T* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
