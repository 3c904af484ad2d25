#include "reducers/cuda/table_cache.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "reducers/cuda/entries.h"

namespace tdbg::cuda {
namespace {

bool AreSame(std::span<const TensorEntry> a, std::span<const TensorEntry> b) {
  // Entries have no padding, and unused dimensions are zero.
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace

Result<TableCache::Table*> TableCache::For(std::span<const TensorEntry> entries,
                                           Stream stream) {
  TDBG_DCHECK(entries.size() <= kMaxEntries);
  for (Table& table : tables_) {
    if (table.stream == stream && AreSame(table.entries, entries)) {
      table.last_used = ++clock_;
      return &table;
    }
  }
  Result<Table*> free = Free();
  if (!free.ok() || free.value() == nullptr) return free;
  Table* table = free.value();
  table->entries.clear();
  TDBG_RETURN_IF_ERROR(Upload(entries, stream, table));
  table->entries.assign(entries.begin(), entries.end());
  table->stream = stream;
  table->last_used = ++clock_;
  return table;
}

Result<TableCache::Table*> TableCache::Free() {
  const Driver& driver = device_->driver();
  if (tables_.size() < kMaxTables) {
    Table table;
    constexpr std::size_t kBytes = kMaxEntries * sizeof(TensorEntry);
    Result<DeviceAddress> memory = device_->Allocate(kBytes);
    if (!memory.ok()) return memory.status();
    Result<std::byte*> pinned = device_->AllocatePinned(kBytes);
    if (!pinned.ok()) return pinned.status();
    Result<EventHandle> event = device_->NewEvent();
    if (!event.ok()) return event.status();
    table.device = memory.value();
    table.host = pinned.value();
    table.event = event.value();
    if (tables_.empty()) tables_.reserve(kMaxTables);
    tables_.push_back(std::move(table));
    return &tables_.back();
  }
  Table* oldest = nullptr;
  for (Table& table : tables_) {
    if (oldest == nullptr || table.last_used < oldest->last_used) {
      oldest = &table;
    }
  }
  const int result = driver.event_query(oldest->event);
  if (result == kErrorNotReady) return static_cast<Table*>(nullptr);
  TDBG_RETURN_IF_ERROR(driver.Check(result, "cuEventQuery"));
  return oldest;
}

Status TableCache::Upload(std::span<const TensorEntry> entries, Stream stream,
                          Table* table) {
  std::memcpy(table->host, entries.data(), entries.size_bytes());
  const Driver& driver = device_->driver();
  ++n_uploads_;
  return driver.Check(driver.memcpy_to_device(table->device, table->host,
                                              entries.size_bytes(), stream),
                      "cuMemcpyHtoDAsync");
}

Status TableCache::Used(Table* table) {
  const Driver& driver = device_->driver();
  return driver.Check(driver.event_record(table->event, table->stream),
                      "cuEventRecord");
}

bool TableCache::is_over() const {
  return std::none_of(tables_.begin(), tables_.end(), [&](const Table& table) {
    return device_->driver().event_query(table.event) == kErrorNotReady;
  });
}

}  // namespace tdbg::cuda
