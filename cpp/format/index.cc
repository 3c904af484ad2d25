#include "format/index.h"

#include <cstring>

#include "base/checked_math.h"
#include "base/coding.h"
#include "base/crc32c.h"

namespace tdbg {
namespace {

constexpr std::size_t kIndexHeadBytes = 16;  // Of an `index` record.

Status BadIndex(const std::string& what) {
  return Status::Corruption("index: " + what, 0);
}

}  // namespace

void EncodeIndexEntry(const IndexEntry& entry, std::span<std::byte, 64> out) {
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  Store(p, static_cast<std::uint16_t>(entry.header.type));
  Store(p + 2, entry.call);
  Store(p + 4, entry.header.subject);
  Store(p + 8, entry.header.sequence);
  Store(p + 16, entry.header.step);
  Store(p + 24, entry.offset);
  Store(p + 32, entry.header.payload_length);
  Store(p + 40, entry.header.checked_length);
  Store(p + 48, entry.header.payload_crc);
  Store(p + 52, entry.micro_batch);
  Store(p + 60, MaskedCrc32c(p, 60));
}

Result<IndexEntry> DecodeIndexEntry(std::span<const std::byte> bytes) {
  if (bytes.size() < kIndexEntryBytes) return BadIndex("an entry is too short");
  const std::byte* p = bytes.data();
  if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) {
    return BadIndex("checksum of an entry");
  }
  IndexEntry entry;
  entry.header.type = static_cast<RecordType>(Load<std::uint16_t>(p));
  entry.call = Load<std::uint16_t>(p + 2);
  entry.header.subject = Load<std::uint32_t>(p + 4);
  entry.header.sequence = Load<std::uint64_t>(p + 8);
  entry.header.step = Load<std::int64_t>(p + 16);
  entry.offset = Load<std::uint64_t>(p + 24);
  entry.header.payload_length = Load<std::uint64_t>(p + 32);
  entry.header.checked_length = Load<std::uint64_t>(p + 40);
  entry.header.payload_crc = Load<std::uint32_t>(p + 48);
  entry.micro_batch = Load<std::uint16_t>(p + 52);
  TDBG_RETURN_IF_ERROR(CheckLengths(entry.header));
  if (entry.offset > limits::kShard || entry.offset % limits::kAlignment != 0) {
    return BadIndex("an entry points to " + std::to_string(entry.offset));
  }
  return entry;
}

std::vector<std::byte> EncodeIndex(std::span<const IndexEntry> entries) {
  std::vector<std::byte> out(kIndexHeadBytes +
                             entries.size() * kIndexEntryBytes);
  Store(out.data(), static_cast<std::uint32_t>(kIndexEntryBytes));
  Store(out.data() + 8, static_cast<std::uint64_t>(entries.size()));
  std::byte* p = out.data() + kIndexHeadBytes;
  for (const IndexEntry& entry : entries) {
    EncodeIndexEntry(entry, std::span<std::byte, 64>(p, 64));
    p += kIndexEntryBytes;
  }
  return out;
}

Result<std::vector<IndexEntry>> DecodeIndex(
    std::span<const std::byte> payload) {
  ByteReader in(payload);
  const auto size = in.Get<std::uint32_t>();
  in.Skip(4);
  const auto n = in.Get<std::uint64_t>();
  std::uint64_t n_bytes = 0;
  if (in.failed() || size < kIndexEntryBytes ||
      !CheckedMul(n, size, &n_bytes) || n_bytes > in.remaining()) {
    return BadIndex(std::to_string(n) + " entries of " + std::to_string(size) +
                    " bytes in " + std::to_string(in.remaining()));
  }
  std::vector<IndexEntry> entries;
  entries.reserve(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    auto entry = DecodeIndexEntry(in.GetBytes(size));
    if (!entry.ok()) return entry.status();
    entries.push_back(entry.value());
  }
  return entries;
}

}  // namespace tdbg
