// SHA-256 (FIPS 180-4), for names and identities; not on any fast path.
//
// Thread safety: pure functions.

#pragma once

#include <array>
#include <cstddef>

namespace tdbg {

[[nodiscard]] std::array<std::byte, 32> Sha256(const void* data, std::size_t n);

}  // namespace tdbg
