// Moments is the running state of the statistics kernel, and the kernel's
// entry points, one per instruction set.
//
// The translation units of the instruction sets are compiled with flags that
// other processors cannot run.  So that no function of theirs can be chosen by
// the linker for the rest of the program, this header holds plain data and
// declarations only, and theirs define nothing with external linkage but the
// entry point.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg {

// How many elements a block holds: the unit of folding, shifting and merging.
inline constexpr std::size_t kBlockElements = 2048;

// All but the first three fields cover the finite elements only.
struct Moments {
  std::uint64_t nan;
  std::uint64_t positive_infinity;
  std::uint64_t negative_infinity;
  std::uint64_t finite;
  std::uint64_t zero;
  Extreme min;  // In the class of the dtype.
  Extreme max;
  double abs_min;
  // The mean is mean + mean_low, as exact as a double-double: data whose
  // spread is tiny beside their mean need it when blocks merge.
  double mean;
  double mean_low;
  double m2;
  double l1;
};

// Adds `n` contiguous elements at `data`, each multiplied by `factor`, to
// `*moments`.  Empty input changes nothing.  NaN and Inf are counted and
// otherwise left out.  Accumulates in double, floats of up to 32 bits by way of
// sums of four floats; so within 1e-7 relative (floats of up to 32 bits) or
// 1e-12 (all others) of python/tdbg/reference.py.  Cannot fail and does not
// allocate.
//
// Squares of float64 beyond 1e140 or below 1e-130 may overflow or underflow
// in m2 and mean; counts, min, max, abs_min and l1 hold all the same.  The
// caller then accumulates again with a `factor` that brings them into range.
//
// REQUIRES: ItemSize(dtype) >= 2 and HasStatistics(dtype); `factor` is 1, or
// dtype is kFloat64 and `factor` a power of two.
void AccumulatePortable(const void* data, std::size_t n, DType dtype,
                        double factor, Moments* moments);
void AccumulateAvx2(const void* data, std::size_t n, DType dtype, double factor,
                    Moments* moments);
void AccumulateAvx512(const void* data, std::size_t n, DType dtype,
                      double factor, Moments* moments);

}  // namespace tdbg
