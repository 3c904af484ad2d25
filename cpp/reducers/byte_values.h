// The 8-bit element types: what each of their 256 bit patterns means, and their
// statistics from a count of each.
//
// Thread safety: pure functions.

#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg {

using ByteCounts = std::array<std::uint64_t, 256>;

// The value of each bit pattern, in double (exact).  Bool: 0 is false, all
// else true.
// REQUIRES: ItemSize(dtype) == 1.
[[nodiscard]] const std::array<double, 256>& ByteValues(DType dtype);

// Adds to `*counts` how often each byte occurs among the `n` at `data`.
void CountBytes(const void* data, std::size_t n, ByteCounts* counts);

// The summary of elements of which counts[b] have the bit pattern b.
// REQUIRES: ItemSize(dtype) == 1.
[[nodiscard]] Summary SummaryOfBytes(const ByteCounts& counts, DType dtype);

}  // namespace tdbg
