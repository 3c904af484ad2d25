// The statistics kernel: warps that stay, and take tiles of all tensors of a
// table until there are none.  Implements cpp/reducers/cuda/README.md.

#pragma once

#include <cstdint>

#include "reducers/cuda/ahead-inl.h"
#include "reducers/cuda/device-inl.h"
#include "reducers/cuda/elements-inl.h"
#include "reducers/cuda/exact-inl.h"
#include "reducers/cuda/merge-inl.h"
#include "reducers/cuda/sums-inl.h"
#include "reducers/cuda/wide_sums-inl.h"
#include "tensor/extremes-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// Rows of 16 bytes for each lane that the shift is made of, where there are so
// many.
constexpr std::uint32_t kSampledRows = 8;
static_assert(kSampledRows == kLots * kLotRows);

// The sum of what is sampled of row(0), row(1) and so on.  By twos, so that the
// mean of equal elements is exactly that.
template <typename L, typename Row>
__device__ __forceinline__ auto SampleRows(Row row) {
  using Sum = decltype(L::Sample(Vec{}));
  Sum one = 0;
  Sum two = 0;
  Sum four = 0;
#pragma unroll 1
  for (std::uint32_t k = 0; k < kSampledRows; ++k) {
    Sum sum = L::Sample(row(k));
    if (k % 2 == 0) {
      one = sum;
      continue;
    }
    sum += one;
    if (k % 4 == 1) {
      two = sum;
      continue;
    }
    sum += two;
    if (k == 3) {
      four = sum;
    } else {
      four += sum;
    }
  }
  return four;
}

// The sums of a tile, by one warp; false where it must be taken exactly.  All
// lanes.
template <typename L>
__device__ __forceinline__ bool TakeQuickly(const Part& part,
                                            const Stretch& own, Loads* loads,
                                            Moments* m) {
  using Bits = typename L::Element::Bits;
  const std::uint32_t n_vecs = part.n / L::kElements;
  const bool is_plain = part.n_dims == 0 && part.address % 16 == 0;
  const auto vec = [&](std::uint32_t i) {
    return is_plain ? LoadVec(part.address + static_cast<std::uint64_t>(i) * 16)
                    : GatherVec<Bits>(part, i);
  };
  L lanes;
  if (n_vecs >= kSampledRows * kLanes) {
    const bool has_lots = own.n_lots > 0;
    if (has_lots) WaitForLots();
    const auto row = [&](std::uint32_t k) {
      return has_lots ? loads->Row(k % kLotRows, k / kLotRows)
                      : vec(k * kLanes + Lane());
    };
    lanes.SetShift(SampleRows<L>(row), true, L::kSampled * kSampledRows);
  } else {
    const bool has = Lane() < n_vecs;
    lanes.SetShift(L::Sample(has ? vec(Lane()) : Vec{}), has, L::kSampled);
  }
#pragma unroll 1
  for (std::uint32_t lot = 0; lot < own.n_lots; ++lot) {
    WaitForLot();
#pragma unroll(L::kElements == 16 ? 1 : kLotRows)
    for (std::uint32_t k = 0; k < kLotRows; ++k) lanes.Add(loads->Row(k));
    loads->Leave(own, lot);
  }
#pragma unroll 1
  for (std::uint32_t i = own.n_lots * kLotRows * kLanes + Lane(); i < n_vecs;
       i += kLanes) {
    lanes.Add(vec(i));
  }
  const std::uint32_t last = n_vecs * L::kElements + Lane();
  if (last < part.n) {
    lanes.AddOne(Load<Bits>(AddressOf(part, last, sizeof(Bits))));
  }
  if (part.n == 0) {
    Clear(L::kExtremes, m);
    return true;
  }
  *m = {};
  m->finite = part.n;
  return lanes.Finish(part.n, m);
}

__device__ __forceinline__ bool TakeQuicklyOf(std::uint32_t dtype,
                                              const Part& part,
                                              const Stretch& own, Loads* loads,
                                              Moments* m) {
  switch (static_cast<DType>(dtype)) {
    case DType::kBool:
      return TakeQuickly<ShortLanes<TruthElement>>(part, own, loads, m);
    case DType::kUInt8:
      return TakeQuickly<ShortLanes<UInt8Element>>(part, own, loads, m);
    case DType::kInt8:
      return TakeQuickly<ShortLanes<Int8Element>>(part, own, loads, m);
    case DType::kUInt16:
      return TakeQuickly<ShortLanes<UInt16Element>>(part, own, loads, m);
    case DType::kInt16:
      return TakeQuickly<ShortLanes<Int16Element>>(part, own, loads, m);
    case DType::kUInt32:
      return TakeQuickly<DoubleLanes<UInt32Element>>(part, own, loads, m);
    case DType::kInt32:
      return TakeQuickly<DoubleLanes<Int32Element>>(part, own, loads, m);
    case DType::kUInt64:
      return TakeQuickly<DoubleLanes<UInt64Element>>(part, own, loads, m);
    case DType::kInt64:
      return TakeQuickly<DoubleLanes<Int64Element>>(part, own, loads, m);
    case DType::kFloat64:
      return TakeQuickly<DoubleLanes<Float64Element>>(part, own, loads, m);
    case DType::kFloat32:
      return TakeQuickly<FloatLanes>(part, own, loads, m);
    case DType::kFloat16:
      return TakeQuickly<Float16Lanes>(part, own, loads, m);
    case DType::kBFloat16:
      return TakeQuickly<BFloat16Lanes>(part, own, loads, m);
    case DType::kFloat8E4M3Fn:
      return TakeQuickly<Float8Lanes<E4M3Halves>>(part, own, loads, m);
    case DType::kFloat8E5M2:
      return TakeQuickly<Float8Lanes<E5M2Halves>>(part, own, loads, m);
    default:  // IsQuick is false.
      return false;
  }
}

// Not float8 with patterns that float16 lacks.
__device__ __forceinline__ bool IsQuick(std::uint32_t dtype) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat8E4M3FnUz:
    case DType::kFloat8E5M2FnUz:
    case DType::kFloat8E8M0Fnu:
      return false;
    default:
      return true;
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

// What of `tile` is loaded ahead.
__device__ __forceinline__ Stretch StretchOf(const TensorEntry& entry,
                                             std::uint32_t tile) {
  const std::uint32_t size = ItemSizeOf(entry.dtype);
  const Part part = PartOf(entry, tile, size);
  if (part.n_dims != 0 || part.address % 16 != 0 || !IsQuick(entry.dtype)) {
    return {};
  }
  return {part.address + Lane() * 16, part.n * size / kLotBytes};
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
  TDBG_SHARED(LoadBuffer, buffer);
  const Counters of = CountersOf(counters);
  const std::uint32_t n_warps = gridDim.x * kStatisticsWarps;
  // Few tiles go to as many multiprocessors as there are.
  std::uint32_t tile = Warp() * gridDim.x + blockIdx.x;
  if (tile >= n_tiles) return;
  std::uint32_t index = EntryOf(table, n_entries, tile, 0);
  Loads loads(&buffer);
  Stretch own = StretchOf(table[index], tile);
  loads.Enter({}, own);
  std::uint32_t next = tile + n_warps;
  // The first two tiles of each warp are not taken from the counter.
  const bool is_counted = n_tiles > 2 * n_warps;
  for (;;) {
    // Asked for early: the answer takes as long as the tile.
    std::uint32_t later = 0;
    const bool is_last = next >= n_tiles;
    if (is_counted && !is_last && Lane() == 0) {
      later = atomicAdd(of.next_tile, 1U);
    }
    std::uint32_t next_index = index;
    Stretch ahead;
    if (!is_last) {
      next_index = EntryOf(table, n_entries, next, index);
      ahead = StretchOf(table[next_index], next);
    }
    loads.Enter(own, ahead);
    const TensorEntry& entry = table[index];
    const std::uint32_t size = ItemSizeOf(entry.dtype);
    const ExtremeClass extremes = ExtremesOf(static_cast<DType>(entry.dtype));
    const Part part = PartOf(entry, tile, size);
    DeviceRow row;
    row.exponent = 0;
    row.scale = 1.0;
    if (!TakeQuicklyOf(entry.dtype, part, own, &loads, &row.moments)) {
      TakeExactly(part, entry.dtype, size, &row);
    }
    const Tiles tiles{tile, index, entry.first_tile,
                      static_cast<std::uint32_t>(TileCount(entry.count, size))};
    if (Publish(tiles, extremes, of, partials, &row) && Lane() == 0) {
      row.scale = ScaleOf(entry.scale, entry.divisor_address);
      rows[entry.row] = row;
    }
    if (is_last) break;
    tile = next;
    index = next_index;
    own = ahead;
    next = is_counted ? 2 * n_warps + WarpSum32(later) : n_tiles;
  }
  if (is_counted && Lane() == 0 && atomicAdd(of.n_done, 1U) + 1 == n_warps) {
    *of.next_tile = 0;
    *of.n_done = 0;
  }
}

}  // namespace
}  // namespace tdbg::cuda
