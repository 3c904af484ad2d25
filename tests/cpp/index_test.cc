// The index as bytes: round trips, prefixes, counts and offsets that lie.
//
// Seen to fail when: sections may overlap.

#include "format/index.h"

#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

TDBG_TEST(TheIndexRecordComesBack) {
  const ShardBuilder shard = CompleteShard();
  const auto entries = shard.Entries();
  const Bytes payload = EncodeIndex(entries);
  const auto back = DecodeIndex(payload);
  EXPECT_OK(back);
  EXPECT_EQ(back.value().size(), entries.size());
  EXPECT_TRUE(EncodeIndex(back.value()) == payload);
  for (std::size_t n = 0; n < payload.size(); ++n) {
    EXPECT_FALSE(DecodeIndex(std::span(payload).first(n)).ok());
  }
  for (std::size_t at = 16; at < payload.size(); ++at) {
    Bytes damaged = payload;
    damaged[at] ^= std::byte{1};
    EXPECT_FALSE(DecodeIndex(damaged).ok());
  }
}

TDBG_TEST(CountsThatLieAreTypedErrors) {
  Bytes payload(16 + 640);
  for (const std::uint64_t n : std::initializer_list<std::uint64_t>{
           11, 1ULL << 26, 1ULL << 58, (1ULL << 58) + 1, ~0ULL}) {
    Store(payload.data(), std::uint32_t{64});
    Store(payload.data() + 8, n);
    EXPECT_TRUE(DecodeIndex(payload).status().code() ==
                StatusCode::kCorruption);
  }
  for (const std::uint32_t size : {0U, 63U, 0xffffffffU}) {
    Store(payload.data(), size);
    Store(payload.data() + 8, std::uint64_t{2});
    EXPECT_TRUE(DecodeIndex(payload).status().code() ==
                StatusCode::kCorruption);
  }
}

std::vector<Section> SectionsOf(const Bytes& index) {
  const auto footer =
      DecodeIndexFooter(std::span(index).subspan(index.size() - 64));
  EXPECT_OK(footer);
  const auto sections =
      DecodeSections(std::span(index).subspan(footer.value().directory_offset,
                                              footer.value().n_sections * 64),
                     footer.value());
  EXPECT_OK(sections);
  return sections.value();
}

template <typename Entry>
std::vector<Entry> TableOf(const Bytes& index, SectionKind kind) {
  for (const Section& section : SectionsOf(index)) {
    if (section.kind != kind) continue;
    EXPECT_EQ(section.entry_size, sizeof(Entry));
    std::vector<Entry> entries(section.n_entries);
    std::memcpy(entries.data(), index.data() + section.offset,
                section.n_bytes());
    return entries;
  }
  return {};
}

TDBG_TEST(TheFileHoldsEveryTableOfTheShard) {
  const ShardBuilder shard = CompleteShard();
  const Bytes& index = shard.Index();
  EXPECT_EQ(index.size() % 64, 0U);
  const auto header = DecodeIndexHeader(index);
  EXPECT_OK(header);
  EXPECT_EQ(header.value().salt, shard.header().salt);
  const auto footer =
      DecodeIndexFooter(std::span(index).subspan(index.size() - 64));
  EXPECT_OK(footer);
  EXPECT_EQ(footer.value().shard_length, shard.bytes().size());
  EXPECT_EQ(footer.value().n_records + 1, shard.records().size());
  const auto end = DecodeEnd(
      std::span(shard.bytes()).subspan(shard.bytes().size() - kEndBytes));
  EXPECT_EQ(end.value().index_crc, footer.value().directory_crc);
  EXPECT_EQ(TableOf<DefinitionPlace>(index, SectionKind::kDefinitions).size(),
            7U);
  EXPECT_EQ(TableOf<StepEntry>(index, SectionKind::kSteps).size(), 2U);
  EXPECT_EQ(TableOf<TensorEntry>(index, SectionKind::kTensors).size(), 6U);
  EXPECT_EQ(TableOf<ScalarEntry>(index, SectionKind::kScalars).size(), 2U);
  EXPECT_EQ(TableOf<RowsPlace>(index, SectionKind::kRowsPlaces).size(), 2U);
  EXPECT_EQ(TableOf<ColumnRow>(index, SectionKind::kColumns).size(), 4U);
  const auto samples = TableOf<SamplesPlace>(index, SectionKind::kSamples);
  EXPECT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0].first_time, 500);
  EXPECT_EQ(samples[0].last_time, 520);
  EXPECT_EQ(samples[1].n_rows, 2U);
  for (const Section& section : SectionsOf(index)) {
    if (section.kind != SectionKind::kSamples) continue;
    EXPECT_EQ(section.first_step, 500);
    EXPECT_EQ(section.last_step, 535);
  }
  const auto postings =
      TableOf<std::uint32_t>(index, SectionKind::kTensorPostings);
  EXPECT_TRUE(postings == (std::vector<std::uint32_t>{0, 4, 1, 5, 2, 3}));
}

TDBG_TEST(ColumnsStandByDefinitionInTheOrderWritten) {
  ShardBuilder shard(SomeHeader());
  const std::uint32_t ids[] = {7, 2, 7, 2, 9};
  for (std::uint32_t i = 0; i < 5; ++i) shard.AddRows(i, {SomeRow(ids[i], i)});
  shard.Seal();
  const auto groups = TableOf<Group>(shard.Index(), SectionKind::kColumnGroups);
  EXPECT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].definition, 2U);
  EXPECT_EQ(groups[1].definition, 7U);
  EXPECT_EQ(groups[1].first, 2U);
  EXPECT_EQ(groups[1].n, 2U);
  EXPECT_EQ(groups[2].n, 1U);
  const auto rows = TableOf<ColumnRow>(shard.Index(), SectionKind::kColumns);
  EXPECT_EQ(rows[2].step, 0);
  EXPECT_EQ(rows[3].step, 2);
}

TDBG_TEST(DefinitionsLieTheSameWhicheverCameFirst) {
  ShardBuilder one(SomeHeader());
  ShardBuilder other(SomeHeader(2));
  for (const std::uint32_t id : {1, 2, 3}) {
    one.AddDefinition(SomeDefinition(id, NameOf(id)));
    other.AddDefinition(SomeDefinition(4 - id, NameOf(4 - id)));
  }
  one.Seal();
  other.Seal();
  const auto bytes = SectionKind::kDefinitionBytes;
  EXPECT_TRUE(TableOf<std::byte>(one.Index(), bytes) ==
              TableOf<std::byte>(other.Index(), bytes));
  const auto order =
      TableOf<std::uint32_t>(other.Index(), SectionKind::kDefinitionOrder);
  EXPECT_TRUE(order == (std::vector<std::uint32_t>{2, 1, 0}));
}

TDBG_TEST(ADirectoryThatDoesNotLieWhereItCanIsRefused) {
  using enum SectionKind;
  const auto decode = [](const std::vector<Section>& sections) {
    const Bytes bytes = EncodeSections(sections);
    IndexFooter footer;
    footer.directory_offset = 1024;
    footer.n_sections = static_cast<std::uint32_t>(sections.size());
    footer.directory_crc = MaskedCrc32c(bytes.data(), bytes.size());
    return DecodeSections(bytes, footer).ok();
  };
  const auto at = [](SectionKind kind, std::uint64_t offset, std::uint64_t n) {
    return Section{
        .kind = kind, .entry_size = 8, .offset = offset, .n_entries = n};
  };
  EXPECT_TRUE(decode({at(kSteps, 64, 8), at(kTensors, 128, 112)}));
  EXPECT_FALSE(decode({at(kSteps, 0, 8)}));     // Over the header.
  EXPECT_FALSE(decode({at(kSteps, 72, 8)}));    // Not aligned.
  EXPECT_FALSE(decode({at(kSteps, 64, 121)}));  // Into the directory.
  EXPECT_FALSE(decode({at(kSteps, 64, 1ULL << 61)}));
  EXPECT_FALSE(decode({at(kSteps, ~63ULL, 8)}));
  EXPECT_FALSE(decode({at(kSteps, 64, 9), at(kTensors, 128, 1)}));  // Overlap.
  EXPECT_FALSE(decode({at(kSteps, 64, 1), at(kSteps, 128, 1)}));
  EXPECT_FALSE(decode({at(SectionKind{0}, 64, 1)}));
  EXPECT_TRUE(
      decode({at(SectionKind{99}, 64, 1), at(SectionKind{99}, 128, 1)}));
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
