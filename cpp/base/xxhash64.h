// XXH64 (xxHash of 64 bits), for rows of data: fast, and the same everywhere.
// It protects from nobody who wants two inputs to have the same hash.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tdbg {

// The hash of these bytes, as the reference implementation has it.
[[nodiscard]] std::uint64_t XxHash64(const void* data, std::size_t n,
                                     std::uint64_t seed = 0);

}  // namespace tdbg
