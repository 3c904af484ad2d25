// The contract between host and device: the kernels' names, their parameters,
// and how a tensor is divided into tiles.
//
// Plain data and constexpr functions, compiled by g++ and by nvcc alike.
//
// The kernels, by name, with their parameters in order (as cuLaunchKernel takes
// them: an array of pointers to each):
//
//   tdbg_statistics         const TensorEntry* table, uint32_t n_entries,
//                           uint32_t n_tiles, DeviceRow* partials,
//                           uint32_t* counters, DeviceRow* rows
//   tdbg_statistics_inline  InlineTable table, and the same from n_entries on
//   tdbg_unit_counts        UnitEntry entry
//   tdbg_histogram          BinEntry entry
//
// All are launched with kBlockThreads threads in a block, those of statistics
// with kStatisticsThreads, no dynamic shared memory, and as many blocks as are
// resident at once or as there are tiles, whichever is less (at least 1): they
// take tiles until there are none.  The grid changes no bit of the result.
//
// Launches that share partials and counters must follow one another (a stream).

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "reducers/moments.h"

namespace tdbg::cuda {

inline constexpr char kStatisticsKernel[] = "tdbg_statistics";
inline constexpr char kInlineStatisticsKernel[] = "tdbg_statistics_inline";
inline constexpr char kUnitCountsKernel[] = "tdbg_unit_counts";
inline constexpr char kHistogramKernel[] = "tdbg_histogram";

inline constexpr std::uint32_t kBlockThreads = 256;
// Of the statistics kernels: blocks share nothing but a multiprocessor, and
// five such have 96 registers a thread.
inline constexpr std::uint32_t kStatisticsThreads = 128;

// A strided tensor has at most this many dimensions, after those that lie
// seamlessly in one another were merged.
inline constexpr std::uint32_t kMaxDims = 4;

// One tensor of a launch.
struct TensorEntry {
  std::uint64_t address;  // Of the first element, in device memory; aligned to
                          // the element.
  std::uint64_t count;    // Elements.
  double scale;           // As ReduceOptions::scale; 1 for integers and bool.
  // 0, or the address of a float32 in device memory: the row is then of
  // elements times scale / that (a gradient scaler's scale, never fetched).
  std::uint64_t divisor_address;
  std::uint32_t first_tile;  // Tiles of all entries before this.
  std::uint32_t row;         // Which of the launch's rows to write.
  std::uint32_t dtype;       // DType; HasStatistics.
  // 0: contiguous.  Else extents and strides (in bytes, which may be negative)
  // of so many dimensions, innermost last; a product of extents beyond
  // kMaxStridedCount is not taken.
  std::uint32_t n_dims;
  std::int64_t extents[kMaxDims];
  std::int64_t strides[kMaxDims];
};
static_assert(sizeof(TensorEntry) == 112);

inline constexpr std::uint64_t kMaxStridedCount = 0xffffffffU;

// Tables of at most so many entries travel as a parameter of the launch.
inline constexpr std::uint32_t kInlineEntries = 32;
struct InlineTable {
  TensorEntry entries[kInlineEntries];
};
static_assert(sizeof(InlineTable) <= 4000, "parameters have 4 KiB");

// The results of a launch for one tensor, and how to finish them
// (reducers/cuda/device_rows.h).
struct DeviceRow {
  Moments moments;
  // Mean, mean_low, m2 and l1 are those of the elements times 2^-exponent; only
  // float64 out of the range of squares has another than 0.
  std::int64_t exponent;
  // By which the host multiplies all that it finishes: scale / divisor.
  double scale;
};
static_assert(sizeof(DeviceRow) == 14 * 8);

// --- Tiles -------------------------------------------------------------------
//
// A tile is the unit of work, of one warp, and of merging.  Its size depends on
// the tensor's alone, so that bits depend on the data and on nothing else.
// Small tensors have small tiles, to occupy the device; large ones have larger
// tiles, because each costs a microsecond or two besides its reading.

[[nodiscard]] TDBG_HOST_DEVICE constexpr std::uint32_t TileLog2(
    std::uint64_t n_bytes) {
  if (n_bytes < (std::uint64_t{1} << 20)) return 13;
  if (n_bytes < (std::uint64_t{4} << 20)) return 14;
  return n_bytes < (std::uint64_t{64} << 20) ? 15 : 16;
}

// REQUIRES: item_size is 1, 2, 4 or 8.
[[nodiscard]] TDBG_HOST_DEVICE constexpr std::uint32_t TileElements(
    std::uint64_t count, std::uint32_t item_size) {
  return (std::uint32_t{1} << TileLog2(count * item_size)) / item_size;
}

// At least one, so that an empty tensor, too, has its row written.
[[nodiscard]] TDBG_HOST_DEVICE constexpr std::uint64_t TileCount(
    std::uint64_t count, std::uint32_t item_size) {
  const std::uint64_t n_bytes = count * item_size;
  return n_bytes == 0 ? 1 : ((n_bytes - 1) >> TileLog2(n_bytes)) + 1;
}

// Tiles of a launch: no more; DeviceRows of `partials`: as many as tiles.
inline constexpr std::uint32_t kMaxTiles = std::uint32_t{1} << 24;

// So many rows are merged at once: of tiles, then of groups of tiles, and so
// on.
inline constexpr std::uint32_t kGroup = 32;
// How often, of kMaxTiles.
inline constexpr std::uint32_t kMaxLevels = 5;

// The groups of all levels of the entries before `entry`, at most: of n tiles
// there are no more than n / 32 + 1, n / 1024 + 1, ...
[[nodiscard]] TDBG_HOST_DEVICE constexpr std::uint32_t FirstGroup(
    std::uint32_t first_tile, std::uint32_t entry) {
  return first_tile / (kGroup - 1) + entry * kMaxLevels;
}

// How many counters a launch needs.  They are zero before the first launch;
// each launch leaves them zero.
[[nodiscard]] TDBG_HOST_DEVICE constexpr std::size_t CounterCount(
    std::uint32_t n_entries, std::uint32_t n_tiles) {
  return std::size_t{2} + FirstGroup(n_tiles, n_entries);
}

// --- The opt-in kernels ------------------------------------------------------

// Counts per unit: docs/statistics.md, "The unit summary".
struct UnitEntry {
  std::uint64_t address;
  std::uint64_t n_units;
  std::int64_t unit_stride;      // Bytes from a unit's element to the next's.
  std::uint64_t count_per_unit;  // Elements of a unit; at most
                                 // kMaxStridedCount.
  double low;
  double high;
  // Device address of uint64 active[n_units], then out_of_range[n_units].  Zero
  // before the launch.
  std::uint64_t counts;
  std::uint32_t dtype;
  // The dimensions but that of the units, as in TensorEntry; 0: one element.
  std::uint32_t n_dims;
  std::int64_t extents[kMaxDims];
  std::int64_t strides[kMaxDims];
};
static_assert(sizeof(UnitEntry) == 128);

// Counts of bins: reducers/bins.h.
struct BinEntry {
  std::uint64_t address;
  std::uint64_t count;  // Less than 2^32.
  double scale;         // As TensorEntry's, and the next, too.
  std::uint64_t divisor_address;
  // Device address of uint32 bins[65536], by key.  Zero before the launch.
  std::uint64_t bins;
  std::uint32_t dtype;
  std::uint32_t n_dims;
  std::int64_t extents[kMaxDims];
  std::int64_t strides[kMaxDims];
};
static_assert(sizeof(BinEntry) == 112);

// Units of work of the opt-in kernels, for the size of the grid.
[[nodiscard]] constexpr std::uint64_t UnitTiles(const UnitEntry& entry) {
  return (entry.n_units * entry.count_per_unit + 8191) / 8192;
}
[[nodiscard]] constexpr std::uint64_t BinTiles(const BinEntry& entry) {
  return (entry.count + 32767) / 32768;
}

}  // namespace tdbg::cuda
