// The disk fails at every call that a retention makes, in turn.  Whatever
// happens, what it did not remove is there, and nothing else is said to be
// missing.

#include "writer/retention.h"

#include <cerrno>
#include <string>
#include <vector>

#include "fault_injection.h"
#include "reader/run_reader.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"
#include "writer_workload.h"

namespace tdbg {
namespace {

using testing::Call;
using testing::FaultPlan;
using testing::FaultyFileSystem;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 40;

// A run of some shards, or of one; returns its writer's directory.
std::string Write(const TemporaryDirectory& run, bool in_one_shard = false) {
  WriterOptions options = testing::WorkloadOptions(run.path());
  if (in_one_shard) options.shard_bytes = 1U << 30;
  auto opened = Writer::Open(options);
  EXPECT_TRUE(opened.ok());
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  for (std::int64_t step = 0; step < kSteps; ++step) workload.Step(step);
  std::string directory = writer.directory();
  EXPECT_TRUE(writer.Close(std::chrono::seconds(20)).ok());
  return directory;
}

RetentionReport Apply(FileSystem* disk, const std::string& directory,
                      const RetentionOptions& options,
                      std::chrono::seconds grace = Retention::kGrace) {
  Retention retention(disk, options, [] {}, grace);
  return retention.Apply(
      {.directories = {directory}, .newest_step = kSteps - 1});
}

// Opens the run anew, by its caches and without, and finds nothing wrong.
void CheckSound(const std::string& directory, std::uint64_t n_rows) {
  for (const bool use_index : {true, false}) {
    ReaderOptions options;
    options.use_index = use_index;
    options.check_index = !use_index;
    const auto opened = RunReader::Open(directory, options);
    EXPECT_TRUE(opened.ok());
    RunReader& reader = *opened.value();
    reader.Poll();
    if (!use_index) reader.FinishCheck();
    for (const Problem& problem : reader.problems()) {
      EXPECT_EQ(problem.message, std::string());
    }
    EXPECT_TRUE(reader.holes().empty());
    if (n_rows != 0) EXPECT_EQ(reader.n_rows(), n_rows);
    EXPECT_EQ(reader.RecordedSteps()->last, kSteps - 1);
    for (std::size_t i = 0; i < reader.n_tensors(); ++i) {
      EXPECT_TRUE(reader.ReadTensor(i).ok());
    }
  }
}

// Applies the options with the n-th call failing, for n = 1, 2, ..., and then
// without a fault.
void FailAtEveryCall(const RetentionOptions& options, std::uint64_t n_rows) {
  const TemporaryDirectory run;
  const std::string directory = Write(run);
  for (std::uint64_t n = 1;; ++n) {
    FaultPlan plan;
    plan.first = n;
    plan.error = ENOSPC;
    FaultyFileSystem disk(plan);
    const auto report = Apply(&disk, directory, options);
    CheckSound(directory, n_rows);
    if (disk.n_faults() == 0) {
      EXPECT_TRUE(report.status.ok());
      break;
    }
  }
  EXPECT_TRUE(Apply(FileSystem::Posix(), directory, options).removals.empty());
}

TDBG_TEST(ADiskThatFailsWhileValuesGoCostsNothing) {
  FailAtEveryCall({.last_steps = 5}, kSteps * testing::kWorkloadRows);
}

TDBG_TEST(ADiskThatFailsWhileStepsGoCostsNothingElse) {
  RetentionOptions options;
  options.max_bytes = 100'000;
  FailAtEveryCall(options, 0);
}

TDBG_TEST(TwoPassesAtOnceDoNotMeet) {
  const TemporaryDirectory run;
  const std::string directory = Write(run);
  const auto lock = DirectoryLock::Take(FileSystem::Posix(), directory);
  EXPECT_TRUE(lock.ok());
  const auto report = Apply(FileSystem::Posix(), directory, {.last_steps = 0});
  EXPECT_TRUE(report.status.ok());
  EXPECT_TRUE(report.removals.empty());
}

TDBG_TEST(AReaderGoesOnWithWhatItHasOpened) {
  const TemporaryDirectory run;
  const std::string directory = Write(run);
  const auto opened = RunReader::Open(directory, {});
  EXPECT_TRUE(opened.ok());
  RunReader& reader = *opened.value();
  const std::uint64_t n = reader.n_tensors();
  EXPECT_TRUE(!reader.WasReplaced());
  for (std::size_t i = 0; i < n; ++i) EXPECT_TRUE(reader.ReadTensor(i).ok());
  EXPECT_TRUE(!Apply(FileSystem::Posix(), directory, {.last_steps = 0})
                   .removals.empty());
  for (std::size_t i = 0; i < n; ++i) EXPECT_TRUE(reader.ReadTensor(i).ok());
  EXPECT_TRUE(reader.WasReplaced());
  EXPECT_TRUE(reader.problems().empty());
}

// COMMIT tells how long the shard was, and its name is that of the copy now.
TDBG_TEST(AReaderDoesNotTakeTheCopyForTheShardThatItHasOpened) {
  const TemporaryDirectory run;
  const std::string directory = Write(run, /*in_one_shard=*/true);
  const auto opened = RunReader::Open(directory, {});
  EXPECT_TRUE(opened.ok());
  RunReader& reader = *opened.value();
  EXPECT_TRUE(!Apply(FileSystem::Posix(), directory, {.last_steps = 0})
                   .removals.empty());
  reader.Poll();
  EXPECT_TRUE(reader.problems().empty());
  EXPECT_TRUE(reader.WasReplaced());
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
