// CountBins counts the elements of a tensor by sign and magnitude: a log-linear
// histogram whose bins are the floats that share their upper 16 bits.
//
// Implements docs/statistics.md, "The histogram"; the same in NumPy is
// python/tdbg/stats/reference.py.  Counts are exact and depend on nothing but
// the elements.
//
// Thread safety: pure functions.  Each thread that counts keeps a table of a
// quarter of a MiB until it ends.

#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor_view.h"

namespace tdbg {

struct Implementation;

// The bins that have elements, by ascending key.
struct BinCounts {
  std::vector<std::uint16_t> keys;
  std::vector<std::uint64_t> counts;  // One for each key; none is 0.

  // Adds the elements that `other` counts.
  void Merge(const BinCounts& other);
};

// The key of the bin that `value` falls into.
[[nodiscard]] std::uint16_t BinKey(double value);

// Counts all elements, each multiplied by `scale` in double first.
// REQUIRES: as for Reduce (reducers/reduce.h): HasStatistics(view.dtype), on
// the CPU, at most 64 dimensions; `scale` is finite and not zero, and 1 for
// integers and bool.
[[nodiscard]] BinCounts CountBins(const TensorView& view, double scale = 1.0);

// CountBins by a given implementation.
// REQUIRES: also implementation.supported().
[[nodiscard]] BinCounts CountBinsWith(const TensorView& view, double scale,
                                      const Implementation& implementation);

}  // namespace tdbg
