// Damage to a shard that holds every kind of record: each byte, each length,
// and whole blocks that were lost, repeated or exchanged.
//
// Seen to fail when: the zero padding is not checked; the checksum of a header,
// of a payload or of a chunk is not compared; the salt is not; a lower sequence
// is accepted; the search for the next record starts late; the first header
// that holds is believed.

#include <cstdio>

#include "answers.h"
#include "complete_shard.h"
#include "format/record.h"
#include "sanitized.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

// The bits of each byte, and all of them; under a sanitizer three of these.
std::vector<unsigned> FewFlips() {
  if (RepeatsLess()) return {1, 128, 255};
  return {1, 2, 4, 8, 16, 32, 64, 128, 255};
}

std::vector<unsigned> Flips() {
  if (RepeatsLess()) return FewFlips();
  std::vector<unsigned> flips;
  for (unsigned flip = 1; flip < 256; ++flip) flips.push_back(flip);
  return flips;
}

// The shard with record `k` replaced by one of the same length and sequence
// that says nothing: what must be left when record `k` is lost.
Bytes Without(const ShardBuilder& shard, std::size_t k) {
  Bytes bytes = shard.bytes();
  const PlacedRecord& record = shard.records()[k];
  RecordHeader header = record.header;
  const Bytes zeros(header.payload_length);
  header.type = RecordType::kPad;
  header.checked_length = header.payload_length;
  header.payload_crc = MaskedCrc32c(zeros.data(), zeros.size());
  EncodeRecordHeader(
      header, shard.header().salt,
      std::span<std::byte, 64>(bytes.data() + record.offset, 64));
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(record.offset + 64),
            bytes.begin() + static_cast<std::ptrdiff_t>(record.end),
            std::byte{0});
  return bytes;
}

Answers Ask(const ShardBuilder& shard, const Bytes& bytes) {
  MemoryShard memory(bytes, shard.header(), true);
  return memory.Ask();
}

TDBG_TEST(TheCompleteShardReadsWithoutProblems) {
  const ShardBuilder shard = CompleteShard();
  EXPECT_GT(shard.bytes().size(), 10000U);
  EXPECT_LT(shard.bytes().size(), 20000U);
  MemoryShard memory(shard.bytes(), shard.header(), false);
  EXPECT_TRUE(memory.reader.state() == ShardState::kSealed);
  EXPECT_EQ(memory.problems().size(), 0U);
  EXPECT_EQ(memory.definitions().size(), 7U);
  EXPECT_EQ(memory.tables.n_rows, 4U);
  EXPECT_EQ(memory.tensors().size(), 6U);
  EXPECT_EQ(memory.scalars().size(), 2U);
  EXPECT_EQ(memory.steps().size(), 2U);
  EXPECT_EQ(memory.events().size(), 1U);
  EXPECT_EQ(memory.spans().size(), 1U);
  EXPECT_EQ(memory.gaps().size(), 1U);
  EXPECT_EQ(memory.histograms().size(), 1U);
  EXPECT_EQ(memory.tables.samples.size(), 2U);
  const Answers answers = memory.Ask();
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(answers.values[i]);
  // The codec of a later version costs its tensor, and says why.
  EXPECT_FALSE(answers.values[5]);
  EXPECT_TRUE(memory.ReadTensor(5).status().code() == StatusCode::kUnsupported);
}

// Judges one damaged byte.  Returns what is wrong, or nothing.
class ByteJudge {
 public:
  explicit ByteJudge(const ShardBuilder& shard)
      : shard_(shard), pristine_(Ask(shard, shard.bytes())) {
    for (std::size_t k = 0; k < shard.records().size(); ++k) {
      without_.push_back(Ask(shard, Without(shard, k)));
    }
  }

  // Whether the byte is one of a chunk: whatever it is, it is data.
  bool IsData(std::uint64_t at) const {
    if (at < limits::kFileHeader) return false;
    const PlacedRecord& record = shard_.records()[RecordAt(at)];
    return record.header.type == RecordType::kTensor &&
           at >= record.offset + 64 + record.header.checked_length &&
           at < record.offset + 64 + record.header.payload_length;
  }

  std::string Judge(std::uint64_t at, const Bytes& damaged) {
    MemoryShard memory(damaged, shard_.header(), true);
    if (at < limits::kFileHeader) {
      if (memory.reader.state() != ShardState::kRefused) return "accepted";
      if (!(memory.Ask() == Answers{})) return "answers from a refused shard";
      return OneProblem(memory, 0);
    }
    const std::size_t k = RecordAt(at);
    const PlacedRecord& record = shard_.records()[k];
    const Answers answers = memory.Ask();
    if (IsData(at)) return JudgeValues(memory, answers, k, at);
    if (!(answers == without_[k])) return "other answers than without it";
    return OneProblem(memory, record.offset);
  }

 private:
  std::size_t RecordAt(std::uint64_t at) const {
    std::size_t k = 0;
    while (shard_.records()[k].end <= at) ++k;
    return k;
  }

  static std::string OneProblem(const MemoryShard& memory,
                                std::uint64_t offset) {
    if (memory.problems().size() != 1) {
      return std::to_string(memory.problems().size()) + " problems";
    }
    const Problem& problem = memory.problems()[0];
    if (problem.offset != offset)
      return "offset " + std::to_string(problem.offset);
    return "";
  }

  // Bytes of a chunk: no table changes, and no value but that of the tensor
  // and of what is a difference to it.
  std::string JudgeValues(MemoryShard& memory, const Answers& answers,
                          std::size_t k, std::uint64_t at) {
    if (answers.tables != pristine_.tables) return "tables changed";
    const std::uint64_t sequence = shard_.records()[k].header.sequence;
    bool noticed = false;
    for (std::size_t i = 0; i < answers.values.size(); ++i) {
      if (answers.values[i] == pristine_.values[i]) {
        // Unsupported before and after: nobody was told anything wrong.
        noticed |=
            memory.tensors()[i].sequence == sequence && !pristine_.values[i];
        continue;
      }
      if (answers.values[i]) return "a wrong value";
      if (memory.tensors()[i].sequence == sequence) {
        const auto offset = memory.ReadTensor(i).status().offset();
        if (!offset || *offset > at || *offset < shard_.records()[k].offset) {
          return "the error's offset is not that of the chunk";
        }
        noticed = true;
      } else if (memory.tensors()[i].definition != 1) {
        return "another tensor was lost";
      }
    }
    return noticed ? "" : "not noticed";
  }

  const ShardBuilder& shard_;
  const Answers pristine_;
  std::vector<Answers> without_;
};

void JudgeEveryByte(const ShardBuilder& shard,
                    const std::vector<unsigned>& flips) {
  ByteJudge judge(shard);
  Bytes bytes = shard.bytes();
  const std::vector<unsigned> few = FewFlips();
  std::uint64_t n = 0;
  std::uint64_t n_data = 0;
  for (std::uint64_t at = 0; at < bytes.size(); ++at) {
    // A checksum finds a flip by its pattern, whatever the data are.
    const bool is_data = judge.IsData(at);
    n_data += is_data ? 1 : 0;
    for (const unsigned flip : is_data ? few : flips) {
      bytes[at] ^= static_cast<std::byte>(flip);
      const std::string wrong = judge.Judge(at, bytes);
      bytes[at] ^= static_cast<std::byte>(flip);
      ++n;
      if (!wrong.empty()) {
        Fail(__FILE__, __LINE__,
             "byte " + std::to_string(at) + " ^ " + std::to_string(flip) +
                 ": " + wrong);
        return;
      }
    }
  }
  std::printf("       %llu damaged bytes, all noticed\n",
              static_cast<unsigned long long>(n));
  EXPECT_EQ(n, (bytes.size() - n_data) * flips.size() + n_data * few.size());
  EXPECT_LT(n_data, bytes.size() * 3 / 4);
}

TDBG_TEST(NoByteCanChangeWithoutBeingNoticed) {
  JudgeEveryByte(CompleteShard(), Flips());
}

TDBG_TEST(NoByteOfTheCodecsCanChangeWithoutBeingNoticed) {
  const ShardBuilder shard = CodecShard();
  MemoryShard memory(shard.bytes(), shard.header(), true);
  EXPECT_EQ(memory.problems().size(), 0U);
  EXPECT_EQ(memory.tensors().size(), 13U);
  for (std::size_t i = 0; i < 13; ++i) EXPECT_OK(memory.ReadTensor(i));
  JudgeEveryByte(shard, FewFlips());
}

TDBG_TEST(EveryTruncationGivesTheExactPrefix) {
  const ShardBuilder shard = CompleteShard();
  std::uint64_t n_clean = 0;
  for (std::size_t length = 0; length <= shard.bytes().size(); ++length) {
    const Bytes cut(
        shard.bytes().begin(),
        shard.bytes().begin() + static_cast<std::ptrdiff_t>(length));
    // What a shard of exactly the whole records says.
    std::uint64_t whole = limits::kFileHeader;
    for (const PlacedRecord& record : shard.records()) {
      if (record.end <= length) whole = record.end;
    }
    const bool has_header = length >= limits::kFileHeader;
    const Bytes prefix(shard.bytes().begin(),
                       shard.bytes().begin() +
                           static_cast<std::ptrdiff_t>(has_header ? whole : 0));
    const bool clean = length == prefix.size();
    n_clean += clean ? 1 : 0;
    for (const bool settled : {false, true}) {
      MemoryShard memory(cut, shard.header(), settled);
      EXPECT_TRUE(memory.Ask() == Ask(shard, prefix));
      const bool torn = settled && (!clean || length == 0);
      EXPECT_EQ(memory.problems().size(), torn ? 1U : 0U);
      if (torn && !memory.problems().empty()) {
        EXPECT_TRUE(memory.problems()[0].kind == ProblemKind::kTornTail);
        EXPECT_EQ(memory.problems()[0].offset, prefix.size());
        EXPECT_EQ(memory.problems()[0].length, length - prefix.size());
      }
    }
    if (Failures() > 0) return;
  }
  std::printf("       %zu lengths\n", shard.bytes().size() + 1);
  EXPECT_EQ(n_clean, shard.records().size() + 2);
}

// After block damage: every answer that is left was there before, or there is
// a problem; and what damage did not touch is all there.  Only where whole
// records were moved behind others (`moved`), these may count instead, if they
// are more.
void JudgeBlocks(const ShardBuilder& shard, const Answers& pristine,
                 const Bytes& damaged, const std::string& what,
                 bool moved = false) {
  if (damaged == shard.bytes()) return;
  MemoryShard memory(damaged, shard.header(), true);
  const Answers answers = memory.Ask();
  if (!memory.problems().empty()) {
    // Every record that no damage touched is there.
    std::uint64_t untouched = 0;
    for (const PlacedRecord& record : shard.records()) {
      if (record.header.type == RecordType::kStep &&
          std::equal(
              damaged.begin() + static_cast<std::ptrdiff_t>(record.offset),
              damaged.begin() + static_cast<std::ptrdiff_t>(record.end),
              shard.bytes().begin() +
                  static_cast<std::ptrdiff_t>(record.offset))) {
        ++untouched;
      }
    }
    const bool refused = memory.reader.state() == ShardState::kRefused;
    if (!refused && !moved && memory.steps().size() < untouched) {
      Fail(__FILE__, __LINE__, what + ": an untouched record was lost");
    }
    return;
  }
  // Only chunks can be hit without a problem in the tables.
  if (answers.tables != pristine.tables) {
    Fail(__FILE__, __LINE__, what + ": tables changed and nobody noticed");
    return;
  }
  for (std::size_t i = 0; i < answers.values.size(); ++i) {
    if (answers.values[i] && answers.values[i] != pristine.values[i]) {
      Fail(__FILE__, __LINE__, what + ": a value changed and nobody noticed");
    }
  }
}

TDBG_TEST(LostRepeatedAndExchangedBlocksAreNoticed) {
  const ShardBuilder shard = CompleteShard();
  const Answers pristine = Ask(shard, shard.bytes());
  std::uint64_t n = 0;
  for (const std::size_t block : {64U, 512U}) {
    const std::size_t n_blocks = shard.bytes().size() / block;
    const auto at = [&](Bytes& bytes, std::size_t i) {
      return bytes.begin() + static_cast<std::ptrdiff_t>(i * block);
    };
    for (std::size_t i = 0; i < n_blocks; ++i) {
      const std::string where =
          std::to_string(block) + "-byte block " + std::to_string(i);
      Bytes bytes = shard.bytes();
      std::fill(at(bytes, i), at(bytes, i + 1), std::byte{0});
      JudgeBlocks(shard, pristine, bytes, where + " zeroed");
      ++n;
      // Removed, and repeated: everything after it moves.
      bytes = shard.bytes();
      bytes.erase(at(bytes, i), at(bytes, i + 1));
      JudgeBlocks(shard, pristine, bytes, where + " removed");
      bytes = shard.bytes();
      const Bytes copy(at(bytes, i), at(bytes, i + 1));
      bytes.insert(at(bytes, i), copy.begin(), copy.end());
      JudgeBlocks(shard, pristine, bytes, where + " repeated");
      n += 2;
      for (std::size_t j = i + 1; j < n_blocks; ++j) {
        bytes = shard.bytes();
        std::swap_ranges(at(bytes, i), at(bytes, i + 1), at(bytes, j));
        JudgeBlocks(shard, pristine, bytes,
                    where + " exchanged with " + std::to_string(j), block > 64);
        ++n;
      }
      if (Failures() > 0) return;
    }
  }
  std::printf("       %llu damaged blocks\n",
              static_cast<unsigned long long>(n));
  EXPECT_GT(n, 10000U);
}

TDBG_TEST(ARecordThatIsRepeatedCountsOnce) {
  // Its checksums hold: only the sequence tells.
  const ShardBuilder shard = CompleteShard();
  const Answers pristine = Ask(shard, shard.bytes());
  for (const PlacedRecord& record : shard.records()) {
    Bytes bytes = shard.bytes();
    const Bytes copy(bytes.begin() + static_cast<std::ptrdiff_t>(record.offset),
                     bytes.begin() + static_cast<std::ptrdiff_t>(record.end));
    bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(record.end),
                 copy.begin(), copy.end());
    MemoryShard memory(bytes, shard.header(), true);
    Answers answers = memory.Ask();
    EXPECT_GE(memory.problems().size(), 1U);
    EXPECT_EQ(memory.definitions().size(), 7U);
    EXPECT_EQ(memory.steps().size(), 2U);
    EXPECT_EQ(memory.scalars().size(), 2U);
    EXPECT_EQ(memory.tables.n_rows, 4U);
    EXPECT_EQ(memory.tensors().size(), 6U);
    for (std::size_t i = 0; i < answers.values.size(); ++i) {
      EXPECT_TRUE(answers.values[i] == pristine.values[i]);
    }
  }
}

// A shard of small records, after `n_large` that have room for several of them.
ShardBuilder ShardOfEvents(std::size_t n, std::size_t n_large) {
  ShardBuilder shard(SomeHeader());
  for (std::size_t i = 0; i < n; ++i) {
    Event event;
    event.json = std::to_string(10 + i);
    if (i < n_large) event.json += std::string(1000 + i * 200, ' ');
    shard.Add(RecordType::kEvent, static_cast<std::int64_t>(i),
              EncodeEvent(event), 6);
  }
  shard.Seal();
  return shard;
}

Bytes Copied(const ShardBuilder& shard, std::uint64_t from, std::uint64_t end,
             std::uint64_t to) {
  Bytes bytes = shard.bytes();
  const auto at = [&](std::uint64_t offset) {
    return shard.bytes().begin() + static_cast<std::ptrdiff_t>(offset);
  };
  std::copy(at(from), at(end), bytes.begin() + static_cast<std::ptrdiff_t>(to));
  return bytes;
}

// Sabotage seen to fail here: believing any sequence that is not a lower one.
TDBG_TEST(RecordsThatAreCopiedOverEarlierOnesHideNoOthers) {
  constexpr std::size_t kRecords = 40;
  const ShardBuilder shard = ShardOfEvents(kRecords, 0);
  const auto& records = shard.records();
  for (const bool settled : {true, false}) {
    for (std::size_t to = 0; to < kRecords; ++to) {
      for (std::size_t from = to + 1; from < kRecords; ++from) {
        // One record, and as many as there is room for.
        for (const std::size_t n : {std::size_t{1}, from - to}) {
          const std::size_t last = std::min(from + n, kRecords) - 1;
          const Bytes bytes = Copied(shard, records[from].offset,
                                     records[last].end, records[to].offset);
          MemoryShard memory(bytes, shard.header(), settled);
          const std::size_t n_hidden = last + 1 - from;
          EXPECT_EQ(memory.events().size(), kRecords - n_hidden);
          EXPECT_EQ(memory.problems().size(), 1U);
          EXPECT_TRUE(memory.problems()[0].kind == ProblemKind::kDamage);
          EXPECT_EQ(memory.problems()[0].offset, records[to].offset);
          EXPECT_TRUE(memory.reader.state() == ShardState::kSealed);
          if (Failures() > 0) return;
        }
      }
    }
  }
}

// Sabotage seen to fail here: believing a sequence that is as high as the bytes
// passed allow; believing the first header that holds; believing as many as
// follow each other.
TDBG_TEST(RecordsThatAreCopiedIntoADamagedOneHideNoOthers) {
  constexpr std::size_t kRecords = 40;
  constexpr std::size_t kLarge = 4;
  const ShardBuilder shard = ShardOfEvents(kRecords, kLarge);
  const auto& records = shard.records();
  std::uint64_t n_copies = 0;
  for (std::size_t in = 0; in < kLarge; ++in) {
    const PlacedRecord& hit = records[in];
    for (std::size_t from = kLarge; from < kRecords; ++from) {
      for (std::size_t n = 1; n < 7 && from + n <= kRecords; n += 2) {
        const std::uint64_t first = records[from].offset;
        const std::uint64_t end = records[from + n - 1].end;
        // Whole records, and headers alone.
        for (const std::uint64_t length : {end - first, std::uint64_t{64}}) {
          for (std::uint64_t to = hit.offset + 64; to + length <= hit.end;
               to += 64) {
            Bytes bytes = Copied(shard, first, first + length, to);
            // Also behind a header that does not hold.
            for (const bool holds : {true, false}) {
              if (!holds) bytes[hit.offset] ^= std::byte{1};
              MemoryShard memory(bytes, shard.header(), true);
              EXPECT_EQ(memory.events().size(), kRecords - 1);
              EXPECT_EQ(memory.problems().size(), 1U);
              EXPECT_EQ(memory.problems()[0].offset, hit.offset);
              EXPECT_EQ(memory.problems()[0].length, hit.end - hit.offset);
              ++n_copies;
              if (Failures() > 0) return;
            }
          }
        }
      }
    }
  }
  std::printf("       %llu copies\n",
              static_cast<unsigned long long>(n_copies));
}

TDBG_TEST(ARecordThatWasCutOutIsMissed) {
  const ShardBuilder shard = CompleteShard();
  for (std::size_t k = 0; k + 1 < shard.records().size(); ++k) {
    const PlacedRecord& record = shard.records()[k];
    Bytes bytes = shard.bytes();
    bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(record.offset),
                bytes.begin() + static_cast<std::ptrdiff_t>(record.end));
    MemoryShard memory(bytes, shard.header(), false);
    EXPECT_GE(memory.problems().size(), 1U);
    EXPECT_TRUE(memory.problems()[0].kind == ProblemKind::kMissing);
    EXPECT_EQ(memory.problems()[0].offset, record.offset);
    // Nothing behind it is taken for a copy: the end has another length, only.
    EXPECT_EQ(memory.problems().size(), 2U);
    EXPECT_EQ(memory.problems()[1].offset + 128, bytes.size());
  }
}

TDBG_TEST(RecordsOfAnotherShardAreNotTaken) {
  const ShardBuilder shard = CompleteShard(1);
  const ShardBuilder other = CompleteShard(2);
  const Answers pristine = Ask(shard, shard.bytes());
  for (std::size_t k = 0; k + 1 < shard.records().size(); ++k) {
    const PlacedRecord& record = shard.records()[k];
    Bytes bytes = shard.bytes();
    std::copy(
        other.bytes().begin() + static_cast<std::ptrdiff_t>(record.offset),
        other.bytes().begin() + static_cast<std::ptrdiff_t>(record.end),
        bytes.begin() + static_cast<std::ptrdiff_t>(record.offset));
    MemoryShard memory(bytes, shard.header(), true);
    EXPECT_EQ(memory.problems().size(), 1U);
    EXPECT_EQ(memory.problems()[0].offset, record.offset);
    EXPECT_TRUE(memory.Ask() == Ask(shard, Without(shard, k)));
  }
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
