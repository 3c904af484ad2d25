// RunReader over files: shards that grow, end, are missing or not ours.
//
// Seen to fail when: damage is reported at its first sight; a successor does
// not settle a shard; run or generation are not compared; a missing shard is
// not reported; links are followed, or what is no regular file is read; holes
// are searched; a file may shrink; a definition may change.

#include "reader/run_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "answers.h"
#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr const char* kCompleteWriter = "train-3-2";

std::unique_ptr<RunReader> MustOpen(const std::string& directory,
                                    ReaderOptions options = {}) {
  auto reader = RunReader::Open(directory, options);
  EXPECT_OK(reader);
  return reader.ok() ? std::move(reader).value() : nullptr;
}

void Append(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void WriteAt(const std::string& path, std::uint64_t offset,
             std::span<const std::byte> bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  EXPECT_EQ(
      ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset)),
      static_cast<ssize_t>(bytes.size()));
  ::close(fd);
}

std::span<const std::byte> Part(const Bytes& bytes, std::size_t from,
                                std::size_t to) {
  return std::span(bytes).subspan(from, to - from);
}

TDBG_TEST(MapsReadsAndCachesGiveTheSameAnswers) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer(kCompleteWriter);
  const ShardBuilder shard = CompleteShard();
  WriteFile(directory + "/000001.tds", shard.bytes());
  const Answers expected = AnswersOf(*MustOpen(directory));
  EXPECT_GT(expected.tables.size(), 1000U);
  WriteFile(directory + "/000001.tdi", shard.Index());
  for (const bool use_caches : {false, true}) {
    for (const bool map_files : {false, true}) {
      ReaderOptions options;
      options.use_caches = use_caches;
      options.map_files = map_files;
      const auto reader = MustOpen(directory, options);
      EXPECT_TRUE(AnswersOf(*reader) == expected);
      EXPECT_EQ(reader->problems().size(), 0U);
      EXPECT_FALSE(reader->Poll());
    }
  }
}

TDBG_TEST(AGrowingShardIsReadAsItGrowsAndIsNeverDamaged) {
  const ShardBuilder shard = CompleteShard();
  const Bytes& bytes = shard.bytes();
  for (const std::size_t piece : {1U, 63U, 64U, 700U}) {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.Writer(kCompleteWriter);
    const std::string path = directory + "/000001.tds";
    const auto reader = MustOpen(directory);
    std::size_t n_grew = 0;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      Append(path, Part(bytes, at, std::min(at + piece, bytes.size())));
      n_grew += reader->Poll() ? 1 : 0;
      EXPECT_EQ(reader->problems().size(), 0U);
    }
    EXPECT_GT(n_grew, piece > 100 ? 5U : 15U);
    EXPECT_TRUE(reader->identity().rank == 3);
    const TemporaryDirectory whole;
    const std::string other = whole.Writer(kCompleteWriter);
    WriteFile(other + "/000001.tds", bytes);
    EXPECT_TRUE(AnswersOf(*reader) == AnswersOf(*MustOpen(other)));
  }
}

TDBG_TEST(ATensorWhoseHeaderIsWrittenLastIsPendingUntilThen) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const std::string path = directory + "/000001.tds";
  ShardBuilder shard(SomeHeader());
  shard.AddDefinition(SomeDefinition(1, "w", DType::kUInt8, {100'000}));
  shard.AddTensor(0, 1, Bytes(100'000, std::byte{3}), 1, Codec::kRaw);
  const PlacedRecord record = shard.records()[1];
  WriteFile(path, Part(shard.bytes(), 0, record.offset));
  const auto reader = MustOpen(directory);
  for (std::size_t to = record.offset + 1000; to < record.end; to += 7000) {
    WriteAt(path, record.offset + 64,
            Part(shard.bytes(), record.offset + 64, to));
    EXPECT_FALSE(reader->Poll());
    EXPECT_FALSE(reader->Poll());
  }
  WriteAt(path, record.offset + 64,
          Part(shard.bytes(), record.offset + 64, record.end));
  EXPECT_FALSE(reader->Poll());
  EXPECT_EQ(reader->tensors().size(), 0U);
  WriteAt(path, record.offset,
          Part(shard.bytes(), record.offset, record.offset + 64));
  EXPECT_TRUE(reader->Poll());
  EXPECT_EQ(reader->tensors().size(), 1U);
  EXPECT_EQ(reader->problems().size(), 0U);
  EXPECT_OK(reader->ReadTensor(0));
}

// A shard of one event per record, so that records are easy to count.
ShardBuilder Events(std::uint32_t number, int n, std::uint64_t first = 1) {
  FileHeader header = SomeHeader(number);
  header.first_sequence = first;
  ShardBuilder shard(header);
  for (int i = 0; i < n; ++i) {
    Event event;
    event.json = "{\"i\": " + std::to_string(i) + "}";
    shard.Add(RecordType::kEvent, i, EncodeEvent(event));
  }
  return shard;
}

TDBG_TEST(AHoleThatIsFilledBeforeTheNextPollWasNoDamage) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const std::string path = directory + "/000001.tds";
  const ShardBuilder shard = Events(1, 3);
  Bytes torn = shard.bytes();
  const PlacedRecord hole = shard.records()[1];
  std::fill(torn.begin() + static_cast<std::ptrdiff_t>(hole.offset),
            torn.begin() + static_cast<std::ptrdiff_t>(hole.end), std::byte{0});
  const auto reader = MustOpen(directory);
  WriteFile(path, torn);
  EXPECT_TRUE(reader->Poll());
  EXPECT_EQ(reader->events().size(), 1U);
  EXPECT_EQ(reader->problems().size(), 0U);
  WriteFile(path, shard.bytes());
  EXPECT_TRUE(reader->Poll());
  EXPECT_EQ(reader->events().size(), 3U);
  EXPECT_EQ(reader->problems().size(), 0U);
}

TDBG_TEST(AHoleThatStaysIsDamageAtTheSecondLook) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const std::string path = directory + "/000001.tds";
  const ShardBuilder shard = Events(1, 3);
  Bytes torn = shard.bytes();
  torn[shard.records()[1].offset + 70] ^= std::byte{1};
  const auto reader = MustOpen(directory);
  WriteFile(path, torn);
  reader->Poll();
  EXPECT_EQ(reader->problems().size(), 0U);
  reader->Poll();
  EXPECT_EQ(reader->problems().size(), 1U);
  EXPECT_EQ(reader->events().size(), 2U);
  EXPECT_EQ(reader->problems()[0].offset, shard.records()[1].offset);
  EXPECT_TRUE(reader->problems()[0].kind == ProblemKind::kDamage);
  EXPECT_EQ(reader->problems()[0].file, std::string("000001.tds"));
  EXPECT_FALSE(reader->Poll());
  // Open looks twice itself.
  EXPECT_EQ(MustOpen(directory)->problems().size(), 1U);
}

TDBG_TEST(ASuccessorSettlesAShard) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder first = Events(1, 3);
  const std::size_t cut = first.records()[2].offset + 40;
  WriteFile(directory + "/000001.tds", Part(first.bytes(), 0, cut));
  const auto reader = MustOpen(directory);
  EXPECT_EQ(reader->events().size(), 2U);
  EXPECT_EQ(reader->problems().size(), 0U);
  // An empty successor settles nothing: its writer may still be at the first.
  WriteFile(directory + "/000002.tds", {});
  EXPECT_FALSE(reader->Poll());
  WriteFile(directory + "/000002.tds", Events(2, 2, 4).bytes());
  EXPECT_TRUE(reader->Poll());
  EXPECT_EQ(reader->events().size(), 4U);
  EXPECT_EQ(reader->problems().size(), 2U);
  EXPECT_TRUE(reader->problems()[0].kind == ProblemKind::kTornTail);
  EXPECT_EQ(reader->problems()[0].offset, first.records()[2].offset);
  EXPECT_EQ(reader->problems()[0].length, 40U);
  // The record that was torn was given a number, and nobody says that it
  // failed.
  EXPECT_TRUE(reader->problems()[1].kind == ProblemKind::kMissing);
  EXPECT_EQ(reader->problems()[1].file, std::string("000001.tds"));
  EXPECT_TRUE(reader->holes() == (std::vector<Hole>{{3, 4}}));
}

// Sabotage seen to fail here: using the payload of a record after the file was
// searched for another one.
TDBG_TEST(ARecordThatWasCutOutOfAFileCostsNoOther) {
  // Too large to be read at once.
  ShardBuilder shard(SomeHeader(1));
  const auto text = [](std::uint64_t sequence) {
    return std::string(300'000, static_cast<char>('a' + sequence));
  };
  for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
    Event event;
    event.json = text(sequence);
    shard.Add(RecordType::kEvent, 0, EncodeEvent(event));
  }
  for (const std::size_t cut : {0U, 1U, 9U, 18U}) {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.Writer();
    Bytes bytes = shard.bytes();
    const PlacedRecord& record = shard.records()[cut];
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(record.offset),
                bytes.begin() + static_cast<std::ptrdiff_t>(record.end));
    WriteFile(directory + "/000001.tds", bytes);
    const auto reader = MustOpen(directory);
    EXPECT_EQ(reader->problems().size(), 1U);
    EXPECT_TRUE(reader->problems()[0].kind == ProblemKind::kMissing);
    const std::uint64_t first = cut + 1;
    EXPECT_TRUE(reader->holes() == (std::vector<Hole>{{first, first + 1}}));
    EXPECT_EQ(reader->events().size(), 19U);
    for (const EventEntry& entry : reader->events()) {
      EXPECT_TRUE(entry.event.json == text(entry.sequence));
    }
  }
}

TDBG_TEST(AMissingShardIsReportedAndTheOthersRead) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  for (const std::uint32_t number : {1U, 4U}) {
    ShardBuilder shard = Events(number, 2);
    shard.Seal();
    WriteFile(directory + "/" + ShardName(number, ".tds"), shard.bytes());
  }
  const auto reader = MustOpen(directory);
  EXPECT_EQ(reader->events().size(), 4U);
  EXPECT_EQ(reader->problems().size(), 1U);
  EXPECT_TRUE(reader->problems()[0].kind == ProblemKind::kMissing);
  EXPECT_EQ(reader->problems()[0].file, std::string("000002.tds"));
}

TDBG_TEST(ShardsOfAnotherRunWriterOrPlaceAreRefusedWhole) {
  struct Case {
    const char* what;
    void (*change)(FileHeader*);
  };
  const Case cases[] = {
      {"run", [](FileHeader* h) { h->run = MakeUuid(0x55); }},
      {"role", [](FileHeader* h) { h->role = WriterRole::kEngine; }},
      {"rank", [](FileHeader* h) { h->rank = 1; }},
      {"generation", [](FileHeader* h) { h->generation = 2; }},
      {"number", [](FileHeader* h) { h->shard_number = 3; }},
  };
  for (const Case& c : cases) {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.Writer();
    WriteFile(directory + "/000001.tds", Events(1, 2).bytes());
    FileHeader header = SomeHeader(2);
    c.change(&header);
    ShardBuilder foreign(header);
    foreign.Add(RecordType::kEvent, 0, EncodeEvent(Event{}));
    WriteFile(directory + "/000002.tds", foreign.bytes());
    const auto reader = MustOpen(directory);
    EXPECT_EQ(reader->events().size(), 2U);
    EXPECT_EQ(reader->problems().size(), 1U);
    EXPECT_TRUE(reader->problems()[0].kind == ProblemKind::kForeign);
    EXPECT_EQ(reader->problems()[0].file, std::string("000002.tds"));
  }
}

TDBG_TEST(ADirectoryOfAnotherRunDoesNotOpen) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  WriteFile(directory + "/000001.tds", Events(1, 2).bytes());
  ReaderOptions options;
  options.run = SomeHeader().run;
  EXPECT_OK(RunReader::Open(directory, options));
  options.run = MakeUuid(0x77);
  EXPECT_FALSE(RunReader::Open(directory, options).ok());
  EXPECT_FALSE(RunReader::Open(directory + "/nothing-0-1", {}).ok());
  EXPECT_FALSE(RunReader::Open(temporary.Writer("elsewhere"), {}).ok());
}

TDBG_TEST(OnlyRegularFilesAreOpened) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const std::string target = temporary.Writer("target") + "/shard";
  WriteFile(target, Events(3, 2).bytes());  // It would be taken.
  EXPECT_EQ(::mkfifo((directory + "/000001.tds").c_str(), 0600), 0);
  std::filesystem::create_directory(directory + "/000002.tds");
  std::filesystem::create_symlink(target, directory + "/000003.tds");
  std::filesystem::create_symlink("/dev/zero", directory + "/000004.tds");
  std::filesystem::create_symlink("/dev/zero", directory + "/COMMIT");
  WriteFile(directory + "/000005.tds", Events(5, 2).bytes());
  const auto reader = MustOpen(directory);
  EXPECT_EQ(reader->events().size(), 2U);
  EXPECT_EQ(reader->problems().size(), 4U);
  for (const Problem& problem : reader->problems()) {
    EXPECT_TRUE(problem.kind == ProblemKind::kForeign);
  }
  EXPECT_TRUE(reader->liveness() == Liveness::kUnknown);
}

TDBG_TEST(AHugeSparseFileCostsNoTimeAndNoMemory) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const std::string path = directory + "/000001.tds";
  const ShardBuilder shard = Events(1, 2);
  WriteFile(path, shard.bytes());
  // A tebibyte of nothing, then a record that belongs there.
  const std::uint64_t far = 1ULL << 40;
  const PlacedRecord second = shard.records()[1];
  Bytes moved = shard.bytes();
  moved.resize(second.offset);
  WriteFile(path, moved);
  WriteAt(path, far, Part(shard.bytes(), second.offset, second.end));
  const auto reader = MustOpen(directory);
  EXPECT_EQ(reader->events().size(), 2U);
  EXPECT_EQ(reader->problems().size(), 1U);
  EXPECT_EQ(reader->problems()[0].length, far - second.offset);
}

TDBG_TEST(AFileThatShrinksIsATypedErrorAndNoFault) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const std::string path = directory + "/000001.tds";
  ShardBuilder shard(SomeHeader());
  shard.AddDefinition(SomeDefinition(1, "w", DType::kUInt8, {100'000}));
  shard.AddTensor(0, 1, Bytes(100'000, std::byte{3}), 1, Codec::kRaw);
  shard.AddRows(0, {SomeRow(1, 1.0)});
  WriteFile(path, shard.bytes());
  const auto reader = MustOpen(directory);
  EXPECT_OK(reader->ReadTensor(0));
  EXPECT_EQ(::truncate(path.c_str(), 5000), 0);
  const auto value = reader->ReadTensor(0);
  EXPECT_FALSE(value.ok());
  EXPECT_TRUE(value.status().code() == StatusCode::kCorruption);
  EXPECT_TRUE(value.status().message().find("000001.tds") != std::string::npos);
  const auto rows = reader->Rows(0, 1);
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].definition, 0U);
  EXPECT_EQ(reader->problems().size(), 1U);
  EXPECT_TRUE(reader->Poll());
  EXPECT_EQ(reader->problems().size(), 2U);
  EXPECT_FALSE(reader->Poll());
}

TDBG_TEST(AliasesMayChangeAndNothingElseOfADefinition) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  ShardBuilder shard(SomeHeader());
  Definition definition = SomeDefinition(1, "w");
  shard.AddDefinition(definition);
  shard.AddDefinition(definition);
  definition.aliases = {"tied"};
  shard.AddDefinition(definition);
  definition.shape = {5};
  shard.AddDefinition(definition);
  WriteFile(directory + "/000001.tds", shard.bytes());
  const auto reader = MustOpen(directory);
  EXPECT_EQ(reader->definitions().size(), 2U);
  EXPECT_EQ(reader->definitions().At(1).aliases.size(), 1U);
  EXPECT_EQ(reader->problems().size(), 1U);
  EXPECT_EQ(reader->problems()[0].offset, shard.records()[3].offset);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
