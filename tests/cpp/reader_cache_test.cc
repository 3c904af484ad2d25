// The index and the commit page are caches: whatever happens to them, the
// answers about recorded data stay.
//
// Seen to fail when: the checksum of a table or of a column is not compared;
// the directory's is not that of `end`; a lower commit counter is taken; a
// zombie passes for a live process.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "answers.h"
#include "base/clock.h"
#include "base/process.h"
#include "complete_shard.h"
#include "format/commit_page.h"
#include "many_rows.h"
#include "reader/commit_reader.h"
#include "reader/run_reader.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

TDBG_TEST(DamagedCachesUnderAReaderChangeNoAnswer) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = ManyRows(3);
  WriteFile(directory + "/000001.tds", shard.bytes());
  const Bytes index = shard.Index();
  CommitSlot slot;
  slot.visible = 64;
  const auto page = EncodeCommitPage({}, slot);
  const Bytes commit(page.begin(), page.end());
  ReaderOptions without;
  without.use_caches = false;
  const auto plain = RunReader::Open(directory, without);
  const Answers expected = AnswersOf(*plain.value());
  const auto check = [&] {
    const auto reader = RunReader::Open(directory, {});
    EXPECT_TRUE(AnswersOf(*reader.value()) == expected);
    EXPECT_EQ(reader.value()->problems().size(), 0U);
  };
  for (const auto& [name, bytes] :
       {std::pair("/000001.tdi", index), std::pair("/COMMIT", commit)}) {
    const std::string path = directory + name;
    WriteFile(path, bytes);
    check();
    const std::size_t n = std::min<std::size_t>(bytes.size(), 4096);
    for (std::size_t at = 0; at < n; ++at) {
      Bytes damaged = bytes;
      damaged[at] ^= std::byte{0x41};
      WriteFile(path, damaged);
      check();
    }
    // Under a reader that has already read it.
    WriteFile(path, bytes);
    const auto reader = RunReader::Open(directory, {});
    EXPECT_TRUE(AnswersOf(*reader.value()) == expected);
    for (std::size_t at = 64; at < n; at += 7) {
      Bytes damaged = bytes;
      damaged[at] ^= std::byte{0x41};
      WriteFile(path, damaged);
      reader.value()->Poll();
      EXPECT_TRUE(AnswersOf(*reader.value()) == expected);
    }
    std::filesystem::remove(path);
    reader.value()->Poll();
    EXPECT_TRUE(AnswersOf(*reader.value()) == expected);
    check();
  }
}

TDBG_TEST(AColumnComesFromTheIndexAlone) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = ManyRows(50);
  const std::string path = directory + "/000001.tds";
  WriteFile(path, shard.bytes());
  WriteFile(directory + "/000001.tdi", shard.Index());
  ReaderOptions options;
  options.map_files = false;
  const auto reader = RunReader::Open(directory, options);
  const std::vector<std::uint32_t> wanted = {2};
  const auto rows = reader.value()->Column(wanted);
  EXPECT_EQ(rows.size(), 50U);
  // Were the records read, this would be noticed.
  const int fd = ::open(path.c_str(), O_RDWR);
  for (const PlacedRecord& record : shard.records()) {
    Poke(fd, record.offset + 100, std::byte{0xee});
  }
  ::close(fd);
  EXPECT_TRUE(TextOfRows(reader.value()->Column(wanted)) == TextOfRows(rows));
  EXPECT_EQ(reader.value()->problems().size(), 0U);
  EXPECT_EQ(reader.value()->Rows(0, 4).size(), 4U);
  EXPECT_GT(reader.value()->problems().size(), 0U);
}

TDBG_TEST(TheIndexOfAnotherShardIsNotUsed) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = ManyRows(3);
  WriteFile(directory + "/000001.tds", shard.bytes());
  // As long, with as many rows, of the same number: other rows, another salt.
  FileHeader header = SomeHeader();
  ++header.salt;
  ShardBuilder other(header);
  for (std::uint32_t id = 1; id <= 4; ++id) {
    other.AddDefinition(SomeDefinition(id, NameOf(id)));
  }
  for (int step = 0; step < 3; ++step) {
    other.AddRows(step, {SomeRow(1, -7), SomeRow(2, -7)});
    other.AddRows(step, {SomeRow(3, -7), SomeRow(1, -7)});
  }
  other.Seal();
  EXPECT_EQ(other.bytes().size(), shard.bytes().size());
  WriteFile(directory + "/000001.tdi", other.Index());
  const auto reader = RunReader::Open(directory, {});
  const auto rows = reader.value()->Column(std::vector<std::uint32_t>{2});
  EXPECT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].summary.max.f64, 1.5);
}

TDBG_TEST(ManyColumnsStandInTheOrderOfTheRecords) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = ManyRows(20);
  WriteFile(directory + "/000001.tds", shard.bytes());
  WriteFile(directory + "/000001.tdi", shard.Index());
  ReaderOptions without;
  without.use_caches = false;
  for (const std::vector<std::uint32_t>& wanted :
       {std::vector<std::uint32_t>{3, 2}, {2, 3, 1}, {}, {4}, {9}, {2, 2}}) {
    const auto a = RunReader::Open(directory, {});
    const auto b = RunReader::Open(directory, without);
    EXPECT_TRUE(TextOfRows(a.value()->Column(wanted)) ==
                TextOfRows(b.value()->Column(wanted)));
  }
  const auto reader = RunReader::Open(directory, {});
  EXPECT_TRUE(TextOfRows(reader.value()->Column(std::vector<std::uint32_t>{
                  1, 2, 3, 4})) == TextOfRows(reader.value()->Rows(0, 80)));
}

TDBG_TEST(AShardThatWasWalkedGivesItsTablesToItsIndex) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = ManyRows(500);
  const std::string path = directory + "/000001.tds";
  const Bytes& bytes = shard.bytes();
  const std::uint64_t middle = shard.records()[500].offset;
  WriteFile(path, Bytes(bytes.begin(),
                        bytes.begin() + static_cast<std::ptrdiff_t>(middle)));
  const auto reader = RunReader::Open(directory, {});
  EXPECT_GT(reader.value()->n_rows(), 500U);
  WriteFile(path, bytes);
  reader.value()->Poll();
  const std::uint64_t walked = reader.value()->n_held();
  EXPECT_GT(walked, 1000 * sizeof(RowsPlace));
  const Answers expected = AnswersOf(*reader.value());
  WriteFile(directory + "/000001.tdi", shard.Index());
  FileHeader header = SomeHeader();
  header.shard_number = 2;
  header.first_sequence = shard.records().back().header.sequence + 1;
  WriteFile(directory + "/000002.tds", ShardBuilder(header).bytes());
  reader.value()->Poll();
  EXPECT_LT(reader.value()->n_held(), walked / 10);
  EXPECT_TRUE(AnswersOf(*reader.value()) == expected);
  EXPECT_EQ(reader.value()->SavedSteps({100, 399}, {}, {}).size(), 300U);
  const std::vector<std::uint32_t> none = {4};
  EXPECT_EQ(reader.value()->SavedSteps(kAllSteps, none, {}).size(), 0U);
  EXPECT_EQ(reader.value()->problems().size(), 0U);
}

// --- Liveness --------------------------------------------------------------

CommitHeader Here(std::uint32_t pid) {
  CommitHeader header;
  header.pid = pid;
  header.boot_id = BootId();
  header.host = HostId();
  header.process_start = ProcessStart(pid);
  return header;
}

class LivenessCase {
 public:
  LivenessCase() : directory_(temporary_.Writer()) {
    WriteFile(directory_ + "/000001.tds", ShardBuilder(SomeHeader()).bytes());
  }
  Liveness Of(const CommitHeader& header, const CommitSlot& slot) {
    const auto page = EncodeCommitPage(header, slot);
    WriteFile(directory_ + "/COMMIT", page);
    return RunReader::Open(directory_, {}).value()->liveness();
  }
  const std::string& directory() const { return directory_; }

 private:
  TemporaryDirectory temporary_;
  std::string directory_;
};

TDBG_TEST(ThePageTellsWhetherTheWriterLives) {
  LivenessCase c;
  const auto self = static_cast<std::uint32_t>(::getpid());
  CommitSlot slot;
  slot.heartbeat_ns = BootNs();
  EXPECT_TRUE(c.Of(Here(self), slot) == Liveness::kRunning);
  slot.state = WriterState::kDegraded;
  EXPECT_TRUE(c.Of(Here(self), slot) == Liveness::kRunning);
  slot.heartbeat_ns -= 11'000'000'000;
  EXPECT_TRUE(c.Of(Here(self), slot) == Liveness::kStalled);
  slot.heartbeat_ns = std::numeric_limits<std::int64_t>::min();
  EXPECT_TRUE(c.Of(Here(self), slot) == Liveness::kStalled);
  slot.state = WriterState::kClosed;
  EXPECT_TRUE(c.Of(Here(self), slot) == Liveness::kClosed);

  slot.state = WriterState::kRunning;
  CommitHeader header = Here(self);
  ++header.process_start;  // A later process of the same id.
  EXPECT_TRUE(c.Of(header, slot) == Liveness::kDead);
  header.boot_id[0] ^= std::byte{1};
  EXPECT_TRUE(c.Of(header, slot) == Liveness::kUnknown);
  header = Here(self);
  header.host[0] ^= std::byte{1};
  EXPECT_TRUE(c.Of(header, slot) == Liveness::kUnknown);
}

TDBG_TEST(AProcessThatIsGoneOrAZombieIsDead) {
  LivenessCase c;
  int gate[2];
  EXPECT_EQ(::pipe(gate), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char wait = 0;
    ::_exit(::read(gate[0], &wait, 1) == 1 ? 0 : 1);
  }
  const CommitHeader header = Here(static_cast<std::uint32_t>(child));
  CommitSlot slot;
  slot.heartbeat_ns = BootNs();
  EXPECT_TRUE(c.Of(header, slot) == Liveness::kRunning);
  EXPECT_EQ(::write(gate[1], "x", 1), 1);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_TRUE(c.Of(header, slot) == Liveness::kDead);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(c.Of(header, slot) == Liveness::kDead);
  ::close(gate[0]);
  ::close(gate[1]);
}

TDBG_TEST(ADeadWriterSettlesItsTail) {
  LivenessCase c;
  ShardBuilder shard(SomeHeader());
  shard.Add(RecordType::kEvent, 0, EncodeEvent(Event{}));
  Bytes cut = shard.bytes();
  cut.resize(cut.size() - 64);
  WriteFile(c.directory() + "/000001.tds", cut);
  EXPECT_EQ(RunReader::Open(c.directory(), {}).value()->problems().size(), 0U);
  CommitSlot slot;
  slot.state = WriterState::kClosed;
  EXPECT_TRUE(c.Of({}, slot) == Liveness::kClosed);
  const auto reader = RunReader::Open(c.directory(), {});
  EXPECT_EQ(reader.value()->problems().size(), 1U);
  EXPECT_TRUE(reader.value()->problems()[0].kind == ProblemKind::kTornTail);
}

std::uint64_t Visible(const RunReader& reader) {
  const auto slot = reader.commit();
  return slot ? slot->visible : 0;
}

TDBG_TEST(TheCommitCounterNeverFalls) {
  LivenessCase c;
  CommitSlot slot;
  slot.counter = 8;
  slot.visible = 800;
  c.Of({}, slot);
  const auto reader = RunReader::Open(c.directory(), {});
  EXPECT_EQ(Visible(*reader.value()), 800U);
  slot.counter = 7;
  slot.visible = 700;
  c.Of({}, slot);
  reader.value()->Poll();
  EXPECT_EQ(Visible(*reader.value()), 800U);
  slot.counter = 9;
  slot.visible = 900;
  c.Of({}, slot);
  reader.value()->Poll();
  EXPECT_EQ(Visible(*reader.value()), 900U);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
