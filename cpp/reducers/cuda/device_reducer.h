// DeviceReducer launches tdbg's kernels on one device: statistics of many
// tensors at once, counts of units, histograms.
//
// A call puts work on the stream that it is given and returns; the results lie
// in device memory when the stream has come so far.  Up to kInlineEntries
// tensors travel with the launch; larger tables are uploaded from pinned
// memory, unless they are there already.  Into a graph that is being captured
// all tables travel with their launches, so that the graph owns them.
//
// Thread safety: none; its owner's lock.
//
// Errors: what the driver says.  Nothing is half done then that matters later:
// results of the call are undefined, and those of others hold.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "reducers/cuda/device.h"
#include "reducers/cuda/kernel_abi.h"
#include "reducers/cuda/scratch.h"
#include "reducers/cuda/table_cache.h"

namespace tdbg::cuda {

class DeviceReducer {
 public:
  // Tiles of a launch, unless one tensor alone has more.
  static constexpr std::uint32_t kTilesPerLaunch = 65536;

  // REQUIRES: `device` outlives this; a Scope of it is alive in every call.
  explicit DeviceReducer(Device* device)
      : device_(device), scratch_(device), tables_(device) {}

  // The row of entries[i] into the DeviceRow at rows[i].  Sets `row` and
  // `first_tile` of the entries.
  Status Statistics(std::span<TensorEntry> entries, DeviceAddress rows,
                    Place place);
  // Sets what the counts need to zero first.
  Status CountUnits(const UnitEntry& entry, Stream stream);
  Status CountBins(const BinEntry& entry, Stream stream);

  // Lets `stream` wait for all launches since the last join.
  Status Join(Stream stream) { return scratch_.Join(stream); }
  void Forget(std::uint64_t graph) { scratch_.Forget(graph); }

  // Whether no upload of a table is under way.
  [[nodiscard]] bool are_uploads_over() const { return tables_.is_over(); }
  [[nodiscard]] std::uint64_t n_launches() const { return n_launches_; }
  [[nodiscard]] std::uint64_t n_uploads() const { return tables_.n_uploads(); }

 private:
  Status LaunchTable(std::span<TensorEntry> entries, DeviceAddress rows,
                     Place place);
  Status LaunchInline(std::span<TensorEntry> entries, DeviceAddress rows,
                      Place place);
  template <typename Table>
  Status Launch(Kernel kernel, Table table, std::uint32_t n_entries,
                std::uint32_t n_tiles, DeviceAddress rows, Place place);
  template <typename Entry>
  Status CountOne(Kernel kernel, Entry entry, std::uint64_t n_tiles,
                  DeviceAddress counts, std::size_t n_bytes, Stream stream);

  Device* const device_;
  ScratchPool scratch_;
  TableCache tables_;
  std::uint64_t n_launches_ = 0;
};

}  // namespace tdbg::cuda
