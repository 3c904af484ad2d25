// Counts per unit: docs/statistics.md, "The unit summary".
//
// Where units lie side by side, a lane counts a unit over some of its elements;
// elsewhere a warp does.  Counts are integers: their order changes nothing.

#pragma once

#include <cstdint>

#include "reducers/cuda/device-inl.h"
#include "reducers/cuda/elements-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

// Elements of a unit that a lane, or a warp, counts at once.
constexpr std::uint32_t kLaneShare = 256;
constexpr std::uint32_t kWarpShare = 8192;

struct UnitCounter {
  double low;
  double high;
  std::uint32_t active = 0;
  std::uint32_t out_of_range = 0;

  __device__ void Add(double x) {
    active += x > 0 ? 1 : 0;
    // NaN, too.
    out_of_range += x >= low && x <= high ? 0 : 1;
  }
};

__device__ inline void AddCount(std::uint64_t counts, std::uint64_t index,
                                std::uint32_t n) {
  if (n == 0) return;
  auto* counter = reinterpret_cast<unsigned long long*>(counts) + index;
  atomicAdd(counter, static_cast<unsigned long long>(n));
}

template <typename E>
__device__ inline void CountUnits(const UnitEntry& entry, bool lanes_are_units,
                                  std::uint64_t n_work) {
  using Bits = typename E::Bits;
  const auto per_unit = static_cast<std::uint32_t>(entry.count_per_unit);
  const std::uint32_t share = lanes_are_units ? kLaneShare : kWarpShare;
  const std::uint32_t n_shares = (per_unit - 1) / share + 1;
  const std::uint64_t n_warps = std::uint64_t{gridDim.x} * kWarps;
  for (std::uint64_t work = std::uint64_t{blockIdx.x} * kWarps + Warp();
       work < n_work; work += n_warps) {
    const std::uint64_t group = work / n_shares;
    const std::uint64_t unit =
        lanes_are_units ? group * kLanes + Lane() : group;
    const bool is_there = unit < entry.n_units;
    const auto first = static_cast<std::uint32_t>(work % n_shares) * share;
    const std::uint32_t left = per_unit - first;
    const std::uint32_t n = !is_there ? 0 : left < share ? left : share;
    const Part part{entry.address + static_cast<std::uint64_t>(
                                        static_cast<std::int64_t>(unit) *
                                        entry.unit_stride),
                    0,
                    per_unit,
                    entry.n_dims,
                    entry.extents,
                    entry.strides};
    UnitCounter counter{entry.low, entry.high};
    const std::uint32_t begin = lanes_are_units ? 0 : Lane();
    const std::uint32_t step = lanes_are_units ? 1 : kLanes;
    for (std::uint32_t i = begin; i < n; i += step) {
      counter.Add(
          E::Value(Load<Bits>(AddressOf(part, first + i, sizeof(Bits)))));
    }
    if (!lanes_are_units) {
      counter.active = WarpSum32(counter.active);
      counter.out_of_range = WarpSum32(counter.out_of_range);
      if (Lane() != 0) continue;
    }
    if (!is_there) continue;
    AddCount(entry.counts, unit, counter.active);
    AddCount(entry.counts, entry.n_units + unit, counter.out_of_range);
  }
}

__device__ inline void CountUnitsOfEntry(const UnitEntry& entry) {
  if (entry.n_units == 0 || entry.count_per_unit == 0) return;
  std::int64_t inner = entry.n_dims == 0 ? 0 : entry.strides[entry.n_dims - 1];
  std::int64_t outer = entry.unit_stride;
  if (inner < 0) inner = -inner;
  if (outer < 0) outer = -outer;
  const bool lanes_are_units = entry.count_per_unit == 1 || outer < inner;
  const std::uint32_t share = lanes_are_units ? kLaneShare : kWarpShare;
  const std::uint64_t n_groups =
      lanes_are_units ? (entry.n_units + kLanes - 1) / kLanes : entry.n_units;
  const std::uint64_t n_shares = (entry.count_per_unit - 1) / share + 1;
  WithElement(entry.dtype, [&]<typename E>() {
    CountUnits<E>(entry, lanes_are_units, n_groups * n_shares);
  });
}

}  // namespace
}  // namespace tdbg::cuda
