// Indexes that somebody has changed, with checksums that fit.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/coding.h"
#include "base/crc32c.h"
#include "format/index_file.h"
#include "shard_builder.h"

namespace tdbg::testing {

// The shard and its index, with everything that checks them made to fit again.
struct Forged {
  Bytes shard;
  Bytes index;
};

inline Forged Forge(const ShardBuilder& original, Bytes index) {
  const std::size_t footer_at = index.size() - 64;
  auto footer = DecodeIndexFooter(std::span(index).subspan(footer_at)).value();
  std::byte* directory = index.data() + footer.directory_offset;
  for (std::uint32_t i = 0; i < footer.n_sections; ++i) {
    std::byte* entry = directory + i * kIndexSectionBytes;
    const auto offset = Load<std::uint64_t>(entry + 8);
    const auto n =
        Load<std::uint64_t>(entry + 16) * Load<std::uint32_t>(entry + 4);
    if (Load<std::uint32_t>(entry + 24) != 0) {
      Store(entry + 24, MaskedCrc32c(index.data() + offset, n));
    }
  }
  footer.directory_crc =
      MaskedCrc32c(directory, footer.n_sections * kIndexSectionBytes);
  EncodeIndexFooter(footer,
                    std::span<std::byte, 64>(index.data() + footer_at, 64));
  Bytes shard = original.bytes();
  const PlacedRecord& last = original.records().back();
  std::byte* payload = shard.data() + last.offset + 64;
  Store(payload + 44, footer.directory_crc);
  RecordHeader header = last.header;
  header.payload_crc = MaskedCrc32c(payload, kEndBytes);
  EncodeRecordHeader(header, original.header().salt,
                     std::span<std::byte, 64>(shard.data() + last.offset, 64));
  return {shard, index};
}

// The sections of an index.
inline std::vector<Section> SectionsOf(const Bytes& index) {
  const auto footer =
      DecodeIndexFooter(std::span(index).subspan(index.size() - 64)).value();
  return DecodeSections(
             std::span(index).subspan(footer.directory_offset,
                                      footer.n_sections * kIndexSectionBytes),
             footer)
      .value();
}

// As an older tdbg wrote them, which knew no cells.
inline Forged WithoutCells(const ShardBuilder& original) {
  Bytes index = original.Index();
  auto footer =
      DecodeIndexFooter(std::span(index).subspan(index.size() - 64)).value();
  std::vector<Section> sections = SectionsOf(index);
  std::erase_if(sections, [](const Section& section) {
    return section.kind == SectionKind::kCellGroups ||
           section.kind == SectionKind::kCells;
  });
  const Bytes directory = EncodeSections(sections);
  footer.n_sections = static_cast<std::uint32_t>(sections.size());
  index.resize(footer.directory_offset);
  index.insert(index.end(), directory.begin(), directory.end());
  index.resize(index.size() + 64);
  EncodeIndexFooter(
      footer, std::span<std::byte, 64>(index.data() + index.size() - 64, 64));
  return Forge(original, index);
}

}  // namespace tdbg::testing
