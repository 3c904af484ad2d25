// The 8-bit element types: what each of their 256 bit patterns means, and
// how often each occurs.
//
// Thread safety: pure functions.

#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace tdbg {

using ByteCounts = std::array<std::uint64_t, 256>;

// The value of each bit pattern, in double (exact).  Bool: 0 is false, all
// else true.
// REQUIRES: ItemSize(dtype) == 1.
[[nodiscard]] const std::array<double, 256>& ByteValues(DType dtype);

// The data of ByteValues, for the files of instruction sets
// (reducers/moments.h).
[[nodiscard]] const double* ByteValueTable(DType dtype);

// Adds to `*counts` how often each byte occurs among the `n` at `data`.
void CountBytes(const void* data, std::size_t n, ByteCounts* counts);

}  // namespace tdbg
