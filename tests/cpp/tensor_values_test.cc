// Values: where they lie, decoded by several threads, and one after the other
// along a chain of differences.
//
// Seen to fail when: a part of a tensor is decoded to the place of another; the
// base that is kept is that of another step.

#include <algorithm>

#include "answers.h"
#include "complete_shard.h"
#include "reader/run_reader.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr std::size_t kChunk = 64 << 10;

std::vector<float> Ramp(std::size_t n, float first) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = first + static_cast<float>(i % 1000) / 64.0F;
  }
  return values;
}

// A tensor of 3 MiB and its differences over some steps.
ShardBuilder Chained(int n_steps) {
  constexpr std::size_t kValues = 3U << 18;
  ShardBuilder shard(SomeHeader());
  shard.AddDefinition(
      SomeDefinition(1, "w", DType::kFloat32, {std::int64_t{kValues}}));
  Bytes before;
  std::uint64_t base = 0;
  for (int step = 0; step < n_steps; ++step) {
    const Bytes raw = BytesOf(Ramp(kValues, static_cast<float>(step)));
    base = shard.AddTensor(step, 1, raw, 4, Codec::kZstdPlanes, kChunk, base,
                           before);
    before = raw;
  }
  shard.Seal();
  return shard;
}

TDBG_TEST(ThreadsDecodeWhatOneDoes) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Chained(4);
  WriteFile(directory + "/000001.tds", shard.bytes());
  WriteFile(directory + "/000001.tdi", shard.Index());
  for (const unsigned n_threads : {1U, 2U, 3U, 7U}) {
    for (const bool map_files : {false, true}) {
      ReaderOptions options;
      options.n_threads = n_threads;
      options.map_files = map_files;
      const auto reader = RunReader::Open(directory, options);
      for (const std::size_t i : {0U, 1U, 2U, 3U, 1U, 3U, 0U}) {
        const auto value = ValueOf(reader.value()->ReadTensor(i));
        EXPECT_TRUE(value == BytesOf(Ramp(3U << 18, static_cast<float>(i))));
      }
    }
  }
}

TDBG_TEST(ADamagedChunkIsNamedWhoeverDecodesIt) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  const ShardBuilder shard = Chained(2);
  const PlacedRecord& tensor = shard.records()[1];
  Bytes bytes = shard.bytes();
  bytes[tensor.end - 100] ^= std::byte{4};
  WriteFile(directory + "/000001.tds", bytes);
  std::vector<std::string> messages;
  for (const unsigned n_threads : {1U, 3U}) {
    ReaderOptions options;
    options.n_threads = n_threads;
    const auto reader = RunReader::Open(directory, options);
    const Status status = reader.value()->ReadTensor(0).status();
    EXPECT_TRUE(status.code() == StatusCode::kCorruption);
    messages.push_back(status.message());
    // And so is what is a difference to it.
    EXPECT_FALSE(reader.value()->ReadTensor(1).ok());
  }
  EXPECT_EQ(messages[0], messages[1]);
}

TDBG_TEST(RawValuesOfMapsAreGivenWhereTheyLieAndReadOnesInMemoryOfTheirOwn) {
  const TemporaryDirectory temporary;
  const std::string directory = temporary.Writer();
  ShardBuilder shard(SomeHeader());
  shard.AddDefinition(SomeDefinition(1, "w", DType::kFloat32, {500}));
  const Bytes raw = BytesOf(Ramp(500, 1));
  shard.AddTensor(0, 1, raw, 4, Codec::kRaw);
  shard.Seal();
  WriteFile(directory + "/000001.tds", shard.bytes());
  WriteFile(directory + "/000001.tdi", shard.Index());
  for (const bool map_files : {true, false}) {
    ReaderOptions options;
    options.map_files = map_files;
    TensorValue kept;
    {
      const auto reader = RunReader::Open(directory, options);
      auto one = reader.value()->ReadTensor(0);
      const auto other = reader.value()->ReadTensor(0);
      EXPECT_EQ(one.value().bytes.data() == other.value().bytes.data(),
                map_files);
      if (map_files) {
        EXPECT_EQ(
            reinterpret_cast<std::uintptr_t>(one.value().bytes.data()) % 64,
            0U);
      }
      kept = std::move(one).value();
    }
    // The value holds the map, or its memory, when its reader is gone.
    EXPECT_TRUE(std::ranges::equal(kept.bytes, raw));
  }
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
