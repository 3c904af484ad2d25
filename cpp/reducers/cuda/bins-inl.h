// The histogram: docs/statistics.md, "The histogram".
//
// A block counts in shared memory what lies in a window of bins below its first
// elements' greatest magnitude, and adds that up in the end; all else it counts
// in device memory at once.  Which window it has changes no count.

#pragma once

#include <cstdint>
#include <type_traits>

#include "reducers/bin_keys-inl.h"
#include "reducers/cuda/device-inl.h"
#include "reducers/cuda/elements-inl.h"
#include "reducers/cuda/merge-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// For each sign 32 powers of two, 128 bins each.
constexpr std::uint32_t kWindow = 4096;

struct Window {
  std::uint32_t counts[2 * kWindow];
  std::uint32_t first;  // Its least key.
};

// The key of an element times `scale`.
template <typename E>
__device__ inline std::uint32_t KeyOfElement(typename E::Bits bits,
                                             double scale) {
  if constexpr (sizeof(bits) == 8 && !std::is_same_v<E, Float64Element>) {
    // Doubles would round up what keys round towards zero.
    using T = typename E::Number;
    const bool is_negative = std::is_signed_v<T> && bits >> 63 != 0;
    const std::uint64_t magnitude = is_negative ? 0 - bits : bits;
    return KeyOfMagnitude(magnitude) | (is_negative ? kSignBit : 0U);
  } else {
    return KeyOf(E::Value(bits) * scale);
  }
}

__device__ inline void CountKey(std::uint32_t key, Window* window,
                                std::uint32_t* bins) {
  const std::uint32_t at = (key & kMagnitudeOfKey) - window->first;
  if (at < kWindow) {
    atomicAdd(&window->counts[at + (key >> 15) * kWindow], 1U);
  } else {
    atomicAdd(&bins[key], 1U);
  }
}

template <typename E>
__device__ inline void CountElements(const BinEntry& entry, double scale,
                                     Window* window) {
  using Bits = typename E::Bits;
  auto* bins = reinterpret_cast<std::uint32_t*>(entry.bins);
  const auto count = static_cast<std::uint32_t>(entry.count);
  const Part part{entry.address, 0, count, entry.n_dims, entry.extents,
                  entry.strides};
  const auto key_at = [&](std::uint64_t i) {
    const std::uint64_t address =
        AddressOf(part, static_cast<std::uint32_t>(i), sizeof(Bits));
    return KeyOfElement<E>(Load<Bits>(address), scale);
  };
  const std::uint64_t step = std::uint64_t{gridDim.x} * kBlockThreads;
  std::uint64_t i = std::uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const std::uint32_t key = i < count ? key_at(i) & kMagnitudeOfKey : 0;
  // NaN and Inf have bins beyond all windows.
  const std::uint32_t most = key < kInfinityKey ? key : 0;
  atomicMax(&window->first, most);
  __syncthreads();
  if (threadIdx.x == 0) {
    // Some powers of two above: the others' greatest may be greater.
    const std::uint32_t end = window->first + 512;
    window->first = end > kWindow ? end - kWindow : 1;
  }
  __syncthreads();
  std::uint32_t zeros = 0;
  for (; i < count; i += step) {
    const std::uint32_t at = key_at(i);
    if (at == kZeroKey) {
      ++zeros;
    } else {
      CountKey(at, window, bins);
    }
  }
  zeros = WarpSum32(zeros);
  if (Lane() == 0 && zeros > 0) atomicAdd(&bins[kZeroKey], zeros);
}

__device__ inline void CountBinsOfEntry(const BinEntry& entry) {
  TDBG_SHARED(Window, window);
  for (std::uint32_t i = threadIdx.x; i < 2 * kWindow; i += kBlockThreads) {
    window.counts[i] = 0;
  }
  if (threadIdx.x == 0) window.first = 0;
  __syncthreads();
  const double divisor =
      entry.divisor_address == 0
          ? 1.0
          : static_cast<double>(Load<float>(entry.divisor_address));
  WithElement(entry.dtype, [&]<typename E>() {
    CountElements<E>(entry, entry.scale / divisor, &window);
  });
  __syncthreads();
  auto* bins = reinterpret_cast<std::uint32_t*>(entry.bins);
  for (std::uint32_t i = threadIdx.x; i < 2 * kWindow; i += kBlockThreads) {
    const std::uint32_t n = window.counts[i];
    const std::uint32_t sign = i < kWindow ? 0 : kSignBit;
    if (n > 0) atomicAdd(&bins[(window.first + i % kWindow) | sign], n);
  }
}

}  // namespace
}  // namespace tdbg::cuda
