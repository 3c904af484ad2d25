// The part of the index that only a sealed shard has: columns, directory,
// footer.

#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "format/index.h"

namespace tdbg {
namespace {

constexpr std::array<char, 8> kFooterMagic = {'T', 'D', 'I', 'F',
                                              'O', 'O', 'T', '1'};
constexpr std::size_t kFooterBytes = 64;

Status Bad(const std::string& what) {
  return Status::Corruption("index: " + what, 0);
}

}  // namespace

std::vector<std::byte> EncodeColumns(std::vector<ColumnRow>* rows,
                                     std::uint64_t salt,
                                     std::uint64_t n_entries,
                                     std::uint64_t columns_offset,
                                     std::uint64_t shard_length) {
  std::stable_sort(rows->begin(), rows->end(),
                   [](const ColumnRow& a, const ColumnRow& b) {
                     return a.definition < b.definition;
                   });
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.PutBytes(rows->data(), rows->size() * kColumnRowBytes);
  w.Align(limits::kAlignment);
  const std::size_t directory_at = out.size();
  std::uint32_t n_directory = 0;
  for (std::size_t first = 0; first < rows->size();) {
    std::size_t last = first;
    while (last < rows->size() &&
           (*rows)[last].definition == (*rows)[first].definition) {
      ++last;
    }
    w.Put((*rows)[first].definition);
    w.Put(MaskedCrc32c(rows->data() + first, (last - first) * kColumnRowBytes));
    w.Put(static_cast<std::uint64_t>(first));
    w.Put(static_cast<std::uint64_t>(last - first));
    ++n_directory;
    first = last;
  }
  const std::uint32_t directory_crc = MaskedCrc32c(
      out.data() + directory_at, n_directory * kDirectoryEntryBytes);
  w.Align(limits::kAlignment);
  const std::size_t footer_at = out.size();
  w.PutBytes(kFooterMagic.data(), kFooterMagic.size());
  w.Put(salt);
  w.Put(n_entries);
  w.Put(columns_offset);
  w.Put(columns_offset + directory_at);
  w.Put(shard_length);
  w.Put(n_directory);
  w.Put(directory_crc);
  w.Put(std::uint32_t{0});
  w.Put(MaskedCrc32c(out.data() + footer_at, 60));
  return out;
}

Result<IndexFooter> DecodeIndexFooter(std::span<const std::byte> bytes) {
  if (bytes.size() < kFooterBytes) return Bad("too short for a footer");
  const std::byte* p = bytes.data();
  if (std::memcmp(p, kFooterMagic.data(), kFooterMagic.size()) != 0) {
    return Bad("no footer");
  }
  if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) {
    return Bad("checksum of the footer");
  }
  IndexFooter footer;
  footer.salt = Load<std::uint64_t>(p + 8);
  footer.n_entries = Load<std::uint64_t>(p + 16);
  footer.columns_offset = Load<std::uint64_t>(p + 24);
  footer.directory_offset = Load<std::uint64_t>(p + 32);
  footer.shard_length = Load<std::uint64_t>(p + 40);
  footer.n_directory = Load<std::uint32_t>(p + 48);
  footer.directory_crc = Load<std::uint32_t>(p + 52);
  if (footer.columns_offset > footer.directory_offset ||
      footer.directory_offset > limits::kShard) {
    return Bad("the footer's offsets do not ascend");
  }
  return footer;
}

Result<std::vector<DirectoryEntry>> DecodeDirectory(
    std::span<const std::byte> bytes, const IndexFooter& footer) {
  const std::uint64_t n_bytes =
      std::uint64_t{footer.n_directory} * kDirectoryEntryBytes;
  if (bytes.size() < n_bytes) return Bad("the directory is too short");
  if (MaskedCrc32c(bytes.data(), n_bytes) != footer.directory_crc) {
    return Bad("checksum of the directory");
  }
  const std::uint64_t n_rows =
      (footer.directory_offset - footer.columns_offset) / kColumnRowBytes;
  std::vector<DirectoryEntry> entries(footer.n_directory);
  ByteReader in(bytes);
  std::uint64_t next_row = 0;
  std::uint32_t previous = 0;
  bool first = true;
  for (DirectoryEntry& entry : entries) {
    entry.definition = in.Get<std::uint32_t>();
    entry.crc = in.Get<std::uint32_t>();
    entry.first_row = in.Get<std::uint64_t>();
    entry.n_rows = in.Get<std::uint64_t>();
    // Columns ascend and follow each other without overlap or hole.
    if (entry.first_row != next_row || entry.n_rows > n_rows - next_row ||
        (!first && entry.definition <= previous)) {
      return Bad("the directory does not add up");
    }
    next_row += entry.n_rows;
    previous = entry.definition;
    first = false;
  }
  return entries;
}

}  // namespace tdbg
