// Arithmetic on sizes that come from outside: it says so when it overflows.
//
// Every length, count or offset read from a file goes through these before it
// bounds a read or an allocation.

#pragma once

#include <cstdint>

#include "base/check.h"

namespace tdbg {

// Stores a + b in `*out`; false, and `*out` unspecified, when it overflows.
[[nodiscard]] inline bool CheckedAdd(std::uint64_t a, std::uint64_t b,
                                     std::uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

// Stores a * b in `*out`; false, and `*out` unspecified, when it overflows.
[[nodiscard]] inline bool CheckedMul(std::uint64_t a, std::uint64_t b,
                                     std::uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}

// Rounds `n` up to a multiple of `alignment`; false when it overflows.
// REQUIRES: `alignment` is a power of two.
[[nodiscard]] inline bool CheckedAlign(std::uint64_t n, std::uint64_t alignment,
                                       std::uint64_t* out) {
  TDBG_DCHECK(alignment != 0 && (alignment & (alignment - 1)) == 0);
  if (!CheckedAdd(n, alignment - 1, out)) return false;
  *out &= ~(alignment - 1);
  return true;
}

}  // namespace tdbg
