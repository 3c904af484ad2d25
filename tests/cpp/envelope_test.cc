// Envelopes: whatever a shard answers them from (cells of its index, columns,
// records, a tail that still grows), and however it is damaged, they say what
// the rows say.
//
// Seen to fail when: a cell is taken though a column ends within it; the
// checksum of cells is not compared; rows of a step without a record count;
// modes of steps whose rows lie in the shard before are not looked up.

#include "reader/envelope.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>

#include "answers.h"
#include "forged_index.h"
#include "many_rows.h"
#include "reader/run_reader.h"
#include "sanitized.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

const std::vector<CellField> kFields = {CellField::kL2, CellField::kMean,
                                        CellField::kAbsMax};
constexpr std::uint32_t kTrain = 1;
constexpr std::uint32_t kEval = 2;

// --- The grid ----------------------------------------------------------------

TDBG_TEST(AColumnIsFoundFromWhereverTheLastOneWas) {
  EnvelopeGrid grid(1, {-5, 0, 10, 11, 64}, {});
  EXPECT_EQ(grid.n_columns(), 4U);
  EXPECT_EQ(grid.widest(), 53);
  for (const std::int64_t from : {-5, -1, 0, 9, 10, 11, 63}) {
    for (std::int64_t step = -7; step < 67; ++step) {
      (void)grid.FindColumn(from);
      const auto column = grid.FindColumn(step);
      if (step < -5 || step >= 64) {
        EXPECT_FALSE(column.has_value());
      } else {
        const std::size_t expected = step < 0    ? 0U
                                     : step < 10 ? 1U
                                     : step < 11 ? 2U
                                                 : 3U;
        EXPECT_EQ(column.value(), expected);
      }
    }
  }
  EXPECT_TRUE(grid.IsCut(9, 10));
  EXPECT_TRUE(grid.IsCut(-6, -5));
  EXPECT_FALSE(grid.IsCut(11, 63));
}

TDBG_TEST(AGridWithoutRowsHasNoValues) {
  const EnvelopeGrid grid(2, {0, 5}, {CellField::kL2});
  EXPECT_TRUE(std::isnan(grid.Low(0)[1]));
  EXPECT_TRUE(std::isnan(grid.High(0)[1]));
  EXPECT_TRUE(std::isnan(grid.Mean(0)[1]));
  EXPECT_EQ(grid.rows()[1], 0U);
  EXPECT_EQ(grid.first_bad()[1], EnvelopeGrid::kNone);
  EXPECT_EQ(EnvelopeGrid(3, {7}, {CellField::kL2}).Low(0).size(), 0U);
}

// --- Runs --------------------------------------------------------------------

Row RowOf(std::uint32_t definition, std::int64_t step) {
  Row row = SomeRow(definition, 1.0 + static_cast<double>(step % 97));
  row.summary.nan = step == 150 && definition == 2 ? 1 : 0;
  row.summary.l2 *= step == 77 ? 1000 : 1;
  return row;
}

// Steps [first, end) of three tensors, the third at every fifth; every tenth
// step is one of evaluation.  The last step ends only if `ends`, and the step
// before the first is ended here if `ends_previous`.
ShardBuilder Steps(std::uint32_t number, std::int64_t first, std::int64_t end,
                   bool ends, bool ends_previous, bool seal = true,
                   std::uint64_t first_sequence = 1) {
  FileHeader header = SomeHeader(number);
  header.first_sequence = first_sequence;
  ShardBuilder shard(header);
  for (std::uint32_t id = 1; id <= 3; ++id) {
    shard.AddDefinition(SomeDefinition(id, NameOf(id)));
  }
  StepRecord step;
  step.mode = kTrain;
  if (ends_previous) {
    shard.Add(RecordType::kStep, first - 1, EncodeStep(step), step.mode);
  }
  for (std::int64_t i = first; i < end; ++i) {
    std::vector<Row> rows = {RowOf(1, i), RowOf(2, i)};
    if (i % 5 == 0) rows.push_back(RowOf(3, i));
    shard.AddRows(i, rows);
    shard.AddRows(i, {RowOf(1, i + 1)});  // Another call.
    step.mode = i % 10 == 9 ? kEval : kTrain;
    if (i + 1 < end || ends) {
      shard.Add(RecordType::kStep, i, EncodeStep(step), step.mode);
    }
  }
  if (seal) shard.Seal();
  return shard;
}

// What the rows say, one by one.
EnvelopeGrid Expected(RunReader& reader, const EnvelopeIds& asked,
                      const std::vector<std::int64_t>& edges) {
  EnvelopeGrid grid(3, edges, kFields);
  std::map<std::int64_t, std::uint32_t> modes;
  for (const StepEntry& entry : reader.steps()) {
    modes[entry.record.step] = entry.record.mode;
  }
  for (const ColumnRow& row : reader.Rows(0, reader.n_rows())) {
    const auto mode = modes.find(row.step);
    const auto column = grid.FindColumn(row.step);
    const auto id = std::find(asked.definitions.begin(),
                              asked.definitions.end(), row.definition);
    if (mode == modes.end() || !column || !asked.steps.Includes(row.step) ||
        (asked.mode && *asked.mode != mode->second) ||
        id == asked.definitions.end()) {
      continue;
    }
    const auto at = static_cast<std::size_t>(id - asked.definitions.begin());
    grid.AddRow(asked.names[at], *column, row.step,
                CellRow(row.summary, ExtremeClass::kFloat64));
  }
  return grid;
}

bool AreClose(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i]) ||
        std::abs(a[i] - b[i]) > 1e-5F * (1 + std::abs(b[i]))) {
      return false;
    }
  }
  return a.size() == b.size();
}

bool AreSame(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool AreSame(const EnvelopeGrid& a, const EnvelopeGrid& b) {
  bool same = a.rows() == b.rows() && a.bad() == b.bad() &&
              a.first_bad() == b.first_bad() && a.n_rows() == b.n_rows();
  for (std::size_t i = 0; i < kFields.size(); ++i) {
    same = same && AreSame(a.Low(i), b.Low(i)) &&
           AreSame(a.High(i), b.High(i)) && AreClose(a.Mean(i), b.Mean(i));
  }
  return same;
}

EnvelopeGrid Ask(RunReader& reader, const EnvelopeIds& asked,
                 const std::vector<std::int64_t>& edges) {
  EnvelopeGrid grid(3, edges, kFields);
  std::size_t left = ~std::size_t{0};
  while (left > 0) left = reader.AddToEnvelope(asked, left, &grid);
  return grid;
}

const std::vector<std::vector<std::int64_t>> kEdges = {
    {0, 1000},
    {0, 64, 128, 192, 256, 320, 384},
    {0, 128, 256, 384},
    {0, 100, 200, 300, 400},
    {64, 128, 130, 192, 300},
    {150, 151},
    {70, 77, 78, 90, 500}};

// Asks by every grid, mode and range; the rows of `truth` are the truth.
bool SaysWhatRowsSay(RunReader& reader, RunReader& truth) {
  for (const auto& edges : kEdges) {
    for (const std::optional<std::uint32_t> mode :
         {std::optional<std::uint32_t>(), std::optional(kTrain),
          std::optional(kEval)}) {
      for (const StepRange steps :
           {kAllSteps, StepRange{64, 255}, StepRange{77, 150}}) {
        const EnvelopeIds asked = {.definitions = {3, 1, 2},
                                   .names = {0, 2, 1},
                                   .steps = steps,
                                   .mode = mode};
        if (!AreSame(Ask(reader, asked, edges),
                     Expected(truth, asked, edges))) {
          return false;
        }
      }
    }
  }
  return true;
}

std::unique_ptr<RunReader> Open(const std::string& directory,
                                bool use_caches = true) {
  ReaderOptions options;
  options.use_caches = use_caches;
  return RunReader::Open(directory, options).value();
}

// Four shards: with cells, without (as of an older tdbg), without an index, and
// one that grows.  A step lies across each end.
class FourShards {
 public:
  FourShards() {
    const ShardBuilder first = Steps(1, 0, 130, false, false);
    const ShardBuilder second =
        Steps(2, 130, 260, false, true, true, first.next_sequence());
    const ShardBuilder third =
        Steps(3, 260, 300, false, true, true, second.next_sequence());
    const ShardBuilder last =
        Steps(4, 300, 380, false, true, false, third.next_sequence());
    WriteFile(directory() + "/000001.tds", first.bytes());
    WriteFile(directory() + "/000001.tdi", first.Index());
    const Forged older = WithoutCells(second);
    WriteFile(directory() + "/000002.tds", older.shard);
    WriteFile(directory() + "/000002.tdi", older.index);
    WriteFile(directory() + "/000003.tds", third.bytes());
    WriteFile(directory() + "/000004.tds", last.bytes());
  }
  [[nodiscard]] std::string directory() const { return directory_; }

 private:
  TemporaryDirectory temporary_;
  std::string directory_ = temporary_.Writer();
};

TDBG_TEST(EveryKindOfShardSaysWhatItsRowsSay) {
  const FourShards run;
  const auto truth = Open(run.directory(), false);
  EXPECT_EQ(truth->problems().size(), 0U);
  const auto reader = Open(run.directory());
  EXPECT_TRUE(SaysWhatRowsSay(*reader, *truth));
  EXPECT_TRUE(SaysWhatRowsSay(*reader, *truth));  // From the cells it made.
  EXPECT_TRUE(SaysWhatRowsSay(*truth, *truth));
  EXPECT_EQ(reader->problems().size(), 0U);
}

TDBG_TEST(TheStepThatWasNotEndedIsLeftOut) {
  const FourShards run;
  const auto reader = Open(run.directory());
  const EnvelopeIds asked = {
      .definitions = {1}, .names = {0}, .steps = kAllSteps, .mode = {}};
  const EnvelopeGrid grid = Ask(*reader, asked, {0, 379, 380});
  EXPECT_EQ(grid.rows()[0], 2U * 379);
  EXPECT_EQ(grid.rows()[1], 0U);
}

TDBG_TEST(ASpikeAndABadRowAreThereInEveryGrid) {
  const FourShards run;
  const auto reader = Open(run.directory());
  const EnvelopeIds asked = {
      .definitions = {1, 2}, .names = {0, 1}, .steps = kAllSteps, .mode = {}};
  for (std::int64_t width = 1; width < 400; ++width) {
    std::vector<std::int64_t> edges;
    for (std::int64_t at = 0; at < 400 + width; at += width) {
      edges.push_back(at);
    }
    const EnvelopeGrid grid = Ask(*reader, asked, edges);
    const auto column = static_cast<std::size_t>(77 / width);
    const auto bad = static_cast<std::size_t>(150 / width);
    EXPECT_EQ(grid.High(0)[column], 78000.0F);
    EXPECT_EQ(grid.bad()[grid.n_columns() + bad], 1U);
    EXPECT_EQ(grid.first_bad()[1], 150);
    EXPECT_EQ(grid.first_bad()[0], EnvelopeGrid::kNone);
  }
}

TDBG_TEST(CellsAreReadInThePlaceOfRows) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Steps(1, 0, 200, true, false);
  WriteFile(directory + "/000001.tds", shard.bytes());
  Bytes index = shard.Index();
  const EnvelopeIds asked = {
      .definitions = {1}, .names = {0}, .steps = kAllSteps, .mode = {}};
  const std::vector<std::int64_t> edges = {0, 64, 128, 192, 256};
  WriteFile(directory + "/000001.tdi", index);
  const EnvelopeGrid expected = Ask(*Open(directory), asked, edges);
  // Were the rows read, they would not be found.
  for (const Section& section : SectionsOf(index)) {
    if (section.kind != SectionKind::kColumns) continue;
    std::fill_n(index.data() + section.offset, section.n_bytes(),
                std::byte{0xee});
  }
  WriteFile(directory + "/000001.tdi", index);
  Bytes records = shard.bytes();
  for (const PlacedRecord& record : shard.records()) {
    if (record.header.type == RecordType::kRows) {
      records[record.offset + 100] ^= std::byte{1};
    }
  }
  WriteFile(directory + "/000001.tds", records);
  const auto reader = Open(directory);
  EXPECT_TRUE(AreSame(Ask(*reader, asked, edges), expected));
  EXPECT_EQ(reader->problems().size(), 0U);
}

TDBG_TEST(BucketsOfSealedShardsAreTold) {
  const FourShards run;
  const auto reader = Open(run.directory());
  const auto buckets = reader->FindBuckets(kAllSteps);
  EXPECT_EQ(buckets.size(), 3U);
  for (const CellBuckets& of_shard : buckets) {
    EXPECT_EQ(of_shard.steps, 64);
    EXPECT_GT(of_shard.n_rows, 80U);
  }
  EXPECT_EQ(reader->FindBuckets({0, 99}).size(), 2U);  // One has no index.
}

// --- Damage ------------------------------------------------------------------

// Flips bytes of the cells, of their groups and of what tells of both.
TDBG_TEST(NoByteOfTheCellsCanChangeAnAnswer) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Steps(1, 0, 200, true, false);
  WriteFile(directory + "/000001.tds", shard.bytes());
  const Bytes& index = shard.Index();
  const std::string path = directory + "/000001.tdi";
  WriteFile(path, index);
  const EnvelopeIds asked = {.definitions = {1, 2, 3},
                             .names = {0, 1, 2},
                             .steps = kAllSteps,
                             .mode = {}};
  const std::vector<std::int64_t> edges = {0, 64, 128, 192, 256};
  const EnvelopeGrid expected = Expected(*Open(directory), asked, edges);
  const auto footer =
      DecodeIndexFooter(std::span(index).subspan(index.size() - 64)).value();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places = {
      {footer.directory_offset, index.size()}};
  for (const Section& section : SectionsOf(index)) {
    if (section.kind == SectionKind::kCells ||
        section.kind == SectionKind::kCellGroups) {
      places.emplace_back(section.offset, section.offset + section.n_bytes());
    }
  }
  EXPECT_EQ(places.size(), 3U);
  const int fd = ::open(path.c_str(), O_RDWR);
  std::uint64_t n = 0;
  for (const auto& [begin, end] : places) {
    for (std::uint64_t at = begin; at < end; at += kIsSanitized ? 5 : 1) {
      Poke(fd, at, index[at] ^ static_cast<std::byte>(1 + at * 31 % 255));
      ++n;
      const auto reader = Open(directory);
      if (!AreSame(Ask(*reader, asked, edges), expected) ||
          !reader->problems().empty()) {
        Fail(__FILE__, __LINE__, "byte " + std::to_string(at));
        return;
      }
      Poke(fd, at, index[at]);
    }
  }
  ::close(fd);
  std::printf("       %llu damaged bytes\n",
              static_cast<unsigned long long>(n));
}

// Cells that change under a reader that has used them.
TDBG_TEST(CellsThatGoUnderAReaderChangeNoAnswer) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Steps(1, 0, 200, true, false);
  WriteFile(directory + "/000001.tds", shard.bytes());
  const std::string path = directory + "/000001.tdi";
  WriteFile(path, shard.Index());
  const auto truth = Open(directory, false);
  for (const bool cut : {false, true}) {
    WriteFile(path, shard.Index());
    const auto reader = Open(directory);
    EXPECT_TRUE(SaysWhatRowsSay(*reader, *truth));
    if (cut) {
      EXPECT_EQ(::truncate(path.c_str(), 100), 0);
    } else {
      std::filesystem::remove(path);
    }
    EXPECT_TRUE(SaysWhatRowsSay(*reader, *truth));
  }
}

// Somebody made checksums fit: what a cell says of itself is checked, and
// nothing faults.
TDBG_TEST(NoPlaceInForgedCellsIsBelieved) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Steps(1, 0, 200, true, false);
  const Bytes& index = shard.Index();
  const EnvelopeIds asked = {.definitions = {1, 2, 3},
                             .names = {0, 1, 2},
                             .steps = kAllSteps,
                             .mode = {}};
  const std::vector<std::int64_t> edges = {0, 64, 128, 192, 256};
  WriteFile(directory + "/000001.tds", shard.bytes());
  const EnvelopeGrid expected = Expected(*Open(directory), asked, edges);
  std::uint64_t cells_at = 0;
  std::uint64_t groups_at = 0;
  for (const Section& section : SectionsOf(index)) {
    if (section.kind == SectionKind::kCells) cells_at = section.offset;
    if (section.kind == SectionKind::kCellGroups) groups_at = section.offset;
  }
  Group group;
  std::memcpy(&group, index.data() + groups_at, sizeof(group));
  for (std::uint64_t at = 0; at < sizeof(Group) + 48; at += 4) {
    for (const std::uint32_t lie : {0U, 1U, 0x7fffffffU, 0xffffffffU}) {
      Bytes lying = index;
      const bool in_group = at < sizeof(Group);
      Store(lying.data() +
                (in_group ? groups_at + at : cells_at + at - sizeof(Group)),
            lie);
      if (!in_group) {
        Store(lying.data() + groups_at + 4,
              MaskedCrc32c(lying.data() + cells_at, group.n * sizeof(Cell)));
      }
      const Forged forged = Forge(shard, lying);
      WriteFile(directory + "/000001.tds", forged.shard);
      WriteFile(directory + "/000001.tdi", forged.index);
      const auto reader = Open(directory);
      const EnvelopeGrid grid = Ask(*reader, asked, edges);
      // Lies about the group, the definition and the number of rows are found.
      const bool is_found =
          in_group || at - sizeof(Group) == 24 || at - sizeof(Group) == 32;
      if (is_found && !AreSame(grid, expected)) {
        Fail(__FILE__, __LINE__, "word at " + std::to_string(at));
      }
      // Other tensors are as they were.
      EXPECT_TRUE(AreSame(Ask(*reader,
                              {.definitions = {2},
                               .names = {0},
                               .steps = kAllSteps,
                               .mode = {}},
                              edges),
                          Expected(*reader,
                                   {.definitions = {2},
                                    .names = {0},
                                    .steps = kAllSteps,
                                    .mode = {}},
                                   edges)));
    }
  }
}

// A damaged `rows` record costs its rows, and no others.
TDBG_TEST(DamagedRecordsCostTheirRowsOnly) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Steps(1, 0, 200, true, false);
  Bytes damaged = shard.bytes();
  std::size_t n = 0;
  for (const PlacedRecord& record : shard.records()) {
    if (record.header.type == RecordType::kRows && ++n % 50 == 0) {
      damaged[record.offset + 100] ^= std::byte{1};
    }
  }
  WriteFile(directory + "/000001.tds", damaged);
  const auto reader = Open(directory);
  EXPECT_EQ(reader->problems().size(), 8U);
  EXPECT_TRUE(SaysWhatRowsSay(*reader, *reader));
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
