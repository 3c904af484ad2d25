#include "reader/expected_reads.h"

#include <vector>

namespace tdbg {

void ExpectedReads::Tables(SectionKind about, StepRange steps) const {
  if (!directory_->IsFar()) return;
  std::vector<FileRange> ranges;
  for (const ListedShard& listed : list_->shards()) {
    listed.shard->AddTables(about, steps, &ranges);
  }
  directory_->Expect(ranges);
}

void ExpectedReads::Columns(StepRange steps,
                            std::span<const std::uint32_t> ids) const {
  if (!directory_->IsFar()) return;
  Tables(SectionKind::kRowsPlaces, steps);
  std::vector<FileRange> ranges;
  for (ListedShard& listed : list_->shards()) {
    listed.shard->AddGroups(SectionKind::kColumnGroups, SectionKind::kColumns,
                            steps, ids, &ranges);
    list_->Retire(&listed);
  }
  directory_->Expect(ranges);
}

void ExpectedReads::Records() const {
  if (!directory_->IsFar()) return;
  std::vector<FileRange> ranges;
  for (const ListedShard& listed : list_->shards()) {
    listed.shard->AddRecordPlaces(&ranges);
  }
  directory_->Expect(ranges);
  ranges.clear();
  for (ListedShard& listed : list_->shards()) {
    listed.shard->AddRecords(&ranges);
    list_->Retire(&listed);
  }
  directory_->Expect(ranges);
}

void ExpectedReads::Tensors(std::span<const std::uint64_t> tensors) const {
  if (!directory_->IsFar()) return;
  std::vector<FileRange> ranges;
  const auto for_each = [&](const auto& visit) {
    ranges.clear();
    for (const std::uint64_t i : tensors) {
      if (i < list_->n_tensors()) visit(list_->OfTensor(i), i);
    }
    directory_->Expect(ranges);
  };
  for_each([&](ListedShard& listed, std::uint64_t) {
    listed.shard->AddTables(SectionKind::kTensors, kAllSteps, &ranges);
  });
  for_each([&](ListedShard& listed, std::uint64_t i) {
    const auto entries = listed.shard->Tensors();
    const std::uint64_t at = i - listed.first_tensor;
    if (at >= entries.size()) return;
    const TensorEntry& entry = entries[at];
    ranges.push_back(
        {.name = listed.shard->reader().name(),
         .offset = entry.offset,
         .n = NextRecord(entry.offset, entry.payload_length) - entry.offset});
    list_->Retire(&listed);
  });
}

}  // namespace tdbg
