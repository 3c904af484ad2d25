#include "format/index_file.h"

#include <array>
#include <bitset>
#include <cstring>

#include "base/checked_math.h"
#include "base/coding.h"
#include "base/crc32c.h"

namespace tdbg {
namespace {

constexpr std::array<unsigned char, 8> kIndexMagic = {0x89, 'T',  'D',  'I',
                                                      '\r', '\n', 0x1a, '\n'};
constexpr std::array<char, 8> kFooterMagic = {'T', 'D', 'I', 'F',
                                              'O', 'O', 'T', '2'};
constexpr std::uint16_t kIndexVersion = 2;

Status BadIndexFile(const std::string& what) {
  return Status::Corruption("index: " + what, 0);
}

}  // namespace

void EncodeIndexHeader(const IndexHeader& header,
                       std::span<std::byte, 64> out) {
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  std::memcpy(p, kIndexMagic.data(), kIndexMagic.size());
  Store(p + 8, kIndexVersion);
  Store(p + 10, static_cast<std::uint16_t>(kIndexHeaderBytes));
  Store(p + 16, header.salt);
  Store(p + 24, header.shard_number);
  Store(p + 60, MaskedCrc32c(p, 60));
}

Result<IndexHeader> DecodeIndexHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kIndexHeaderBytes) return BadIndexFile("too short");
  const std::byte* p = bytes.data();
  if (std::memcmp(p, kIndexMagic.data(), kIndexMagic.size()) != 0) {
    return BadIndexFile("the magic is not there");
  }
  if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) {
    return BadIndexFile("checksum of the header");
  }
  // What another version holds stands in the shard, too.
  if (Load<std::uint16_t>(p + 8) != kIndexVersion ||
      Load<std::uint16_t>(p + 10) != kIndexHeaderBytes) {
    return Status::Unsupported("index: another version");
  }
  IndexHeader header;
  header.salt = Load<std::uint64_t>(p + 16);
  header.shard_number = Load<std::uint32_t>(p + 24);
  return header;
}

std::vector<std::byte> EncodeSections(std::span<const Section> sections) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  for (const Section& section : sections) {
    w.Put(static_cast<std::uint32_t>(section.kind));
    w.Put(section.entry_size);
    w.Put(section.offset);
    w.Put(section.n_entries);
    w.Put(section.crc);
    w.Put(section.flags);
    w.Put(section.first_step);
    w.Put(section.last_step);
    out.resize(out.size() + 16);
  }
  return out;
}

Result<std::vector<Section>> DecodeSections(std::span<const std::byte> bytes,
                                            const IndexFooter& footer) {
  if (bytes.size() != footer.n_sections * kIndexSectionBytes) {
    return BadIndexFile("the directory has another length");
  }
  if (MaskedCrc32c(bytes.data(), bytes.size()) != footer.directory_crc) {
    return BadIndexFile("checksum of the directory");
  }
  std::vector<Section> sections(footer.n_sections);
  ByteReader in(bytes);
  std::bitset<kSectionKinds + 1> seen;
  std::uint64_t free_from = kIndexHeaderBytes;
  for (Section& section : sections) {
    section.kind = static_cast<SectionKind>(in.Get<std::uint32_t>());
    section.entry_size = in.Get<std::uint32_t>();
    section.offset = in.Get<std::uint64_t>();
    section.n_entries = in.Get<std::uint64_t>();
    section.crc = in.Get<std::uint32_t>();
    section.flags = in.Get<std::uint32_t>();
    section.first_step = in.Get<std::int64_t>();
    section.last_step = in.Get<std::int64_t>();
    in.Skip(16);
    std::uint64_t end = 0;
    if (!CheckedMul(section.n_entries, section.entry_size, &end) ||
        !CheckedAdd(section.offset, end, &end) || section.offset < free_from ||
        section.offset % limits::kAlignment != 0 ||
        end > footer.directory_offset) {
      return BadIndexFile("a section does not lie where it can");
    }
    free_from = end;
    const auto kind = static_cast<std::uint32_t>(section.kind);
    if (kind > kSectionKinds) continue;
    if (kind == 0 || seen.test(kind))
      return BadIndexFile("a kind stands twice");
    seen.set(kind);
  }
  return sections;
}

void EncodeIndexFooter(const IndexFooter& footer,
                       std::span<std::byte, 64> out) {
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  std::memcpy(p, kFooterMagic.data(), kFooterMagic.size());
  Store(p + 8, footer.salt);
  Store(p + 16, footer.shard_length);
  Store(p + 24, footer.n_records);
  Store(p + 32, footer.directory_offset);
  Store(p + 40, footer.n_sections);
  Store(p + 44, footer.directory_crc);
  Store(p + 60, MaskedCrc32c(p, 60));
}

Result<IndexFooter> DecodeIndexFooter(std::span<const std::byte> bytes) {
  if (bytes.size() < kIndexFooterBytes)
    return BadIndexFile("too short for a footer");
  const std::byte* p = bytes.data();
  if (std::memcmp(p, kFooterMagic.data(), kFooterMagic.size()) != 0) {
    return BadIndexFile("no footer");
  }
  if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) {
    return BadIndexFile("checksum of the footer");
  }
  IndexFooter footer;
  footer.salt = Load<std::uint64_t>(p + 8);
  footer.shard_length = Load<std::uint64_t>(p + 16);
  footer.n_records = Load<std::uint64_t>(p + 24);
  footer.directory_offset = Load<std::uint64_t>(p + 32);
  footer.n_sections = Load<std::uint32_t>(p + 40);
  footer.directory_crc = Load<std::uint32_t>(p + 44);
  if (footer.n_sections > 1024) return BadIndexFile("too many sections");
  return footer;
}

}  // namespace tdbg
