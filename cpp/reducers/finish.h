// From the moments of a tensor to its row.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "reducers/moments.h"
#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg {

// How the moments of a tensor were taken.
struct MomentsOf {
  std::uint64_t count = 0;  // All elements.
  DType dtype = DType::kInvalid;
  // Mean, m2 and l1 are those of the elements times 2^-exponent.
  int exponent = 0;
  double scale = 1.0;  // As ReduceOptions::scale.
};

// The power of two that brings squares of float64 elements between `min` and
// `max` into range; 0 where they are.
[[nodiscard]] int RangeExponent(double min, double max);

// Whether the moments of the elements times `scale` follow from those of the
// elements: no product overflows or becomes zero, and no square does.
[[nodiscard]] bool FollowsFromElements(const Moments& m, DType dtype,
                                       double scale);

// The row.  REQUIRES: HasStatistics(of.dtype).
[[nodiscard]] Summary Finish(const Moments& m, const MomentsOf& of);

}  // namespace tdbg
