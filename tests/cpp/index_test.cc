// Index and columns as bytes: round trips, prefixes, counts that lie.
//
// Seen to fail when: the directory may have holes.

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

TDBG_TEST(ColumnsStandByDefinitionInTheOrderWritten) {
  std::vector<ColumnRow> rows(5);
  const std::uint32_t ids[] = {7, 2, 7, 2, 9};
  for (std::uint32_t i = 0; i < 5; ++i) {
    rows[i].definition = ids[i];
    rows[i].step = i;
  }
  const Bytes bytes = EncodeColumns(&rows, 5, 3, 256, 9984);
  EXPECT_EQ(bytes.size() % 64, 0U);
  const auto footer =
      DecodeIndexFooter(std::span(bytes).subspan(bytes.size() - 64));
  EXPECT_OK(footer);
  EXPECT_EQ(footer.value().salt, 5U);
  EXPECT_EQ(footer.value().n_entries, 3U);
  EXPECT_EQ(footer.value().shard_length, 9984U);
  EXPECT_EQ(footer.value().columns_offset, 256U);
  EXPECT_EQ(footer.value().directory_offset, 256U + 640);
  const auto directory =
      DecodeDirectory(std::span(bytes).subspan(640), footer.value());
  EXPECT_OK(directory);
  EXPECT_EQ(directory.value().size(), 3U);
  EXPECT_EQ(directory.value()[0].definition, 2U);
  EXPECT_EQ(directory.value()[1].definition, 7U);
  EXPECT_EQ(directory.value()[1].first_row, 2U);
  EXPECT_EQ(directory.value()[1].n_rows, 2U);
  EXPECT_EQ(directory.value()[2].n_rows, 1U);
  EXPECT_EQ(rows[2].step, 0);
  EXPECT_EQ(rows[3].step, 2);
}

TDBG_TEST(ADirectoryWithHolesOrOverlapsIsRefused) {
  const auto decode = [](std::vector<DirectoryEntry> entries) {
    Bytes bytes;
    ByteWriter w(&bytes);
    for (const DirectoryEntry& entry : entries) {
      w.Put(entry.definition);
      w.Put(entry.crc);
      w.Put(entry.first_row);
      w.Put(entry.n_rows);
    }
    IndexFooter footer;
    footer.columns_offset = 64;
    footer.directory_offset = 64 + 10 * kColumnRowBytes;
    footer.n_directory = static_cast<std::uint32_t>(entries.size());
    footer.directory_crc = MaskedCrc32c(bytes.data(), bytes.size());
    return DecodeDirectory(bytes, footer).ok();
  };
  EXPECT_TRUE(decode({{1, 0, 0, 4}, {2, 0, 4, 6}}));
  EXPECT_FALSE(decode({{1, 0, 0, 4}, {2, 0, 5, 5}}));  // A hole.
  EXPECT_FALSE(decode({{1, 0, 0, 4}, {2, 0, 3, 6}}));  // An overlap.
  EXPECT_FALSE(decode({{1, 0, 0, 4}, {2, 0, 4, 7}}));  // Too many rows.
  EXPECT_FALSE(decode({{1, 0, 0, 4}, {2, 0, 4, ~0ULL}}));
  EXPECT_FALSE(decode({{2, 0, 0, 4}, {1, 0, 4, 6}}));  // Not ascending.
  EXPECT_FALSE(decode({{1, 0, 0, 4}, {1, 0, 4, 6}}));
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
