// What a shard will read, said beforehand to a directory that is far away.

#include <vector>

#include "reader/shard.h"

namespace tdbg {

void Shard::AddTables(SectionKind about, StepRange steps,
                      std::vector<FileRange>* ranges) const {
  using enum SectionKind;
  if (!has_index() || !MayHave(about, steps)) return;
  for (const SectionKind kind :
       {kSteps, kTensors, kTensorGroups, kTensorPostings, kScalars,
        kScalarGroups, kScalarPostings, kRowsPlaces, kSignatureIds,
        kSignatureEnds, kColumnGroups, kCellGroups, kSamples}) {
    if (const auto range = index_->RangeOf(kind)) ranges->push_back(*range);
  }
}

void Shard::AddGroups(SectionKind groups, SectionKind members, StepRange steps,
                      std::span<const std::uint32_t> definitions,
                      std::vector<FileRange>* ranges) {
  if (!has_index() || !MayHave(SectionKind::kRowsPlaces, steps)) return;
  for (const std::uint32_t id : definitions) {
    bool is_damaged = false;
    const Group* group = index_->FindGroup(groups, id, &is_damaged);
    if (is_damaged) return;  // Whoever reads it finds out.
    if (group != nullptr) ranges->push_back(index_->RangeOf(members, *group));
  }
}

void Shard::AddRecordPlaces(std::vector<FileRange>* ranges) const {
  if (!has_index() || has_records_) return;
  const auto range = index_->RangeOf(SectionKind::kRecords);
  if (range) ranges->push_back(*range);
}

void Shard::AddRecords(std::vector<FileRange>* ranges) {
  if (!has_index() || has_records_) return;
  const auto records = index_->Table<std::byte>(SectionKind::kRecords);
  if (!records) return;
  for (std::size_t at = 0; at < records->size(); at += kIndexEntryBytes) {
    const auto entry = DecodeIndexEntry(records->subspan(at, kIndexEntryBytes));
    if (!entry.ok()) return;
    const RecordHeader& header = entry.value().header;
    if (header.type == RecordType::kHistogram) continue;
    const std::uint64_t offset = entry.value().offset;
    ranges->push_back(
        {.name = reader_.name(),
         .offset = offset,
         .n = NextRecord(offset, header.payload_length) - offset});
  }
}

}  // namespace tdbg
