// The index cache (.tdi), the `index` record, and the rows of a column.
//
// Implements docs/format.md, "The index".  Pure functions over bytes; the index
// is never evidence: a reader falls back to the shard when anything here does
// not hold.
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
inline constexpr std::size_t kColumnRowBytes = 120;
inline constexpr std::size_t kDirectoryEntryBytes = 24;

// A record's header, and where it stands.
struct IndexEntry {
  RecordHeader header;
  std::uint16_t call = 0;         // Of tensor and histogram records.
  std::uint16_t micro_batch = 0;  // Likewise.
  std::uint64_t offset = 0;       // Of the record header, in the shard.
};

struct IndexHeader {
  std::uint64_t salt = 0;
  std::uint32_t shard_number = 0;
};

// A row with the step it belongs to, as readers and columns hold it.
// The layout is that of the disk; NumPy sees it as a structured array.
struct ColumnRow {
  std::int64_t step = 0;
  std::uint32_t definition = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint32_t flags = 0;
  std::uint32_t position = 0;  // Execution order within the step.
  Summary summary;
};
static_assert(sizeof(ColumnRow) == kColumnRowBytes);

struct DirectoryEntry {
  std::uint32_t definition = 0;
  std::uint32_t crc = 0;  // Masked, of its rows.
  std::uint64_t first_row = 0;
  std::uint64_t n_rows = 0;
};

struct IndexFooter {
  std::uint64_t salt = 0;
  std::uint64_t n_entries = 0;
  std::uint64_t columns_offset = 0;
  std::uint64_t directory_offset = 0;
  std::uint64_t shard_length = 0;
  std::uint32_t n_directory = 0;
  std::uint32_t directory_crc = 0;
};

void EncodeIndexHeader(const IndexHeader& header, std::span<std::byte, 64> out);
Result<IndexHeader> DecodeIndexHeader(std::span<const std::byte> bytes);

void EncodeIndexEntry(const IndexEntry& entry, std::span<std::byte, 64> out);
Result<IndexEntry> DecodeIndexEntry(std::span<const std::byte> bytes);

// The payload of an `index` record.
std::vector<std::byte> EncodeIndex(std::span<const IndexEntry> entries);
Result<std::vector<IndexEntry>> DecodeIndex(std::span<const std::byte> payload);

// Columns, directory and footer of a sealed shard's index, ready to append at
// `columns_offset` of the index file.  Reorders `rows`.
std::vector<std::byte> EncodeColumns(std::vector<ColumnRow>* rows,
                                     std::uint64_t salt,
                                     std::uint64_t n_entries,
                                     std::uint64_t columns_offset,
                                     std::uint64_t shard_length);
Result<IndexFooter> DecodeIndexFooter(std::span<const std::byte> bytes);
Result<std::vector<DirectoryEntry>> DecodeDirectory(
    std::span<const std::byte> bytes, const IndexFooter& footer);

}  // namespace tdbg
