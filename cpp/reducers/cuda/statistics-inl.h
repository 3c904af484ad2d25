// The statistics kernel: blocks that stay, and take tiles of all tensors of a
// table until there are none.  Implements cpp/reducers/cuda/README.md.

#pragma once

#include <cstdint>

#include "reducers/cuda/device-inl.h"
#include "reducers/cuda/elements-inl.h"
#include "reducers/cuda/exact-inl.h"
#include "reducers/cuda/merge-inl.h"
#include "reducers/cuda/sums-inl.h"
#include "reducers/cuda/wide_sums-inl.h"
#include "tensor/extremes-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// 16-byte loads of a thread that are in flight together, twice: one lot is
// fetched while the other is summed.
constexpr int kLot = 2;

__device__ __forceinline__ void LoadLot(const Part& part, std::uint32_t row,
                                        Vec (&lot)[kLot]) {
#pragma unroll
  for (int k = 0; k < kLot; ++k) {
    const std::uint32_t i =
        (row + static_cast<std::uint32_t>(k)) * kBlockThreads + threadIdx.x;
    lot[k] = LoadVec(part.address + static_cast<std::uint64_t>(i) * 16);
  }
}

template <typename L>
__device__ __forceinline__ void AddLot(const Vec (&lot)[kLot], L* lanes) {
#pragma unroll
  for (int k = 0; k < kLot; ++k) lanes->Add(lot[k]);
}

// A warp's share of a part, into `*row` (which all lanes may read after the
// next barrier); false where it must be taken exactly.  All lanes.
template <typename L>
__device__ __forceinline__ bool TakeShare(const Part& part, DeviceRow* row) {
  using Bits = typename L::Element::Bits;
  const std::uint32_t n_vecs = part.n / L::kElements;
  const bool is_plain = part.n_dims == 0 && part.address % 16 == 0;
  // Rows of 16 bytes for each thread, all of them there.
  const std::uint32_t n_lots = is_plain ? n_vecs / kBlockThreads / kLot : 0;
  const auto vec = [&](std::uint32_t i) {
    return is_plain ? LoadVec(part.address + static_cast<std::uint64_t>(i) * 16)
                    : GatherVec<Bits>(part, i);
  };
  const std::uint32_t own = threadIdx.x;
  std::uint32_t n = 0;
  L lanes;
  std::uint32_t i = own;
  if (n_lots > 0) {
    Vec a[kLot];
    Vec b[kLot];
    LoadLot(part, 0, a);
    if (n_lots > 1) LoadLot(part, kLot, b);
    lanes.SetShift(a[0], true);
    for (std::uint32_t lot = 0;;) {
      AddLot(a, &lanes);
      if (++lot == n_lots) break;
      if (lot + 1 < n_lots) LoadLot(part, (lot + 1) * kLot, a);
      AddLot(b, &lanes);
      if (++lot == n_lots) break;
      if (lot + 1 < n_lots) LoadLot(part, (lot + 1) * kLot, b);
    }
    n = n_lots * kLot * L::kElements;
    i += n_lots * kLot * kBlockThreads;
  } else {
    const bool has = own < n_vecs;
    const Vec first = has ? vec(own) : Vec{};
    lanes.SetShift(first, has);
  }
#pragma unroll 1
  for (; i < n_vecs; i += kBlockThreads) {
    lanes.Add(vec(i));
    n += L::kElements;
  }
  const std::uint32_t last = n_vecs * L::kElements + own;
  if (last < part.n) {
    lanes.AddOne(Load<Bits>(AddressOf(part, last, sizeof(Bits))));
    ++n;
  }
  n = WarpSum32(n);
  Moments m{};
  bool ok = true;
  if (n == 0) {
    Clear(L::kExtremes, &m);
  } else {
    ok = lanes.Finish(n, &m);
    m.finite = n;
  }
  if (Lane() == 0) *row = {m, 0, 1.0};
  return ok;
}

__device__ __forceinline__ bool TakeShareOf(std::uint32_t dtype,
                                            const Part& part, DeviceRow* row) {
  switch (static_cast<DType>(dtype)) {
    case DType::kBool:
      return TakeShare<ShortLanes<TruthElement>>(part, row);
    case DType::kUInt8:
      return TakeShare<ShortLanes<UInt8Element>>(part, row);
    case DType::kInt8:
      return TakeShare<ShortLanes<Int8Element>>(part, row);
    case DType::kUInt16:
      return TakeShare<ShortLanes<UInt16Element>>(part, row);
    case DType::kInt16:
      return TakeShare<ShortLanes<Int16Element>>(part, row);
    case DType::kUInt32:
      return TakeShare<DoubleLanes<UInt32Element>>(part, row);
    case DType::kInt32:
      return TakeShare<DoubleLanes<Int32Element>>(part, row);
    case DType::kUInt64:
      return TakeShare<DoubleLanes<UInt64Element>>(part, row);
    case DType::kInt64:
      return TakeShare<DoubleLanes<Int64Element>>(part, row);
    case DType::kFloat64:
      return TakeShare<DoubleLanes<Float64Element>>(part, row);
    case DType::kFloat32:
      return TakeShare<FloatLanes>(part, row);
    case DType::kFloat16:
      return TakeShare<Float16Lanes>(part, row);
    case DType::kBFloat16:
      return TakeShare<BFloat16Lanes>(part, row);
    case DType::kFloat8E4M3Fn:
      return TakeShare<Float8Lanes<E4M3Halves>>(part, row);
    case DType::kFloat8E5M2:
      return TakeShare<Float8Lanes<E5M2Halves>>(part, row);
    default:  // float8 with patterns that float16 lacks.
      return false;
  }
}

__device__ __forceinline__ std::uint32_t ItemSizeOf(std::uint32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kUInt64:
    case DType::kInt64:
    case DType::kFloat64:
      return 8;
    case DType::kUInt32:
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kUInt16:
    case DType::kInt16:
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    default:
      return 1;
  }
}

// The entry that `tile` belongs to, `from` being that of an earlier tile.  All
// lanes.
__device__ __forceinline__ std::uint32_t EntryOf(const TensorEntry* table,
                                                 std::uint32_t n_entries,
                                                 std::uint32_t tile,
                                                 std::uint32_t from) {
  for (;;) {
    const std::uint32_t next = from + 1 + Lane();
    const bool begins = next < n_entries && table[next].first_tile <= tile;
    const std::uint32_t n_begun = __popc(__ballot_sync(kAllLanes, begins));
    from += n_begun;
    if (n_begun < kLanes) return from;
  }
}

// The elements of `tile`, one of `entry`'s.
__device__ __forceinline__ Part PartOf(const TensorEntry& entry,
                                       std::uint32_t tile, std::uint32_t size) {
  const std::uint32_t most = TileElements(entry.count, size);
  const std::uint64_t first =
      static_cast<std::uint64_t>(tile - entry.first_tile) * most;
  const std::uint64_t left = entry.count - first;
  const std::uint64_t skipped = entry.n_dims == 0 ? first * size : 0;
  return {entry.address + skipped,
          static_cast<std::uint32_t>(first),
          left < most ? static_cast<std::uint32_t>(left) : most,
          entry.n_dims,
          entry.extents,
          entry.strides};
}

__device__ __forceinline__ double ScaleOf(double scale,
                                          std::uint64_t divisor_address) {
  if (divisor_address == 0) return scale;
  return scale / static_cast<double>(Load<float>(divisor_address));
}

// The body of both kernels.
__device__ __forceinline__ void TakeTiles(
    const TensorEntry* table, std::uint32_t n_entries, std::uint32_t n_tiles,
    DeviceRow* partials, std::uint32_t* counters, DeviceRow* rows) {
  TDBG_SHARED(BlockState, state);
  const Counters of = CountersOf(counters, n_entries);
  std::uint32_t entry_index = 0;
  std::uint32_t tile = blockIdx.x;
  while (tile < n_tiles) {
    // Asked for early: the answer takes as long as the tile.
    std::uint32_t next = 0;
    if (threadIdx.x == 0) next = gridDim.x + atomicAdd(of.next_tile, 1U);
    entry_index = EntryOf(table, n_entries, tile, entry_index);
    const TensorEntry& entry = table[entry_index];
    const std::uint32_t size = ItemSizeOf(entry.dtype);
    const ExtremeClass extremes = ExtremesOf(static_cast<DType>(entry.dtype));
    const Part part = PartOf(entry, tile, size);
    DeviceRow* share = &state.rows[Warp()];
    if (!TakeShareOf(entry.dtype, part, share)) {
      TakeExactly(part, entry.dtype, size, share);
    }
    if (threadIdx.x == 0) state.next_tile = next;
    __syncthreads();
    MergeRows(kWarps, extremes, state.rows);
    const Tiles tiles{tile, entry_index, entry.first_tile,
                      static_cast<std::uint32_t>(TileCount(entry.count, size))};
    const bool is_whole = Publish(tiles, extremes, of, partials, &state);
    if (is_whole && threadIdx.x == 0) {
      DeviceRow row = state.rows[0];
      row.scale = ScaleOf(entry.scale, entry.divisor_address);
      rows[entry.row] = row;
    }
    tile = state.next_tile;
    __syncthreads();
  }
  if (threadIdx.x == 0 && atomicAdd(of.n_done, 1U) + 1 == gridDim.x) {
    *of.next_tile = 0;
    *of.n_done = 0;
  }
}

}  // namespace
}  // namespace tdbg::cuda
