// A writing process is killed at random times; whatever it had flushed is there
// afterwards and right, and what stands behind that is a torn tail at most.
//
//   writer_kill_test [FILTER [KILLS [SEED]]]     2,000 kills when not told
//   (500 under AddressSanitizer)

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "child_process.h"
#include "sanitized.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"
#include "writer_workload.h"

namespace tdbg {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// What a kill leaves is no matter of memory.
std::uint64_t n_kills = testing::RepeatsLess() ? 250 : 2000;
std::uint64_t seed = 20261120;

// What the child does until it is killed: trains, and says on the pipe which
// step was flushed last, after the flush.
int WriteForEver(const std::string& run, int pipe, bool compress) {
  WriterOptions options = testing::WorkloadOptions(run);
  options.codec = compress ? CodecPolicy::kAuto : CodecPolicy::kNone;
  options.shard_bytes = 2'000'000;
  auto writer = Writer::Open(options);
  if (!writer.ok()) return 1;
  testing::Workload workload(writer.value().get());
  for (std::int64_t step = 0;; ++step) {
    workload.Step(step);
    if (step % 3 == 1) continue;
    const bool durable = step % 16 == 0;
    if (!writer.value()->Flush(durable, milliseconds(60000)).ok()) return 2;
    if (::write(pipe, &step, sizeof(step)) != sizeof(step)) return 3;
  }
}

// Sabotage seen to fail here: answering a flush before the batch is written.
TDBG_TEST(NothingFlushedIsLostByAKill) {
  std::mt19937_64 random(seed);
  std::uint64_t n_records = 0;
  std::uint64_t n_torn = 0;
  std::uint64_t n_acknowledged = 0;
  std::uint64_t n_rotated = 0;
  for (std::uint64_t i = 0; i < n_kills; ++i) {
    const int before = testing::Failures();
    const testing::TemporaryDirectory run;
    std::array<int, 2> pipe{};
    EXPECT_EQ(::pipe(pipe.data()), 0);
    const pid_t child = testing::Fork([&] {
      ::close(pipe[0]);
      return WriteForEver(run.path(), pipe[1], i % 2 == 0);
    });
    ::close(pipe[1]);
    const std::string directory = run.path() + "/w/train-0-1";
    const std::string second_shard = directory + "/000002.tds";
    // Mostly after the first flush; now and then while the writer opens, or
    // once it writes its second shard, however slow the machine is.
    std::int64_t last = -1;
    if (i % 16 != 0) (void)!::read(pipe[0], &last, sizeof(last));
    if (i % 32 == 1) {
      while (::access(second_shard.c_str(), F_OK) != 0 &&
             ::read(pipe[0], &last, sizeof(last)) > 0) {
      }
    }
    std::this_thread::sleep_for(microseconds(random() % 12000));
    ::kill(child, SIGKILL);
    const testing::Ending ending = testing::WaitFor(child, milliseconds(20000));
    EXPECT_EQ(ending.signal, SIGKILL);
    for (std::int64_t step = 0; ::read(pipe[0], &step, sizeof(step)) > 0;) {
      last = step;
    }
    ::close(pipe[0]);

    ReaderOptions reading;
    reading.use_caches = i % 3 != 0;
    const testing::Found found = testing::ReadWorkload(directory, reading);
    if (last >= 0) {
      EXPECT_TRUE(found.readable);
      ++n_acknowledged;
    }
    EXPECT_EQ(found.wrong, 0U);
    EXPECT_EQ(found.damage, 0U);
    EXPECT_LE(found.torn, 1U);
    EXPECT_EQ(found.missing, 0U);
    for (std::int64_t step = 0; step <= last; ++step) {
      EXPECT_TRUE(found.steps.contains(step));
      EXPECT_TRUE(found.tensors.contains(step));
    }
    const auto n_flushed =
        static_cast<std::uint64_t>(last + 1) * testing::kWorkloadRecords;
    EXPECT_GE(found.records, n_flushed);
    n_records += n_flushed;
    n_torn += found.torn;
    if (::access(second_shard.c_str(), F_OK) == 0) ++n_rotated;
    if (testing::Failures() != before) {
      std::fprintf(stderr, "    at kill %llu of seed %llu, flushed step %lld\n",
                   static_cast<unsigned long long>(i),
                   static_cast<unsigned long long>(seed),
                   static_cast<long long>(last));
      if (testing::Failures() > 20) break;
    }
  }
  std::printf(
      "       %llu kills: %llu after a flush, %llu records flushed, "
      "%llu torn tails, %llu with a second shard\n",
      static_cast<unsigned long long>(n_kills),
      static_cast<unsigned long long>(n_acknowledged),
      static_cast<unsigned long long>(n_records),
      static_cast<unsigned long long>(n_torn),
      static_cast<unsigned long long>(n_rotated));
  // The test must have met what it is about.
  EXPECT_GE(n_acknowledged, n_kills * 3 / 4);
  EXPECT_GE(n_records, n_kills * 5);
  EXPECT_GE(n_torn, n_kills / 400);
  EXPECT_GE(n_rotated, n_kills / 32);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) {
  if (argc > 2) tdbg::n_kills = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) tdbg::seed = std::strtoull(argv[3], nullptr, 10);
  return tdbg::testing::Run(argc, argv);
}
