// Hashes of the rows of a tensor: two rows with the same hash are equal, but
// for a chance of 2^-64 (and for what a long row has between its blocks).
//
// A row's bytes are those of its elements in C order.  A row of up to kWholeRow
// bytes is hashed whole, by XXH64 with seed 0.  A longer row is hashed by
// kRowBlocks blocks of kRowBlockBytes, spread evenly from its first byte to its
// last, with its length as the seed.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/tensor_view.h"

namespace tdbg {

inline constexpr std::size_t kWholeRow = 2048;
inline constexpr std::size_t kRowBlocks = 32;
inline constexpr std::size_t kRowBlockBytes = 64;

// A varied row has so many different elements, among so many that are looked
// at.
inline constexpr std::size_t kVariety = 6;
inline constexpr std::uint64_t kVarietyLooks = 32;

// How many rows of so many bytes are hashed in one call at most: about 20 us.
inline constexpr std::uint64_t kMostRowHashes = 1024;
inline constexpr std::uint64_t kMostHashedBytes = 256U << 10U;

// How many of the rows of `n_bytes` bytes each are hashed: the first ones.
[[nodiscard]] std::uint64_t HashedRows(std::uint64_t n_rows,
                                       std::uint64_t n_bytes);

// Appends the hashes of the first rows (HashedRows) of a tensor, which is cut
// into `n_rows` along its first dimension.
// REQUIRES: the view is of the CPU and has a dimension; n_rows divides its
// first extent and is not 0.
void HashRows(const TensorView& view, std::uint64_t n_rows,
              std::vector<std::uint64_t>* out);

// Counts those of the first `n` rows that are varied: among elements spread
// over the row at least kVariety differ.  Two rows of that kind are not equal
// by chance, as those may be that have zeros and ones, or nothing but zeros.
// REQUIRES: as above; n_rows is at least n.
[[nodiscard]] std::uint64_t CountVaried(const TensorView& view,
                                        std::uint64_t n_rows, std::uint64_t n);

}  // namespace tdbg
