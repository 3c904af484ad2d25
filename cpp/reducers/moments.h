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

// The unit of folding, shifting and merging: half of a first-level cache.
inline constexpr std::size_t kBlockBytes = 16384;

// How many elements a block holds, without a division for small tensors to
// wait for.  REQUIRES: item_size is 1, 2, 4 or 8.
[[nodiscard]] constexpr std::size_t BlockElements(std::size_t item_size) {
  if (item_size == 8) return kBlockBytes / 8;
  return item_size == 4 ? kBlockBytes / 4 : kBlockBytes / 2;
}

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

// How to go over elements.
struct Pass {
  double factor = 1.0;   // Multiplies each element.
  bool precise = false;  // Floats of up to 32 bits as exactly as float64.
};

// Adds `n` contiguous elements at `data`, each multiplied by `pass.factor`, to
// `*moments`.  Empty input changes nothing.  NaN and Inf are counted and
// otherwise left out.  Accumulates in double, floats of up to 32 bits by way of
// sums of eight floats unless `pass.precise`; so within 1e-7 relative (floats
// of up to 32 bits) or 1e-12 (all others) of python/tdbg/stats/reference.py.
// Cannot fail and does not allocate.
//
// Squares of float64 beyond 1e140 or below 1e-130 may overflow or underflow
// in m2 and mean; counts, min, max, abs_min and l1 hold all the same.  The
// caller then accumulates again with a factor that brings them into range.
//
// REQUIRES: HasStatistics(dtype); `pass.factor` is 1, or dtype is kFloat64 and
// it is a power of two.
void AccumulatePortable(const void* data, std::size_t n, DType dtype, Pass pass,
                        Moments* moments);
void AccumulateAvx2(const void* data, std::size_t n, DType dtype, Pass pass,
                    Moments* moments);
void AccumulateAvx512(const void* data, std::size_t n, DType dtype, Pass pass,
                      Moments* moments);
// AVX-512 with instructions for bfloat16.
void AccumulateAvx512BFloat16(const void* data, std::size_t n, DType dtype,
                              Pass pass, Moments* moments);

}  // namespace tdbg
