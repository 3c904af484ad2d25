// The counters of a histogram and the kernels that fill them, one per
// instruction set.
//
// A bin is what shares the upper 16 bits of a float32: sign, exponent and seven
// bits of mantissa.  docs/statistics.md, "The histogram", says which bin an
// element of each type falls into.
//
// For the reason given in reducers/moments.h this header holds plain data and
// declarations only.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace tdbg {

// Keys with a meaning of their own.  The sign bit 0x8000 may be added to all
// but the first two.
inline constexpr std::uint16_t kZeroKey = 0;
inline constexpr std::uint16_t kNanKey = 0x7fc0;
inline constexpr std::uint16_t kLeastKey = 1;  // And all that is less.
inline constexpr std::uint16_t kInfinityKey = 0x7f80;
inline constexpr std::uint16_t kSignBit = 0x8000;

// Keys that no element has, for zeros that a kernel need not distinguish from
// them: a counter for each of some neighbors, so that none waits for another.
inline constexpr std::uint16_t kFirstSpareKey = 0xffc0;
inline constexpr std::size_t kSpareKeys = 32;

// Counts that fit the counters of a table: a kernel adds no more before they
// are emptied.
inline constexpr std::uint64_t kMostCounted = std::uint64_t{1} << 30;

// A quarter of a MiB.  All counters are zero before the first element.
struct BinTable {
  alignas(64) std::uint32_t counts[65536];
  std::uint64_t zeros;
  // The least and the greatest key of all elements but zeros, NaN included:
  // without its sign, and which signs there are.
  std::uint16_t least;
  std::uint16_t greatest;
  bool has_positive;
  bool has_negative;
};

// Adds `n` contiguous elements at `data`, each multiplied by `scale` in double,
// to `*table`.  Zeros are counted in `zeros` alone; the counters of spare keys
// are left with any value.  Cannot fail and does not allocate.
//
// REQUIRES: ItemSize(dtype) >= 2, HasStatistics(dtype); `scale` is 1 for
// integers; no more than kMostCounted elements are counted altogether.
void CountBinsPortable(const void* data, std::size_t n, DType dtype,
                       double scale, BinTable* table);
void CountBinsAvx2(const void* data, std::size_t n, DType dtype, double scale,
                   BinTable* table);
void CountBinsAvx512(const void* data, std::size_t n, DType dtype, double scale,
                     BinTable* table);

}  // namespace tdbg
