// How the rows of warps, tiles and groups of tiles become that of a tensor.
//
// In trees whose shape depends on the number of tiles alone, whichever block
// does it: so bits depend on the data only.

#pragma once

#include <cstdint>

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

// Memory that the threads of a block share.
struct BlockState {
  DeviceRow rows[kTilesInGroup];
  std::uint32_t next_tile;
  std::uint32_t is_last;
};

// The counters of a launch, all zero before and after it.
struct Counters {
  std::uint32_t* next_tile;
  std::uint32_t* n_done;  // Blocks.
  std::uint32_t* groups;  // Of each entry: groups that are merged.
  std::uint32_t* tiles;   // Of each group: tiles that are.
};
__device__ __forceinline__ Counters CountersOf(std::uint32_t* counters,
                                               std::uint32_t n_entries) {
  return {counters, counters + 1, counters + 2, counters + 2 + n_entries};
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

// Merges rows[1] to rows[n - 1], in shared memory, into rows[0].  All threads;
// the rows were written before a barrier, the result is there after the next.
// REQUIRES: n <= kTilesInGroup.
__device__ __forceinline__ void MergeRows(std::uint32_t n,
                                          ExtremeClass extremes,
                                          DeviceRow* rows) {
#pragma unroll 1
  for (std::uint32_t half = kTilesInGroup / 2; half > 0; half /= 2) {
    if (half >= n) continue;
    if (threadIdx.x < half && threadIdx.x + half < n) {
      MergeRow(&rows[threadIdx.x + half], extremes, &rows[threadIdx.x]);
    }
    if (half > kLanes / 2) {
      __syncthreads();
    } else if (Warp() == 0) {
      __syncwarp();
    }
  }
}

// Merges `n` rows in device memory, `stride` apart, into state->rows[0].  All
// threads.
__device__ __forceinline__ void MergeStored(const DeviceRow* rows,
                                            std::uint32_t n,
                                            std::uint32_t stride,
                                            ExtremeClass extremes,
                                            BlockState* state) {
  if (threadIdx.x < kTilesInGroup && threadIdx.x < n) {
    DeviceRow* row = &state->rows[threadIdx.x];
    *row = LoadShared(rows + std::uint64_t{threadIdx.x} * stride);
#pragma unroll 1
    for (std::uint32_t i = threadIdx.x + kTilesInGroup; i < n;
         i += kTilesInGroup) {
      DeviceRow part = LoadShared(rows + std::uint64_t{i} * stride);
      MergeRow(&part, extremes, row);
    }
  }
  __syncthreads();
  MergeRows(n < kTilesInGroup ? n : kTilesInGroup, extremes, state->rows);
}

// Stores state->rows[0] and counts it; returns whether it is the last of `n`
// that are counted there.  All threads.
__device__ __forceinline__ bool StoreAndCount(DeviceRow* where,
                                              std::uint32_t* counter,
                                              std::uint32_t n,
                                              BlockState* state) {
  if (threadIdx.x == 0) {
    *where = state->rows[0];
    __threadfence();
    const bool is_last = atomicAdd(counter, 1U) + 1 == n;
    if (is_last) *counter = 0;
    state->is_last = is_last ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  return state->is_last != 0;
}

// A tile, and which tiles are its tensor's.
struct Tiles {
  std::uint32_t tile;
  std::uint32_t entry;
  std::uint32_t first;
  std::uint32_t n;
};

// Adds the tile whose row is state->rows[0] to its tensor; true where it was
// the last one, and state->rows[0] now holds the row of the tensor.  All
// threads.
__device__ __forceinline__ bool Publish(const Tiles& tiles,
                                        ExtremeClass extremes,
                                        const Counters& counters,
                                        DeviceRow* partials,
                                        BlockState* state) {
  if (tiles.n == 1) return true;
  const std::uint32_t group = (tiles.tile - tiles.first) / kTilesInGroup;
  const std::uint32_t first = tiles.first + group * kTilesInGroup;
  const std::uint32_t left = tiles.first + tiles.n - first;
  const std::uint32_t n_tiles = left < kTilesInGroup ? left : kTilesInGroup;
  // Groups before those of this tensor are no more than that.
  const std::uint32_t counter =
      tiles.first / kTilesInGroup + tiles.entry + group;
  if (!StoreAndCount(partials + tiles.tile, counters.tiles + counter, n_tiles,
                     state)) {
    return false;
  }
  MergeStored(partials + first, n_tiles, 1, extremes, state);
  const std::uint32_t n_groups = (tiles.n + kTilesInGroup - 1) / kTilesInGroup;
  if (n_groups == 1) return true;
  // In place of the group's first tile.
  if (!StoreAndCount(partials + first, counters.groups + tiles.entry, n_groups,
                     state)) {
    return false;
  }
  MergeStored(partials + tiles.first, n_groups, kTilesInGroup, extremes, state);
  return true;
}

}  // namespace
}  // namespace tdbg::cuda
