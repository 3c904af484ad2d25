#include "reducers/cuda/device_reducer.h"

#include <algorithm>
#include <array>

#include "reducers/cuda/entries.h"

namespace tdbg::cuda {
namespace {

// Numbers rows and tiles from zero, so that a table does not depend on where
// its results go; returns the tiles.
std::uint32_t Number(std::span<TensorEntry> entries) {
  std::uint32_t n_tiles = 0;
  for (std::uint32_t i = 0; i < entries.size(); ++i) {
    entries[i].row = i;
    entries[i].first_tile = n_tiles;
    n_tiles += static_cast<std::uint32_t>(TilesOf(entries[i]));
  }
  return n_tiles;
}

}  // namespace

Status DeviceReducer::Statistics(std::span<TensorEntry> entries,
                                 DeviceAddress rows, Place place) {
  while (!entries.empty()) {
    std::size_t n = 0;
    std::uint64_t n_tiles = 0;
    while (n < entries.size() && n < kMaxEntries) {
      n_tiles += TilesOf(entries[n]);
      if (n > 0 && n_tiles > kTilesPerLaunch) break;
      ++n;
    }
    const auto part = entries.first(n);
    const bool is_inline = place.graph != 0 || n <= kInlineEntries;
    TDBG_RETURN_IF_ERROR(is_inline ? LaunchInline(part, rows, place)
                                   : LaunchTable(part, rows, place));
    entries = entries.subspan(n);
    rows += n * sizeof(DeviceRow);
  }
  return Status::Ok();
}

Status DeviceReducer::LaunchTable(std::span<TensorEntry> entries,
                                  DeviceAddress rows, Place place) {
  const std::uint32_t n_tiles = Number(entries);
  Result<TableCache::Table*> table = tables_.For(entries, place.stream);
  if (!table.ok()) return table.status();
  if (table.value() == nullptr) return LaunchInline(entries, rows, place);
  const Status launched =
      Launch(Kernel::kStatistics, table.value()->device,
             static_cast<std::uint32_t>(entries.size()), n_tiles, rows, place);
  // Even where nothing was launched: the upload may be under way.
  const Status used = tables_.Used(table.value());
  return launched.ok() ? used : launched;
}

Status DeviceReducer::LaunchInline(std::span<TensorEntry> entries,
                                   DeviceAddress rows, Place place) {
  while (!entries.empty()) {
    const auto part =
        entries.first(std::min<std::size_t>(entries.size(), kInlineEntries));
    const std::uint32_t n_tiles = Number(part);
    InlineTable table{};
    std::copy(part.begin(), part.end(), table.entries);
    TDBG_RETURN_IF_ERROR(Launch(Kernel::kInlineStatistics, table,
                                static_cast<std::uint32_t>(part.size()),
                                n_tiles, rows, place));
    entries = entries.subspan(part.size());
    rows += part.size() * sizeof(DeviceRow);
  }
  return Status::Ok();
}

template <typename Table>
Status DeviceReducer::Launch(Kernel kernel, Table table,
                             std::uint32_t n_entries, std::uint32_t n_tiles,
                             DeviceAddress rows, Place place) {
  Result<ScratchPool::Scratch*> scratch = scratch_.For(place, n_tiles);
  if (!scratch.ok()) return scratch.status();
  DeviceAddress partials = scratch.value()->memory.partials;
  DeviceAddress counters = scratch.value()->memory.counters;
  std::array<void*, 6> arguments = {&table,    &n_entries, &n_tiles,
                                    &partials, &counters,  &rows};
  ++n_launches_;
  TDBG_RETURN_IF_ERROR(
      device_->Launch(kernel, n_tiles, place.stream, arguments.data()));
  return scratch_.Launched(scratch.value());
}

template <typename Entry>
Status DeviceReducer::CountOne(Kernel kernel, Entry entry,
                               std::uint64_t n_tiles, DeviceAddress counts,
                               std::size_t n_bytes, Stream stream) {
  const Driver& driver = device_->driver();
  TDBG_RETURN_IF_ERROR(driver.Check(driver.memset(counts, 0, n_bytes, stream),
                                    "cuMemsetD8Async"));
  std::array<void*, 1> arguments = {&entry};
  ++n_launches_;
  return device_->Launch(kernel, n_tiles, stream, arguments.data());
}

Status DeviceReducer::CountUnits(const UnitEntry& entry, Stream stream) {
  return CountOne(Kernel::kUnitCounts, entry, UnitTiles(entry), entry.counts,
                  2 * entry.n_units * sizeof(std::uint64_t), stream);
}

Status DeviceReducer::CountBins(const BinEntry& entry, Stream stream) {
  return CountOne(Kernel::kHistogram, entry, BinTiles(entry), entry.bins,
                  kBins * sizeof(std::uint32_t), stream);
}

}  // namespace tdbg::cuda
