// A whole shard, walked record by record: every table, every value.
//
// Promises: what is there is answered the same twice; no table has more entries
// than the bytes can hold.

#include "answers.h"
#include "complete_shard.h"
#include "fuzz.h"
#include "repair.h"

namespace tdbg::fuzz {

namespace {

// The definitions of a shard and one of its records.
Bytes WithRecord(const testing::ShardBuilder& shard,
                 const testing::PlacedRecord& chosen) {
  testing::ShardBuilder few(shard.header());
  for (const testing::PlacedRecord& record : shard.records()) {
    if (record.header.type != RecordType::kDefinition &&
        record.offset != chosen.offset) {
      continue;
    }
    const auto first =
        shard.bytes().begin() +
        static_cast<std::ptrdiff_t>(record.offset + limits::kRecordHeader);
    few.AddRaw(record.header,
               Bytes(first, first + static_cast<std::ptrdiff_t>(
                                        record.header.payload_length)));
  }
  return few.bytes();
}

}  // namespace

std::vector<Bytes> Seeds() {
  const testing::ShardBuilder complete = testing::CompleteShard();
  std::vector<Bytes> seeds = {complete.bytes(), testing::CodecShard().bytes()};
  for (const testing::PlacedRecord& record : complete.records()) {
    seeds.push_back(WithRecord(complete, record));
  }
  return seeds;
}

}  // namespace tdbg::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned seed) {
  return tdbg::fuzz::MutateAndRepair(data, size, max_size, seed,
                                     tdbg::fuzz::RepairShard);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace tdbg;  // NOLINT
  static const FileHeader header = testing::CompleteShard().header();
  const auto bytes = fuzz::AsBytes(data, size);
  testing::MemoryShard shard(bytes, header, true);
  const testing::Answers answers = shard.Ask();
  fuzz::Expect(shard.Ask() == answers, "a shard answers the same twice");
  fuzz::Expect(shard.tables.n_rows * 16 <= size, "rows have bytes");
  fuzz::Expect(shard.tensors().size() * 64 <= size, "tensors have bytes");
  fuzz::Expect(shard.scalars().size() * 32 <= size, "scalars have bytes");
  return 0;
}
