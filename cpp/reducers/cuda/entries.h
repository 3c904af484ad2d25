// Tensors as the kernels take them.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/cuda/kernel_abi.h"
#include "tensor/tensor_view.h"

namespace tdbg::cuda {

// Of a launch's table.
inline constexpr std::uint32_t kMaxEntries = 1024;

// Counters of a histogram.
inline constexpr std::size_t kBins = 65536;

// Dimensions that lie seamlessly in one another are merged; false where more
// than kMaxDims are left, or where the address is not aligned to the element.
// `entry->row` and `entry->first_tile` are the caller's.
// REQUIRES: HasStatistics(view.dtype), at most 64 dimensions.
bool ToTensorEntry(const TensorView& view, double scale, const void* divisor,
                   TensorEntry* entry);

// Sets an entry for the counts of the units along `axis`.
bool ToUnitEntry(const TensorView& view, std::size_t axis, double low,
                 double high, UnitEntry* entry);

// Sets an entry for the bins of a histogram.
bool ToBinEntry(const TensorView& view, double scale, const void* divisor,
                BinEntry* entry);

// Tiles of an entry of a table.
[[nodiscard]] std::uint64_t TilesOf(const TensorEntry& entry);

}  // namespace tdbg::cuda
