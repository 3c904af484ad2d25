// The index under damage: no byte of it can change an answer, and no damage of
// the shard that it hides can give a wrong one.
//
// Seen to fail when: the checksum of a table or of a column is not compared;
// the directory's is not that of `end`; a full check compares no table.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "answers.h"
#include "complete_shard.h"
#include "forged_index.h"
#include "many_rows.h"
#include "reader/run_reader.h"
#include "sanitized.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr unsigned kFlipStep = kIsSanitized ? 128 : 64;

// Each table of the index is asked for, by questions and as a whole.
Answers Ask(RunReader* asked) {
  RunReader& reader = *asked;
  AnswerText text;
  for (std::int64_t step = -1; step < 4; ++step) {
    const StepRange here = {step, step};
    text.Put(reader.HasData(step));
    for (const Segment& segment : reader.FindSegments(here)) {
      text.Put(segment);
      const auto ids = reader.Signature(segment.signature);
      text.Put(std::vector<std::uint32_t>(ids.begin(), ids.end()));
    }
    const std::vector<RunReader::DefinitionFilter> choices = {
        std::nullopt, std::vector<std::uint32_t>{2, 1},
        std::vector<std::uint32_t>{5}, std::vector<std::uint32_t>()};
    for (const auto& wanted : choices) {
      for (const auto& found : reader.FindTensors(here, wanted)) {
        text.Put(found);
      }
      for (const auto& found : reader.FindScalars(here, wanted)) {
        text.Put(found.place);
        text.Put(found.entry.scalar.value);
      }
    }
    text.Put(TextOfRows(reader.FindRows(here, std::vector{1U, 3U})));
  }
  text.Put(reader.FindTensors(kAllSteps, std::vector<std::uint32_t>{1}).size());
  const auto range = reader.RecordedSteps();
  text.Put(range ? range->first : -2);
  text.Put(range ? range->last : -2);
  text.Put(reader.n_rows() + reader.n_tensors() + reader.n_scalars());
  for (const std::uint32_t id : reader.definitions().IdsOf("w1")) text.Put(id);
  Answers answers = AnswersOf(reader);
  answers.tables += text.Take();
  return answers;
}

Answers AskEverything(const std::string& directory,
                      const ReaderOptions& options = {}) {
  const auto opened = RunReader::Open(directory, options);
  return Ask(opened.value().get());
}

// Of eight steps: of fewer no column is read, since records cost less.
TDBG_TEST(NoByteOfTheIndexCanChangeAnAnswer) {
  const TemporaryDirectory temporary;
  for (const bool complete : {false, true}) {
    const std::string directory =
        temporary.Writer(complete ? "train-3-2" : "train-0-1");
    const ShardBuilder shard = complete ? CompleteShard() : ManyRows(8);
    WriteFile(directory + "/000001.tds", shard.bytes());
    ReaderOptions without;
    without.use_caches = false;
    const Answers expected = AskEverything(directory, without);
    const Bytes& index = shard.Index();
    WriteFile(directory + "/000001.tdi", index);
    EXPECT_TRUE(AskEverything(directory) == expected);
    const int fd = ::open((directory + "/000001.tdi").c_str(), O_RDWR);
    std::uint64_t n = 0;
    for (std::uint64_t at = 0; at < index.size(); ++at) {
      // All values of a byte are many questions: every byte gets some.
      for (unsigned flip = 1 + static_cast<unsigned>(at % 7); flip < 256;
           flip += kFlipStep) {
        Poke(fd, at, index[at] ^ static_cast<std::byte>(flip));
        ++n;
        if (!(AskEverything(directory) == expected)) {
          Fail(__FILE__, __LINE__, "byte " + std::to_string(at));
          return;
        }
      }
      Poke(fd, at, index[at]);
    }
    for (std::size_t length = 0; length < index.size(); length += 7) {
      EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(length)), 0);
      EXPECT_TRUE(AskEverything(directory) == expected);
    }
    std::printf("       %llu damaged bytes, %zu lengths\n",
                static_cast<unsigned long long>(n), index.size() / 7);
    ::close(fd);
  }
}

// Damage within a record of a shard that has its index: what the index holds is
// answered from it, what it does not is refused and told, and the rest stays.
TDBG_TEST(NoDamagedByteOfAShardThatHasAnIndexGivesAWrongAnswer) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer("train-3-2");
  const ShardBuilder shard = CompleteShard();
  const std::string path = directory + "/000001.tds";
  WriteFile(path, shard.bytes());
  WriteFile(directory + "/000001.tdi", shard.Index());
  const auto whole = RunReader::Open(directory, {});
  const auto expected = whole.value()->Rows(0, whole.value()->n_rows());
  const Answers pristine = AnswersOf(*whole.value());
  const int fd = ::open(path.c_str(), O_RDWR);
  std::uint64_t n_told = 0;
  for (std::uint64_t at = 0; at < shard.bytes().size(); ++at) {
    const auto flip = static_cast<std::byte>(1 + (at * 31) % 255);
    Poke(fd, at, shard.bytes()[at] ^ flip);
    const auto opened = RunReader::Open(directory, {});
    RunReader& reader = *opened.value();
    bool wrong = false;
    for (const std::uint32_t id : {1U, 2U, 5U}) {
      const auto column = reader.Column(std::vector{id});
      const auto right = whole.value()->Column(std::vector{id});
      // All of it, from the index, or less where the shard itself was refused.
      wrong |= !column.empty() && TextOfRows(column) != TextOfRows(right);
    }
    const auto rows = reader.Rows(0, reader.n_rows());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      wrong |= rows[i].definition != 0 && rows.size() == expected.size() &&
               TextOfRows({rows[i]}) != TextOfRows({expected[i]});
    }
    for (std::size_t i = 0; i < reader.n_tensors(); ++i) {
      const auto value = ValueOf(reader.ReadTensor(i));
      wrong |= reader.n_tensors() == 6 && value && value != pristine.values[i];
      n_told += value || i == 5 ? 0 : 1;
    }
    for (const EventEntry& event : reader.events()) {
      wrong |= event.event.json != R"({"save_interval": 500})";
    }
    for (const Gap& gap : reader.gaps()) wrong |= gap.bytes != 4096;
    n_told += reader.problems().size();
    if (wrong) {
      Fail(__FILE__, __LINE__, "byte " + std::to_string(at));
      return;
    }
    Poke(fd, at, shard.bytes()[at]);
  }
  ::close(fd);
  // Nearly every byte belongs to a value, a row, an event or a header.
  std::printf("       %llu times told\n",
              static_cast<unsigned long long>(n_told));
  EXPECT_GT(n_told, shard.bytes().size() / 2);
}

TDBG_TEST(DamageBehindTheIndexIsFoundByAFullCheck) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = ManyRows(3);
  Bytes damaged = shard.bytes();
  damaged[shard.records()[6].offset + 100] ^= std::byte{1};
  WriteFile(directory + "/000001.tds", damaged);
  WriteFile(directory + "/000001.tdi", shard.Index());
  const auto reader = RunReader::Open(directory, {});
  EXPECT_EQ(reader.value()->problems().size(), 0U);
  EXPECT_EQ(reader.value()->Column(std::vector{3U}).size(), 3U);
  ReaderOptions without;
  without.use_caches = false;
  const auto plain = RunReader::Open(directory, without);
  EXPECT_EQ(plain.value()->problems().size(), 1U);
}

// Somebody made checksums fit: then every place is checked, no value is wrong,
// and nothing faults.
TDBG_TEST(NoPlaceInAForgedIndexIsBelieved) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer("train-3-2");
  const ShardBuilder shard = CompleteShard();
  WriteFile(directory + "/000001.tds", shard.bytes());
  const auto plain = RunReader::Open(directory, {});
  const Answers expected = AnswersOf(*plain.value());
  const Bytes& index = shard.Index();
  std::uint64_t n = 0;
  std::uint64_t n_same = 0;
  for (std::size_t at = 64; at + 64 < index.size(); at += 4) {
    for (const std::uint32_t lie : {0U, 1U, 0x7fffffffU, 0xffffffffU}) {
      Bytes lying = index;
      Store(lying.data() + at, lie);
      if (lying == index) continue;
      // Where the lie is about the sections, their checksums are left alone.
      const auto forged = Forge(shard, index);
      Bytes with_lie = forged.index;
      Store(with_lie.data() + at, lie);
      const auto footer =
          DecodeIndexFooter(std::span(index).subspan(index.size() - 64))
              .value();
      const Forged both = at < footer.directory_offset
                              ? Forge(shard, with_lie)
                              : Forged{forged.shard, with_lie};
      WriteFile(directory + "/000001.tds", both.shard);
      WriteFile(directory + "/000001.tdi", both.index);
      const Answers answers = AskEverything(directory);
      ++n;
      n_same += answers.values == expected.values ? 1 : 0;
      for (const auto& value : answers.values) {
        const bool known =
            !value || std::find(expected.values.begin(), expected.values.end(),
                                value) != expected.values.end();
        if (!known) {
          Fail(__FILE__, __LINE__, "word at " + std::to_string(at));
          return;
        }
      }
    }
  }
  std::printf("       %llu lies, %llu without effect on values\n",
              static_cast<unsigned long long>(n),
              static_cast<unsigned long long>(n_same));
  EXPECT_GT(n, 3000U);
}

// Two hundred steps of two tensors: their index has cells.
ShardBuilder ShardWithCells() {
  ShardBuilder shard(SomeHeader());
  for (const std::uint32_t id : {1U, 2U}) {
    shard.AddDefinition(SomeDefinition(id, NameOf(id)));
  }
  for (int step = 0; step < 200; ++step) {
    shard.AddRows(step, {SomeRow(1, step), SomeRow(2, step + 0.5)});
    StepRecord ended;
    ended.step = step;
    ended.mode = 1;
    shard.Add(RecordType::kStep, step, EncodeStep(ended));
  }
  shard.Seal();
  return shard;
}

// Makes the checksums of columns and of cells fit; Forge makes all others.
void FitGroups(Bytes* index, const std::vector<Section>& sections) {
  const auto find = [&](SectionKind kind) {
    return std::ranges::find(sections, kind, &Section::kind);
  };
  for (const auto& [of_groups, of_members] :
       {std::pair(SectionKind::kColumnGroups, SectionKind::kColumns),
        std::pair(SectionKind::kCellGroups, SectionKind::kCells)}) {
    const auto groups = find(of_groups);
    const auto members = find(of_members);
    if (groups == sections.end() || members == sections.end()) continue;
    for (std::uint64_t i = 0; i < groups->n_entries; ++i) {
      std::byte* const at = index->data() + groups->offset + i * sizeof(Group);
      Group group;
      std::memcpy(&group, at, sizeof(group));
      const std::uint64_t size = members->entry_size;
      if (group.first + group.n > members->n_entries) continue;
      Store(at + 4,
            MaskedCrc32c(index->data() + members->offset + group.first * size,
                         group.n * size));
    }
  }
}

// Whoever can make all checksums fit may make an index lie.  A full check says
// so wherever a reader would tell something else.
TDBG_TEST(AFullCheckFindsWhateverAnIndexSaysThatItsRecordsDoNot) {
  ReaderOptions full;
  full.use_index = false;
  full.check_index = true;
  std::uint64_t n = 0;
  for (const bool has_cells : {false, true}) {
    const TemporaryDirectory temporary;
    const std::string directory =
        temporary.Writer(has_cells ? "train-0-1" : "train-3-2");
    const ShardBuilder shard = has_cells ? ShardWithCells() : CompleteShard();
    const Bytes& index = shard.Index();
    WriteFile(directory + "/000001.tds", shard.bytes());
    WriteFile(directory + "/000001.tdi", index);
    const std::size_t n_before =
        RunReader::Open(directory, full).value()->problems().size();
    EXPECT_EQ(n_before, 0U);
    const Answers right = AskEverything(directory);
    const std::vector<Section> sections = SectionsOf(index);
    for (const Section& section : sections) {
      // Readers pass over cells of another definition than their group's.
      const auto is_believed = [&](std::uint64_t byte) {
        return section.kind == SectionKind::kCells &&
               byte % sizeof(Cell) != offsetof(Cell, definition);
      };
      const std::uint64_t n_bytes =
          std::min<std::uint64_t>(section.n_bytes() & ~3ULL, 240);
      for (std::uint64_t at = 0; at < n_bytes; at += 4) {
        Bytes lying = index;
        std::byte* const word = lying.data() + section.offset + at;
        Store(word, Load<std::uint32_t>(word) ^ 0x40000001U);
        FitGroups(&lying, sections);
        const Forged forged = Forge(shard, lying);
        WriteFile(directory + "/000001.tds", forged.shard);
        WriteFile(directory + "/000001.tdi", forged.index);
        ++n;
        const auto checked = RunReader::Open(directory, full);
        const auto& problems = checked.value()->problems();
        const bool is_told =
            std::ranges::any_of(problems, [](const Problem& problem) {
              return problem.file == "000001.tdi" &&
                     problem.kind == ProblemKind::kDamage;
            });
        if (is_told) continue;
        if (is_believed(at) || !(AskEverything(directory) == right)) {
          Fail(__FILE__, __LINE__,
               "section " +
                   std::to_string(static_cast<unsigned>(section.kind)) +
                   ", byte " + std::to_string(at));
        }
      }
    }
  }
  std::printf("       %llu lies\n", static_cast<unsigned long long>(n));
}

// tests/attacks/index: shards and indexes that fit each other but for one
// abuse. A record of each shard is damaged, so that problems tell when it was
// walked.
TDBG_TEST(EveryAttackByAnIndexIsStoppedByTheCheckThatItIsNamedAfter) {
  const std::string folder = TDBG_SOURCE_DIR "/tests/attacks/";
  std::ifstream list(folder + "indexes.txt");
  std::string name;
  std::string expected;
  int n = 0;
  for (; list >> name >> expected; ++n) {
    const TemporaryDirectory temporary;
    const std::string directory = temporary.Writer();
    const Bytes shard = ReadFile(folder + "index/" + name + ".tds");
    WriteFile(directory + "/000001.tds", shard);
    WriteFile(directory + "/000001.tdi",
              ReadFile(folder + "index/" + name + ".tdi"));
    ReaderOptions without;
    without.use_caches = false;
    const Answers right = AskEverything(directory, without);
    for (const bool map_files : {false, true}) {
      ReaderOptions options;
      options.map_files = map_files;
      const auto opened = RunReader::Open(directory, options);
      RunReader& reader = *opened.value();
      std::string walked = "never";
      if (!reader.problems().empty()) walked = "opened";
      (void)Ask(&reader);
      if (!reader.problems().empty() && walked == "never") walked = "asked";
      const std::string& last =
          reader.problems().empty() ? "" : reader.problems().back().message;
      if (last.starts_with("its index told of fewer")) walked = "told";
      if (walked != expected) {
        Fail(__FILE__, __LINE__, name + ": " + expected + ", not " + walked);
      }
      if (walked != "told" && !(AskEverything(directory, options) == right)) {
        Fail(__FILE__, __LINE__, name + ": another answer");
      }
      EXPECT_GE(right.tables.size(), 1000U);
    }
  }
  EXPECT_GE(n, 80);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
