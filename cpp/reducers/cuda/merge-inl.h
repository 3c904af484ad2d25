// How the rows of tiles and of groups of tiles become that of a tensor.
//
// In trees whose shape depends on the number of tiles alone, whichever warp
// does it: so bits depend on the data only.

#pragma once

#include <cstdint>
#include <cstring>

#include "reducers/cuda/device-inl.h"
#include "reducers/row_math-inl.h"

// `type` in the shared memory of a block, as `name`, not initialized.
#ifdef __CUDACC__
#define TDBG_SHARED(type, name) __shared__ type name
#else
#define TDBG_SHARED(type, name) \
  type& name = *static_cast<type*>(EmulatedShared(sizeof(type)))
#endif

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// The counters of a launch, all zero before and after it.
struct Counters {
  std::uint32_t* next_tile;
  std::uint32_t* n_done;  // Warps.
  std::uint32_t* groups;  // Of each group: what of it is merged.
};
__device__ __forceinline__ Counters CountersOf(std::uint32_t* counters) {
  return {counters, counters + 1, counters + 2};
}

__device__ __forceinline__ bool IsNothing(const Moments& m) {
  return m.mean == 0 && m.m2 == 0 && m.l1 == 0;
}

__device__ __forceinline__ void SetExponent(std::int64_t exponent,
                                            DeviceRow* row) {
  const double factor = ldexp(1.0, static_cast<int>(row->exponent - exponent));
  row->moments.mean *= factor;
  row->moments.mean_low *= factor;
  row->moments.m2 = row->moments.m2 * factor * factor;
  row->moments.l1 *= factor;
  row->exponent = exponent;
}

// Makes `*row` that of both, and `*part` of no use.  What is brought to a
// greater exponent and is lost by it did not count beside the other.
__device__ __forceinline__ void MergeRow(DeviceRow* part, ExtremeClass extremes,
                                         DeviceRow* row) {
  if (part->exponent != row->exponent) {
    const bool takes_its =
        IsNothing(row->moments) ||
        (!IsNothing(part->moments) && part->exponent > row->exponent);
    if (takes_its) {
      SetExponent(part->exponent, row);
    } else {
      SetExponent(row->exponent, part);
    }
  }
  MergeMoments(part->moments, extremes, &row->moments);
}

// The row of another lane.
__device__ __forceinline__ DeviceRow OfLane(const DeviceRow& row,
                                            std::uint32_t distance) {
  constexpr std::uint32_t kWords = sizeof(DeviceRow) / 8;
  unsigned long long words[kWords];
  std::memcpy(words, &row, sizeof(row));
#pragma unroll
  for (std::uint32_t i = 0; i < kWords; ++i) {
    words[i] = __shfl_xor_sync(kAllLanes, words[i], distance);
  }
  DeviceRow other;
  std::memcpy(&other, words, sizeof(other));
  return other;
}

// The row of `n` rows in device memory, `stride` apart, for lane 0.  All lanes.
// REQUIRES: 0 < n <= kGroup.
__device__ __forceinline__ DeviceRow MergeStored(const DeviceRow* stored,
                                                 std::uint32_t n,
                                                 std::uint32_t stride,
                                                 ExtremeClass extremes) {
  static_assert(kGroup == kLanes);
  DeviceRow row;
  Clear(extremes, &row.moments);
  row.exponent = 0;
  row.scale = 1.0;
  if (Lane() < n) row = LoadShared(stored + std::uint64_t{Lane()} * stride);
#pragma unroll 1
  for (std::uint32_t half = kLanes / 2; half > 0; half /= 2) {
    DeviceRow part = OfLane(row, half);
    MergeRow(&part, extremes, &row);
  }
  return row;
}

// Stores `row`, which lane 0 has, and counts it; returns whether it is the last
// of `n` that are counted there, whose rows can then be read.  All lanes.
__device__ __forceinline__ bool StoreAndCount(const DeviceRow& row,
                                              DeviceRow* where,
                                              std::uint32_t* counter,
                                              std::uint32_t n) {
  bool is_last = false;
  if (Lane() == 0) {
    *where = row;
    Fence();
    is_last = atomicAdd(counter, 1U) + 1 == n;
    if (is_last) {
      *counter = 0;
      Fence();
    }
  }
  return __ballot_sync(kAllLanes, is_last) != 0;
}

// A tile, and which tiles are its tensor's.
struct Tiles {
  std::uint32_t tile;
  std::uint32_t entry;
  std::uint32_t first;
  std::uint32_t n;
};

// Adds the tile whose row is `*row` to its tensor; true where it was the last
// one, and lane 0 now has the row of the tensor.  All lanes.
__device__ __forceinline__ bool Publish(const Tiles& tiles,
                                        ExtremeClass extremes,
                                        const Counters& counters,
                                        DeviceRow* partials, DeviceRow* row) {
  DeviceRow* const stored = partials + tiles.first;
  std::uint32_t* count = counters.groups + FirstGroup(tiles.first, tiles.entry);
  std::uint32_t i = tiles.tile - tiles.first;
  std::uint32_t n = tiles.n;
  // The row of a group is stored in place of its first one.
  std::uint32_t stride = 1;
#pragma unroll 1
  while (n > 1) {
    const std::uint32_t group = i / kGroup;
    const std::uint32_t left = n - group * kGroup;
    const std::uint32_t n_rows = left < kGroup ? left : kGroup;
    if (!StoreAndCount(*row, stored + std::uint64_t{i} * stride, count + group,
                       n_rows)) {
      return false;
    }
    *row = MergeStored(stored + std::uint64_t{group} * kGroup * stride, n_rows,
                       stride, extremes);
    n = (n + kGroup - 1) / kGroup;
    count += n;
    i = group;
    stride *= kGroup;
  }
  return true;
}

}  // namespace
}  // namespace tdbg::cuda
