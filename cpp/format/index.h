// The `index` record, and its entries.
//
// Implements docs/format.md, "index".  Pure functions over bytes.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "format/record.h"

namespace tdbg {

inline constexpr std::size_t kIndexEntryBytes = 64;

// A record's header, and where it stands.
struct IndexEntry {
  RecordHeader header;
  std::uint16_t call = 0;         // Of tensor and histogram records.
  std::uint16_t micro_batch = 0;  // Likewise.
  std::uint64_t offset = 0;       // Of the record header, in the shard.
};

void EncodeIndexEntry(const IndexEntry& entry, std::span<std::byte, 64> out);
Result<IndexEntry> DecodeIndexEntry(std::span<const std::byte> bytes);

// The payload of an `index` record.
std::vector<std::byte> EncodeIndex(std::span<const IndexEntry> entries);
Result<std::vector<IndexEntry>> DecodeIndex(std::span<const std::byte> payload);

}  // namespace tdbg
