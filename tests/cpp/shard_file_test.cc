// What is appended to a ShardFile stands in the file, whatever its size and
// alignment, and no page of it is written in two ways.

#include "writer/shard_file.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fault_injection.h"
#include "temporary_directory.h"
#include "testing.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using testing::Call;
using testing::FaultyFileSystem;
using testing::TemporaryDirectory;

constexpr std::uint64_t kPage = ShardFile::kPage;
constexpr std::uint64_t kMiB = 1U << 20;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A disk that remembers which pages were written in which way.
class PagesDisk final : public FaultyFileSystem {
 public:
  std::int64_t Pwrite(int fd, const void* data, std::size_t n,
                      std::uint64_t offset) override {
    auto& pages = IsDirect(fd) ? direct : cached;
    pages.resize(std::max<std::size_t>(pages.size(), (offset + n) / kPage + 1));
    for (std::uint64_t page = offset / kPage; page * kPage < offset + n;
         ++page) {
      ++pages[page];
    }
    if (IsDirect(fd)) std::this_thread::sleep_for(delay);
    return FaultyFileSystem::Pwrite(fd, data, n, offset);
  }
  milliseconds delay{0};  // Of a direct write.
  std::vector<int> direct;
  std::vector<int> cached;
};

struct Bench {
  // Unless a test is about it, no disk is too slow: machines are, at times.
  explicit Bench(TemporaryDirectory where = TemporaryDirectory(),
                 std::uint64_t min_direct_rate = 0)
      : directory(std::move(where)),
        file([this] { ++n_progress; }, min_direct_rate) {
    EXPECT_OK(file.Create(&disk, path));
  }
  // Appends `n` bytes to the batch, and to what is expected.
  void Append(std::uint64_t n) {
    std::byte* out = file.Extend(n);
    for (std::uint64_t i = 0; i < n; i += 4) {
      const std::uint64_t word = random();
      std::memcpy(out + i, &word, std::min<std::uint64_t>(4, n - i));
    }
    expected.append(Text({out, n}));
  }
  // A source of values at `past` bytes beyond a page.
  std::span<const std::byte> Source(std::uint64_t past, std::uint64_t n) {
    memory = HugeMemory::Create(past + n).value();
    std::byte* start = memory.data() + past;
    for (std::uint64_t i = 0; i < n; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(start + i, &word, std::min<std::uint64_t>(8, n - i));
    }
    return {start, n};
  }

  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/file";
  PagesDisk disk;
  int n_progress = 0;
  ShardFile file;
  std::mt19937_64 random{20261121};
  HugeMemory memory;
  std::string expected;
};

TDBG_TEST(EveryPageIsWrittenInOneWayOnly) {
  Bench bench;
  for (int i = 0; i < 60; ++i) {
    const bool is_large = bench.random() % 4 == 0;
    bench.Append(64 * (1 + bench.random() % (is_large ? 40'000 : 500)));
    if (bench.random() % 3 == 0) {
      EXPECT_OK(bench.file.WritePages());
      EXPECT_LT(bench.file.length() - bench.file.written(), kPage);
      EXPECT_EQ(bench.file.length(), bench.expected.size());
    }
    if (bench.random() % 2 == 0) EXPECT_OK(bench.file.WriteBatch());
    if (bench.random() % 4 == 0) {
      EXPECT_OK(bench.file.WriteBatch());
      const std::uint64_t n = 2 * kMiB + 64 * (bench.random() % 9000);
      // In memory as in the file, but now and then.
      const std::uint64_t past =
          i % 5 == 0 ? bench.random() % 64 * 64 : bench.file.length() % kPage;
      const auto bytes = bench.Source(past, n);
      EXPECT_OK(bench.file.WriteFrom(bytes));
      bench.expected.append(Text(bytes));
      EXPECT_LT(bench.file.length() - bench.file.written(), kPage);
      EXPECT_EQ(bench.file.length(), bench.expected.size());
    }
  }
  EXPECT_OK(bench.file.WriteBatch());
  EXPECT_EQ(bench.file.written(), bench.expected.size());
  EXPECT_TRUE(Contents(bench.path) == bench.expected);
  EXPECT_GE(bench.disk.calls()[Call::kPwriteDirect], 10U);
  std::size_t n_direct = 0;
  for (std::size_t i = 0; i < bench.disk.direct.size(); ++i) {
    EXPECT_LE(bench.disk.direct[i], 1);
    n_direct += bench.disk.direct[i] == 1 ? 1 : 0;
    if (bench.disk.direct[i] == 0) continue;
    EXPECT_TRUE(i >= bench.disk.cached.size() || bench.disk.cached[i] == 0);
  }
  EXPECT_GE(n_direct * kPage, bench.expected.size() / 3);
}

// On a disk, with the hole that the head of a large tensor leaves.
TDBG_TEST(ValuesGoStraightFromMemoryToTheDisk) {
  Bench bench(TemporaryDirectory::OnDisk());
  bench.Append(1000 * 64);
  EXPECT_OK(bench.file.WriteBatch());
  const std::uint64_t hole = bench.file.length();
  const std::string head(5000, 'h');
  bench.file.Skip(head.size());
  bench.expected += head;
  const auto bytes =
      bench.Source(bench.file.length() % kPage, 5 * kMiB + 12345);
  EXPECT_OK(bench.file.WriteFrom(bytes));
  bench.expected.append(Text(bytes));
  bench.Append(100);
  EXPECT_OK(bench.file.WriteBatch());
  EXPECT_OK(bench.file.Fill(std::as_bytes(std::span(head)), hole));
  EXPECT_TRUE(Contents(bench.path) == bench.expected);
  EXPECT_OK(bench.file.Sync());
  bench.file.ReleaseReserve();
  EXPECT_TRUE(Contents(bench.path) == bench.expected);
  EXPECT_GE(bench.n_progress, 4);
}

TDBG_TEST(ASlowDiskIsLeftToThePageCache) {
  Bench bench(TemporaryDirectory(), ShardFile::kMinDirectRate);
  bench.disk.delay = milliseconds(30);
  for (int i = 0; i < 12; ++i) {
    bench.Append(8 * kMiB);
    EXPECT_OK(bench.file.WriteBatch());
  }
  EXPECT_FALSE(bench.file.can_write_direct());
  const auto n_direct = static_cast<std::uint64_t>(
      std::count(bench.disk.direct.begin(), bench.disk.direct.end(), 1));
  EXPECT_GE(n_direct * kPage, ShardFile::kProbe);
  EXPECT_LE(n_direct * kPage, ShardFile::kProbe + 8 * kMiB);
  EXPECT_TRUE(Contents(bench.path) == bench.expected);
}

TDBG_TEST(LittleIsLeftToThePageCache) {
  Bench bench;
  for (int i = 0; i < 20; ++i) {
    bench.Append(100'032);
    EXPECT_OK(bench.file.WriteBatch());
  }
  EXPECT_EQ(bench.disk.calls()[Call::kPwriteDirect], 0U);
  EXPECT_EQ(bench.disk.calls()[Call::kSetDirect], 0U);
  bench.Append(2 * kMiB);
  EXPECT_OK(bench.file.WriteBatch());
  EXPECT_GE(bench.disk.calls()[Call::kPwriteDirect], 1U);
  EXPECT_TRUE(Contents(bench.path) == bench.expected);
}

TDBG_TEST(BlocksAreReservedAheadWithinBoundsAndGivenBack) {
  Bench bench;
  for (int i = 0; i < 40; ++i) {
    bench.Append(64 << 10);
    EXPECT_OK(bench.file.WriteBatch());
  }
  const std::uint64_t n_reserves = bench.disk.calls()[Call::kFallocate];
  EXPECT_GE(n_reserves, 1U);
  EXPECT_LE(n_reserves, 4U);  // It grows as the file does.
  bench.file.ReleaseReserve();
  EXPECT_EQ(bench.disk.calls()[Call::kFtruncate], 1U);
  EXPECT_EQ(Contents(bench.path).size(), bench.expected.size());

  Bench other;
  other.file.set_reserve(false);
  other.Append(kMiB);
  EXPECT_OK(other.file.WriteBatch());
  other.file.ReleaseReserve();
  EXPECT_EQ(other.disk.calls()[Call::kFallocate], 0U);
  EXPECT_EQ(other.disk.calls()[Call::kFtruncate], 0U);
}

TDBG_TEST(AFailedWriteIsAnErrorAtAnyPiece) {
  for (const Call call : {Call::kPwrite, Call::kPwriteDirect}) {
    for (std::uint64_t n = 1; n <= 2; ++n) {
      Bench bench;
      bench.Append(100);
      EXPECT_OK(bench.file.WriteBatch());
      bench.disk.SetPlan({.first = n, .error = ENOSPC, .only = {call}});
      bench.Append(4 * kMiB);
      EXPECT_EQ(bench.file.WriteBatch().system_error(), ENOSPC);
      EXPECT_EQ(bench.disk.n_faults(), 1U);
    }
  }
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
