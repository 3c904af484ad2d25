// Reduce computes the statistics row of a tensor in one pass over its memory.
//
// Implements docs/statistics.md.  The definitions are those of the Python
// reference (python/tdbg/stats/reference.py): float64, two passes.  Every
// implementation agrees with it within 1e-7 relative for floats of up to 32
// bits (means: relative to the mean of |x|; m2, being a square: 2e-7) and 1e-12
// for float64 and integers; counts, minima and maxima agree exactly.
//
// Blocks have a fixed size and merge in a fixed order, the order of the
// elements in memory.  So the bits of a result depend on the implementation and
// on the layout (a transposed tensor's may differ from those of its contiguous
// copy, within the bound), but on neither alignment nor threads.
//
// Thread safety: pure functions; the implementation is chosen once, at the
// first call.

#pragma once

#include <cstddef>
#include <span>

#include "base/check.h"
#include "reducers/beside.h"
#include "tensor/summary.h"
#include "tensor/tensor_view.h"

namespace tdbg {

struct Implementation;

struct ReduceOptions {
  // Multiplies each element first (gradients that a fused optimizer will
  // unscale itself).  Products are formed in double: those of float32 do not
  // overflow.
  double scale = 1.0;
  // Floats of up to 32 bits as exactly as float64: within 1e-12.
  bool precise = false;
  // At most this many, and only where a tensor is large enough to gain.
  unsigned n_threads = 1;
  // What is subtracted from the elements first, each difference rounded to
  // their type (the row is then that of a tensor of the differences, bit by
  // bit), and where the elements are copied; both laid out as the tensor.
  // REQUIRES: the view is dense, its data aligned to its elements; for `minus`
  // also HasDifference(view.dtype), scale == 1.
  Beside beside = {};
};

// Whether the elements lie side by side, in any order of dimensions: then
// `*first` is the first one in memory.
[[nodiscard]] bool IsDense(const TensorView& view, const std::byte** first);

// Makes the differences of the elements and those in `minus`, in the latter.
// REQUIRES: as ReduceOptions::beside.
void SubtractInto(const TensorView& view, std::byte* minus);

// The row of all elements.  Cannot fail.
// REQUIRES: HasStatistics(view.dtype), view.device == DeviceKind::kCpu, at most
// 64 dimensions; options.scale is finite and not zero, and 1 for integers and
// bool.
[[nodiscard]] Summary Reduce(const TensorView& view,
                             const ReduceOptions& options = {});

// Reduce by a given implementation.
// REQUIRES: also implementation.supported().
[[nodiscard]] Summary ReduceWith(const TensorView& view,
                                 const ReduceOptions& options,
                                 const Implementation& implementation);

// Counts per unit: `axis` indexes the units, all other dimensions are counted
// over.  An element is active if > 0 and out of range if < low, > high or
// NaN, all as doubles.  Adds to `units`. REQUIRES: HasStatistics(view.dtype),
// view.device == DeviceKind::kCpu, at most 64 dimensions, axis <
// view.shape.size(), units.size() == view.shape[axis].
void CountUnits(const TensorView& view, std::size_t axis, double low,
                double high, std::span<UnitCounts> units);

// CountUnits by a given implementation.
// REQUIRES: also implementation.supported().
void CountUnitsWith(const TensorView& view, std::size_t axis, double low,
                    double high, const Implementation& implementation,
                    std::span<UnitCounts> units);

// The dimension that holds the units of an activation of `n_dims` dimensions:
// 1 (channels) when there are more than two, else the last.
// REQUIRES: n_dims >= 1.
[[nodiscard]] inline std::size_t UnitAxis(std::size_t n_dims) {
  TDBG_DCHECK(n_dims >= 1);
  return n_dims > 2 ? 1 : n_dims - 1;
}

}  // namespace tdbg
