// Completeness: records that are missing between shards, and whether the writer
// lost them itself.  What index and commit page tell of a shard that was cut is
// tested from Python, on runs of a real writer (trial/test_completeness.py).
//
// Sabotage seen to fail here: deciding before a record that is no gap has
// followed; taking any gap of I/O errors for an explanation; asking the next
// shard only.

#include "reader/completeness.h"

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "format/names.h"
#include "reader/run_reader.h"
#include "shard_builder.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

std::unique_ptr<RunReader> Open(const std::string& directory) {
  auto reader = RunReader::Open(directory, {});
  EXPECT_OK(reader);
  return std::move(reader).value();
}

Bytes Part(const Bytes& bytes, std::size_t end) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(end)};
}

// The first shard, with n records.
ShardBuilder Events(int n) {
  ShardBuilder shard(SomeHeader(1));
  for (int i = 0; i < n; ++i) {
    shard.Add(RecordType::kEvent, i, EncodeEvent(Event()), 6);
  }
  return shard;
}

// A gap that names the records which an abandoned shard may lack.
Bytes Abandoned(std::uint64_t first, std::uint64_t end) {
  Gap gap;
  gap.reason = GapReason::kIoError;
  gap.first_sequence = first;
  gap.end_sequence = end;
  return EncodeGap(gap);
}

TDBG_TEST(ARecordThatTheWriterSaysIsLostIsNotMissing) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder first = Events(5);
  const auto start_of = [&](std::size_t i) {
    return first.records()[i].offset;
  };
  FileHeader header = SomeHeader(2);
  header.first_sequence = 6;
  ShardBuilder second(header);
  WriteFile(directory + "/000001.tds", Part(first.bytes(), start_of(3) + 40));
  // Its header is there and the gap is not yet: nothing is decided.
  WriteFile(directory + "/000002.tds", second.bytes());
  const auto reader = Open(directory);
  EXPECT_TRUE(reader->holes() == (std::vector<Hole>{{4, 6}}));
  EXPECT_EQ(reader->problems().size(), 1U);
  second.Add(RecordType::kGap, kNoStep, Abandoned(4, 6));
  WriteFile(directory + "/000002.tds", second.bytes());
  EXPECT_TRUE(reader->Poll());
  second.Add(RecordType::kEvent, 1, EncodeEvent(Event()), 6);
  WriteFile(directory + "/000002.tds", second.bytes());
  EXPECT_TRUE(reader->Poll());
  EXPECT_TRUE(reader->holes().empty());
  EXPECT_EQ(reader->problems().size(), 1U);
  EXPECT_TRUE(reader->problems()[0].kind == ProblemKind::kTornTail);
  // What was cut off later had been visible, and is missing.
  WriteFile(directory + "/000001.tds", Part(first.bytes(), start_of(1)));
  const auto again = Open(directory);
  EXPECT_TRUE(again->holes() == (std::vector<Hole>{{2, 4}}));
  EXPECT_EQ(again->problems().size(), 1U);
  EXPECT_TRUE(again->problems()[0].kind == ProblemKind::kMissing);
}

TDBG_TEST(ALaterShardTellsOfOneThatHasNothingButItsHeader) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder first = Events(3);
  WriteFile(directory + "/000001.tds", first.bytes());
  FileHeader header = SomeHeader(2);
  header.first_sequence = 6;
  WriteFile(directory + "/000002.tds", ShardBuilder(header).bytes());
  header = SomeHeader(3);
  header.first_sequence = 9;
  ShardBuilder third(header);
  third.Add(RecordType::kGap, kNoStep, Abandoned(4, 9));
  third.Add(RecordType::kEvent, 1, EncodeEvent(Event()), 6);
  WriteFile(directory + "/000003.tds", third.bytes());
  const auto reader = Open(directory);
  EXPECT_TRUE(reader->holes().empty());
  EXPECT_EQ(reader->problems().size(), 0U);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
