#include "reader/index_reader.h"

#include <algorithm>
#include <array>

#include "base/checked_math.h"
#include "base/crc32c.h"
#include "reader/shard_reader.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kIndexHeaderBytes = 64;
constexpr std::uint64_t kFooterBytes = 64;

// Whether columns and directory lie where they must in a file of `size` bytes.
bool Fits(const IndexFooter& footer, std::uint64_t size, std::uint64_t n_rows) {
  std::uint64_t entries = 0;
  std::uint64_t rows = 0;
  std::uint64_t directory =
      std::uint64_t{footer.n_directory} * kDirectoryEntryBytes;
  return CheckedMul(footer.n_entries, kIndexEntryBytes, &entries) &&
         CheckedAdd(entries, kIndexHeaderBytes, &entries) &&
         footer.columns_offset == entries &&
         CheckedMul(n_rows, kColumnRowBytes, &rows) &&
         CheckedAlign(rows, limits::kAlignment, &rows) &&
         CheckedAdd(rows, footer.columns_offset, &rows) &&
         footer.directory_offset == rows &&
         CheckedAlign(directory, limits::kAlignment, &directory) &&
         CheckedAdd(directory, rows, &directory) &&
         CheckedAdd(directory, kFooterBytes, &directory) && directory == size;
}

}  // namespace

std::optional<IndexReader> IndexReader::Open(int directory,
                                             std::uint32_t number,
                                             std::uint64_t salt,
                                             std::uint64_t shard_length,
                                             std::uint64_t n_rows) {
  InputFile file(directory, ShardName(number, ".tdi"));
  const auto size = file.Size();
  if (!size.ok() || size.value() < kIndexHeaderBytes + kFooterBytes) {
    return std::nullopt;
  }
  std::array<std::byte, 64> bytes{};
  if (!file.Read(0, bytes).ok()) return std::nullopt;
  const auto header = DecodeIndexHeader(bytes);
  if (!header.ok() || header.value().salt != salt ||
      header.value().shard_number != number) {
    return std::nullopt;
  }
  if (!file.Read(size.value() - kFooterBytes, bytes).ok()) return std::nullopt;
  const auto footer = DecodeIndexFooter(bytes);
  if (!footer.ok() || footer.value().salt != salt ||
      footer.value().shard_length != shard_length ||
      !Fits(footer.value(), size.value(), n_rows)) {
    return std::nullopt;
  }
  std::vector<std::byte> stored(std::uint64_t{footer.value().n_directory} *
                                kDirectoryEntryBytes);
  if (!file.Read(footer.value().directory_offset, stored).ok()) {
    return std::nullopt;
  }
  auto entries = DecodeDirectory(stored, footer.value());
  if (!entries.ok()) return std::nullopt;
  std::uint64_t counted = 0;
  for (const DirectoryEntry& entry : entries.value()) counted += entry.n_rows;
  if (counted != n_rows) return std::nullopt;
  return IndexReader(number, footer.value().columns_offset,
                     std::move(entries).value());
}

const DirectoryEntry* IndexReader::Find(std::uint32_t definition) const {
  const auto found =
      std::lower_bound(entries_.begin(), entries_.end(), definition,
                       [](const DirectoryEntry& entry, std::uint32_t wanted) {
                         return entry.definition < wanted;
                       });
  if (found == entries_.end() || found->definition != definition) {
    return nullptr;
  }
  return &*found;
}

std::uint64_t IndexReader::CountRows(
    std::span<const std::uint32_t> definitions) const {
  std::uint64_t n = 0;
  for (const std::uint32_t definition : definitions) {
    if (const DirectoryEntry* entry = Find(definition)) n += entry->n_rows;
  }
  return n;
}

bool IndexReader::Read(int directory,
                       std::span<const std::uint32_t> definitions,
                       std::vector<ColumnRow>* rows) const {
  const std::size_t before = rows->size();
  InputFile file(directory, ShardName(number_, ".tdi"));
  for (const std::uint32_t definition : definitions) {
    const DirectoryEntry* entry = Find(definition);
    if (entry == nullptr) continue;
    const std::size_t at = rows->size();
    rows->resize(at + entry->n_rows);
    const auto bytes = std::as_writable_bytes(std::span(*rows).subspan(at));
    const Status status =
        file.Read(columns_offset_ + entry->first_row * kColumnRowBytes, bytes);
    if (!status.ok() ||
        MaskedCrc32c(bytes.data(), bytes.size()) != entry->crc) {
      rows->resize(before);
      return false;
    }
  }
  return true;
}

}  // namespace tdbg
