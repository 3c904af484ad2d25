// TableCache keeps tables of launches on the device, with their pinned sources:
// a table in which nothing changed is not uploaded again.
//
// Thread safety: none; its owner's lock.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reducers/cuda/device.h"
#include "reducers/cuda/kernel_abi.h"

namespace tdbg::cuda {

class TableCache {
 public:
  static constexpr std::size_t kMaxTables = 16;

  struct Table {
    DeviceAddress device = 0;
    std::byte* host = nullptr;
    EventHandle event = nullptr;  // Recorded after its last launch.

    std::vector<TensorEntry> entries;  // Its contents.
    Stream stream = nullptr;           // On which it was uploaded.
    std::uint64_t last_used = 0;
  };

  // REQUIRES: `device` outlives this; a Scope of it is alive in every call.
  explicit TableCache(Device* device) : device_(device) {}

  // A table of these entries that launches on `stream` may use; null when all
  // are in use by launches that have not ended.
  // REQUIRES: at most kMaxEntries; `stream` is not being captured.
  Result<Table*> For(std::span<const TensorEntry> entries, Stream stream);
  // After the launch.
  Status Used(Table* table);

  // Whether nothing uses a table now.
  [[nodiscard]] bool is_over() const;
  [[nodiscard]] std::uint64_t n_uploads() const { return n_uploads_; }

 private:
  Result<Table*> Free();
  Status Upload(std::span<const TensorEntry> entries, Stream stream,
                Table* table);

  Device* const device_;
  std::vector<Table> tables_;
  std::uint64_t clock_ = 0;
  std::uint64_t n_uploads_ = 0;
};

}  // namespace tdbg::cuda
