// The index file of a sealed shard: every table, every group, every column.
//
// Promises: what is answered lies within what the tables have.

#include "complete_shard.h"
#include "format/index_file.h"
#include "fuzz.h"
#include "reader/index_reader.h"
#include "repair.h"

namespace tdbg::fuzz {
namespace {

// What the shard says of its index, of the seeds.
const testing::ShardBuilder& SealedShard() {
  static const testing::ShardBuilder shard = testing::CompleteShard();
  return shard;
}

End EndOf(const testing::ShardBuilder& shard) {
  const auto& record = shard.records().back();
  const auto payload = std::span(shard.bytes())
                           .subspan(record.offset + limits::kRecordHeader,
                                    record.header.payload_length);
  return DecodeEnd(payload).value();
}

// Bytes of a section that lie in the file; none where they do not.
std::span<std::byte> BytesOf(std::span<std::byte> file,
                             std::span<const std::byte> section) {
  const auto size = Load<std::uint32_t>(section, 4);
  const auto first = Load<std::uint64_t>(section, 8);
  const auto entries = Load<std::uint64_t>(section, 16);
  if (size == 0 || entries > file.size() / size) return {};
  if (first > file.size() - entries * size) return {};
  return file.subspan(first, entries * size);
}

// The checksums of groups: of columns and of cells, which have none as tables.
void RepairGroups(std::span<std::byte> groups, std::span<std::byte> members,
                  std::size_t member_size) {
  for (std::size_t at = 0; at + sizeof(Group) <= groups.size();
       at += sizeof(Group)) {
    auto group = Load<Group>(groups, at);
    const std::uint64_t n = members.size() / member_size;
    if (group.first > n || group.n > n - group.first) continue;
    group.crc =
        Crc(members.subspan(group.first * member_size, group.n * member_size));
    Store(groups, at, group);
  }
}

// Footer, directory, and each table or group that has a checksum of its own.
void RepairIndex(std::span<std::byte> bytes) {
  if (bytes.size() < kIndexHeaderBytes + kIndexFooterBytes) return;
  RepairLast(bytes.first(kIndexHeaderBytes));
  const auto footer = bytes.last(kIndexFooterBytes);
  const auto at = Load<std::uint64_t>(footer, 32);
  const std::uint64_t n =
      std::uint64_t{Load<std::uint32_t>(footer, 40)} * kIndexSectionBytes;
  if (n <= bytes.size() && at <= bytes.size() - n) {
    const auto directory = bytes.subspan(at, n);
    std::array<std::span<std::byte>, kSectionKinds + 1> tables;
    for (std::uint64_t i = 0; i < n; i += kIndexSectionBytes) {
      const auto kind = Load<std::uint32_t>(directory, i);
      if (kind > kSectionKinds) continue;
      tables[kind] = BytesOf(bytes, directory.subspan(i, kIndexSectionBytes));
    }
    const auto table = [&](SectionKind kind) {
      return tables[static_cast<std::size_t>(kind)];
    };
    RepairGroups(table(SectionKind::kColumnGroups),
                 table(SectionKind::kColumns), sizeof(ColumnRow));
    RepairGroups(table(SectionKind::kCellGroups), table(SectionKind::kCells),
                 sizeof(Cell));
    for (std::uint64_t i = 0; i < n; i += kIndexSectionBytes) {
      const auto section = directory.subspan(i, kIndexSectionBytes);
      if (Load<std::uint32_t>(section, 24) == 0) continue;
      Store(section, 24, Crc(BytesOf(bytes, section)));
    }
    Store(footer, 44, Crc(directory));
  }
  RepairLast(footer);
}

template <typename Entry>
void AskTable(IndexReader* index, SectionKind kind) {
  const auto table = index->Table<Entry>(kind);
  if (table) Expect(table->size() == index->Count(kind), "a table is whole");
}

void AskGroups(IndexReader* index, SectionKind kind) {
  const auto groups = index->Table<Group>(kind);
  if (!groups) return;
  std::vector<Group> all(groups->begin(), groups->end());
  std::vector<ColumnRow> rows;
  for (const Group& group : all) {
    bool is_damaged = false;
    const Group* found = index->FindGroup(kind, group.definition, &is_damaged);
    Expect(found != nullptr || is_damaged, "a group is found");
    if (kind == SectionKind::kColumnGroups) {
      rows.clear();
      const bool read = index->ReadColumn(group, &rows);
      Expect(read || rows.empty(), "a damaged column adds nothing");
    }
  }
  if (kind == SectionKind::kColumnGroups) {
    index->VisitColumns(all, [](const Group&, std::span<const ColumnRow>) {});
  }
  if (kind == SectionKind::kCellGroups) {
    index->VisitCells(all, [](const Group&, std::span<const Cell>) {});
  }
}

}  // namespace

std::vector<Bytes> Seeds() { return {SealedShard().Index()}; }

}  // namespace tdbg::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned seed) {
  return tdbg::fuzz::MutateAndRepair(data, size, max_size, seed,
                                     tdbg::fuzz::RepairIndex);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace tdbg;  // NOLINT
  const auto bytes = fuzz::AsBytes(data, size);
  if (size < kIndexFooterBytes) return 0;
  static const End end = fuzz::EndOf(fuzz::SealedShard());
  const auto crc = fuzz::Load<std::uint32_t>(bytes.last(kIndexFooterBytes), 44);
  auto index = IndexReader::OfBytes(bytes, 1, end, crc);
  if (!index) return 0;
  fuzz::AskTable<DefinitionPlace>(&*index, SectionKind::kDefinitions);
  fuzz::AskTable<std::byte>(&*index, SectionKind::kDefinitionBytes);
  fuzz::AskTable<std::uint32_t>(&*index, SectionKind::kDefinitionOrder);
  fuzz::AskTable<StepEntry>(&*index, SectionKind::kSteps);
  fuzz::AskTable<TensorEntry>(&*index, SectionKind::kTensors);
  fuzz::AskTable<std::uint32_t>(&*index, SectionKind::kTensorPostings);
  fuzz::AskTable<ScalarEntry>(&*index, SectionKind::kScalars);
  fuzz::AskTable<std::uint32_t>(&*index, SectionKind::kScalarPostings);
  fuzz::AskTable<RowsPlace>(&*index, SectionKind::kRowsPlaces);
  fuzz::AskTable<std::uint32_t>(&*index, SectionKind::kSignatureIds);
  fuzz::AskTable<std::uint64_t>(&*index, SectionKind::kSignatureEnds);
  fuzz::AskTable<IndexEntry>(&*index, SectionKind::kRecords);
  fuzz::AskTable<SamplesPlace>(&*index, SectionKind::kSamples);
  for (const auto kind :
       {SectionKind::kTensorGroups, SectionKind::kScalarGroups,
        SectionKind::kColumnGroups, SectionKind::kCellGroups}) {
    fuzz::AskGroups(&*index, kind);
  }
  return 0;
}
