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

#include "reducers/beside.h"
#include "reducers/implementation.h"
#include "reducers/moments.h"
#include "tensor/dtype.h"

namespace tdbg {

inline constexpr std::size_t kBlocksInSegment = 64;

[[nodiscard]] constexpr std::size_t SegmentElements(std::size_t item_size) {
  return kBlocksInSegment * BlockElements(item_size);
}

// Fewer bytes are left to the calling thread.  Measured: with so many, two
// threads gain where they lie in memory, and lose less where they lie in a
// cache (cpp/reducers/README.md).
inline constexpr std::size_t kLeastParallelBytes = std::size_t{4} << 20;

// Sets `*m` to the moments of `n` elements, on at most `n_threads` threads.
// REQUIRES: as Implementation::accumulate; and as Implementation::subtract
// where `beside` has something to subtract.
void AccumulateSegments(const std::byte* data, std::size_t n, DType dtype,
                        Pass pass, unsigned n_threads,
                        const Implementation& implementation, Moments* m,
                        Beside beside = {});

}  // namespace tdbg
