// Contiguous elements in segments of fixed size, one after the other or on
// several threads.
//
// A segment is 64 blocks.  Its moments do not depend on what comes before, and
// those of all segments merge in order: so the bits of a result do not depend
// on the number of threads.
//
// Thread safety: safe.

#pragma once

#include <cstddef>

#include "reducers/implementation.h"
#include "reducers/moments.h"
#include "tensor/dtype.h"

namespace tdbg {

inline constexpr std::size_t kBlocksInSegment = 64;

[[nodiscard]] constexpr std::size_t SegmentElements(std::size_t item_size) {
  return kBlocksInSegment * BlockElements(item_size);
}

// Fewer bytes are left to the calling thread.  Chosen, not measured: reading as
// much takes far longer than waking others.
inline constexpr std::size_t kLeastParallelBytes = std::size_t{4} << 20;

// The moments of no element.
inline void Clear(ExtremeClass extremes, Moments* m) {
  *m = {};
  m->abs_min = __builtin_huge_val();
  switch (extremes) {
    case ExtremeClass::kFloat64:
      m->min.f64 = __builtin_huge_val();
      m->max.f64 = -__builtin_huge_val();
      break;
    case ExtremeClass::kInt64:
      m->min.i64 = INT64_MAX;
      m->max.i64 = INT64_MIN;
      break;
    case ExtremeClass::kUInt64:
      m->min.u64 = UINT64_MAX;
      m->max.u64 = 0;
      break;
  }
}

// Makes `*m` the moments of both sets of elements.
void MergeMoments(const Moments& part, ExtremeClass extremes, Moments* m);

// Sets `*m` to the moments of `n` elements, on at most `n_threads` threads.
// REQUIRES: as Implementation::accumulate.
void AccumulateSegments(const std::byte* data, std::size_t n, DType dtype,
                        Pass pass, unsigned n_threads,
                        const Implementation& implementation, Moments* m);

}  // namespace tdbg
