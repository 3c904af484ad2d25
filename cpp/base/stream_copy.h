// StreamCopy is memcpy for memory that its reader will find out of cache
// anyway: large values on their way through a queue.  An ordinary store first
// fetches the line that it then overwrites, and puts it in the place of one
// that the caller still needs; a streaming store does neither.
//
// Thread safety: as memcpy; the bytes are in place, for whoever is told so with
// a release store, when it returns.

#pragma once

#include <cstddef>

namespace tdbg {

// Below this, what was copied is better left in the cache for its reader.
inline constexpr std::size_t kMinStream = 128U << 10;

// REQUIRES: as memcpy.
void StreamCopy(std::byte* out, const std::byte* from, std::size_t n);

}  // namespace tdbg
