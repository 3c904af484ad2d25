// RemoteFiles: a run whose bytes are fetched is answered as one on this disk.
//
// Seen to fail when: a piece is taken from the wrong offset; ranges of several
// files are mixed up; what was expected is fetched again; a refusal is taken
// for damage, or is forgotten before somebody took note of it.

#include "reader/remote_files.h"

#include <algorithm>
#include <map>

#include "answers.h"
#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr const char* kWriter = "train-3-2";
constexpr const char* kShard = "000001.tds";
constexpr const char* kIndex = "000001.tdi";

// A store in memory, which counts what is asked of it.
class Store final : public RemoteFiles {
 public:
  Store() {
    const ShardBuilder shard = CompleteShard();
    Put(kShard, shard.bytes());
    Put(kIndex, shard.Index());
    Tell("", Liveness::kClosed, true);
  }

  int n_fetches = 0;
  bool refuses = false;

 protected:
  Status Fetch(std::span<const FileRange> ranges,
               std::span<const std::span<std::byte>> out) override {
    ++n_fetches;
    if (refuses) return Status::IoError("no answer", 0);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const testing::Bytes& bytes = files_.at(ranges[i].name);
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(ranges[i].offset),
                  ranges[i].n, out[i].begin());
    }
    return Status::Ok();
  }

 private:
  void Put(const std::string& name, testing::Bytes bytes) {
    Add(name, bytes.size(), {});
    files_[name] = std::move(bytes);
  }

  std::map<std::string, testing::Bytes> files_;
};

std::unique_ptr<RunReader> MustOpen(const std::shared_ptr<Store>& store,
                                    ReaderOptions options = {}) {
  auto reader = RunReader::Open(std::make_unique<RemoteDirectory>(store),
                                "s3://bucket/run/w/train-3-2", options);
  EXPECT_OK(reader);
  return reader.ok() ? std::move(reader).value() : nullptr;
}

std::vector<std::byte> Read(RemoteFiles* files, std::uint64_t offset,
                            std::uint64_t n) {
  std::vector<std::byte> bytes(n);
  EXPECT_OK(files->Read(kShard, offset, bytes));
  return bytes;
}

TDBG_TEST(AStoreGivesTheAnswersOfADirectory) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer(kWriter);
  const ShardBuilder shard = CompleteShard();
  WriteFile(directory + "/" + kShard, shard.bytes());
  WriteFile(directory + "/" + kIndex, shard.Index());
  for (const bool use_caches : {false, true}) {
    ReaderOptions options;
    options.use_caches = use_caches;
    const auto local = RunReader::Open(directory, options);
    const auto remote = MustOpen(std::make_shared<Store>(), options);
    EXPECT_TRUE(AnswersOf(*remote) == AnswersOf(*local.value()));
    EXPECT_EQ(remote->problems().size(), 0U);
    EXPECT_TRUE(remote->liveness() ==
                (use_caches ? Liveness::kClosed : Liveness::kUnknown));
  }
}

TDBG_TEST(WhatIsExpectedIsFetchedOnce) {
  Store store;
  const std::vector<FileRange> ranges = {
      {.name = kShard, .offset = 0, .n = 100},
      {.name = kShard, .offset = 64, .n = 100},
      {.name = kIndex, .offset = 0, .n = 64},
      {.name = "000002.tds", .offset = 0, .n = 64},
      {.name = kShard, .offset = ~0ULL, .n = 64}};
  store.Expect(ranges);
  store.Expect(ranges);
  EXPECT_EQ(store.n_fetches, 1);
  const Bytes bytes = CompleteShard().bytes();
  EXPECT_TRUE(std::ranges::equal(Read(&store, 70, 80),
                                 std::span(bytes).subspan(70, 80)));
  EXPECT_EQ(store.n_fetches, 1);
}

TDBG_TEST(BytesThatCameWithTheListAreNotFetched) {
  Store store;
  store.Add("000002.tds", 100, {{10, "abc"}, {50, "defg"}});
  std::vector<std::byte> out(3);
  EXPECT_OK(store.Read("000002.tds", 51, out));
  EXPECT_TRUE(out[0] == std::byte{'e'});
  EXPECT_EQ(store.n_fetches, 0);
}

TDBG_TEST(NothingIsReadBeyondTheEnd) {
  Store store;
  const std::uint64_t size = *store.SizeOf(kShard);
  std::vector<std::byte> out(64);
  EXPECT_TRUE(store.Read(kShard, size - 63, out).code() ==
              StatusCode::kCorruption);
  EXPECT_TRUE(store.Read(kShard, ~0ULL, out).code() == StatusCode::kCorruption);
  EXPECT_TRUE(store.Read("000009.tds", 0, out).code() == StatusCode::kIoError);
  EXPECT_EQ(store.n_fetches, 0);
}

TDBG_TEST(AfterARefusalNothingIsReadUntilItWasTakenNoteOf) {
  Store store;
  store.refuses = true;
  std::vector<std::byte> out(64);
  EXPECT_FALSE(store.Read(kShard, 0, out).ok());
  store.refuses = false;
  EXPECT_FALSE(store.Read(kShard, 0, out).ok());
  EXPECT_EQ(store.n_fetches, 1);
  EXPECT_FALSE(store.TakeFailure().ok());
  EXPECT_OK(store.TakeFailure());
  EXPECT_OK(store.Read(kShard, 0, out));
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
