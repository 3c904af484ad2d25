// When samples are taken, how rows are collected, and who samples a node.

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "collected_rows.h"
#include "sampler/node_file.h"
#include "sampler/pacer.h"
#include "sampler/profile_rows.h"
#include "sampler/row_sink.h"
#include "sampler/sampling_threads.h"
#include "temporary_directory.h"
#include "testing.h"
#include "waiting.h"

namespace tdbg {
namespace {

using testing::CollectedRows;
using testing::TemporaryDirectory;

// The size of a row by its columns; each ends in the number of its bytes.
std::size_t SizeOf(const std::string& columns) {
  std::size_t size = 0;
  for (std::size_t i = 0; (i = columns.find(":", i)) != std::string::npos;
       i += 4) {
    size += static_cast<std::size_t>(columns.at(i + 3) - '0');
  }
  return size;
}

TDBG_TEST(RowsAreAsLongAsTheirColumns) {
  EXPECT_EQ(SizeOf(SystemRow::kColumns), sizeof(SystemRow));
  EXPECT_EQ(SizeOf(DiskRow::kColumns), sizeof(DiskRow));
  EXPECT_EQ(SizeOf(NetworkRow::kColumns), sizeof(NetworkRow));
  EXPECT_EQ(SizeOf(GpuRow::kColumns), sizeof(GpuRow));
  EXPECT_EQ(SizeOf(ProcessRow::kColumns), sizeof(ProcessRow));
  EXPECT_EQ(CoreColumns(4), "time:<i8,busy:|u1*4");
}

// --- Pacer -------------------------------------------------------------------

TDBG_TEST(SamplesAreDueOnAGrid) {
  Pacer pacer(1000, 100);
  EXPECT_FALSE(pacer.Take(1000));
  EXPECT_EQ(pacer.due_ns(), 1100);
  EXPECT_FALSE(pacer.Take(1110));
  EXPECT_EQ(pacer.due_ns(), 1200);  // Not 1210: it does not drift.
}

TDBG_TEST(ALateSampleIsSaidToBe) {
  Pacer pacer(1000, 100);
  EXPECT_FALSE(pacer.Take(1050));
  EXPECT_TRUE(pacer.Take(1151));
}

TDBG_TEST(MissedSamplesAreLeftOut) {
  Pacer pacer(1000, 100);
  EXPECT_TRUE(pacer.Take(1730));
  EXPECT_EQ(pacer.due_ns(), 1800);
  EXPECT_FALSE(pacer.Take(1800));
  EXPECT_TRUE(pacer.Take(2000));  // Exactly one interval late.
  EXPECT_EQ(pacer.due_ns(), 2100);
}

// --- Rows --------------------------------------------------------------------

TDBG_TEST(RowsOfASecondAreWrittenTogether) {
  CollectedRows rows;
  RowBuffer buffer(std::make_shared<RowGate>(rows.sink()));
  constexpr std::int64_t kHalf = 500'000'000;
  for (int i = 0; i < 3; ++i) {
    buffer.Add(SystemRow{.time = i});
    buffer.WriteDue(1 + i * kHalf, kHalf);
    EXPECT_EQ(rows.Of<SystemRow>().size(), i < 2 ? 0U : 3U);
  }
  buffer.Add(SystemRow{.time = 3});
  buffer.WriteAll();
  EXPECT_EQ(rows.Of<SystemRow>().size(), 4U);
  EXPECT_EQ(rows.Of<SystemRow>().at(3).time, 3);
}

TDBG_TEST(RowsOfDevicesAndCoresWaitForOthers) {
  CollectedRows rows;
  RowBuffer buffer(std::make_shared<RowGate>(rows.sink()));
  constexpr std::int64_t kHalf = 500'000'000;
  for (int i = 0; i < 11; ++i) {
    buffer.Add(SystemRow{.time = i});
    buffer.Add(DiskRow{.time = i}, "sda");
    buffer.WriteDue(1 + i * kHalf, kHalf);
    EXPECT_EQ(rows.Of<DiskRow>("sda").size(), i < 10 ? 0U : 11U);
  }
  EXPECT_EQ(rows.Of<SystemRow>().size(), 9U);
  buffer.WriteAll();
  EXPECT_EQ(rows.Of<SystemRow>().size(), 11U);
}

TDBG_TEST(SixtyFourRowsAreWrittenAtOnce) {
  CollectedRows rows;
  RowBuffer buffer(std::make_shared<RowGate>(rows.sink()));
  for (int i = 0; i < 65; ++i) buffer.Add(ProcessRow{.time = i});
  EXPECT_EQ(rows.Of<ProcessRow>().size(), 64U);
}

TDBG_TEST(AGateThatIsShutLetsNothingThrough) {
  CollectedRows rows;
  RowGate gate(rows.sink());
  gate.WriteMachine("a");
  gate.Shut();
  gate.WriteChange("b");
  gate.Write("system", SystemRow::kColumns, {});
  EXPECT_EQ(rows.events().size(), 1U);
  EXPECT_EQ(rows.Columns("system"), "");
}

// --- Threads -----------------------------------------------------------------

// Counts its samples; throws at those that it is told to.
class Counter : public Source {
 public:
  explicit Counter(bool throws = false) : throws_(throws) {}
  void Sample(const Moment& moment, RowBuffer* rows) override {
    if (throws_) throw std::runtime_error("no");
    rows->Add(SystemRow{.time = moment.time_ns, .is_late = moment.is_last});
  }

 private:
  const bool throws_;
};

// Shortens the interval of its threads while it takes its first sample.
class Hastener : public Source {
 public:
  bool Prepare(SamplingThreads& threads) override {
    threads_ = &threads;
    return true;
  }
  void Sample(const Moment& /*moment*/, RowBuffer* /*rows*/) override {
    threads_->SetInterval(1'000'000);
  }

 private:
  SamplingThreads* threads_ = nullptr;
};

bool Take(const SamplingThreads& threads, std::int64_t n) {
  return testing::Until([&] { return threads.n_samples() >= n; });
}

std::shared_ptr<SamplingThreads> Threads(CollectedRows* rows,
                                         std::int64_t interval_ns) {
  return std::make_shared<SamplingThreads>(
      interval_ns, std::make_shared<RowGate>(rows->sink()));
}

TDBG_TEST(TheLastSampleIsTakenAtTheEnd) {
  CollectedRows rows;
  const auto threads = Threads(&rows, 3'600'000'000'000);  // An hour.
  EXPECT_TRUE(threads->Start("test", std::make_unique<Counter>()));
  EXPECT_TRUE(Take(*threads, 1));
  EXPECT_TRUE(threads->Stop(std::chrono::seconds(30)));
  const std::vector<SystemRow> taken = rows.Of<SystemRow>();
  EXPECT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken.back().is_late, 1U);  // is_last, as Counter has it.
  EXPECT_FALSE(threads->Start("test", std::make_unique<Counter>()));
  EXPECT_TRUE(threads->Stop(std::chrono::seconds(30)));
}

TDBG_TEST(AnIntervalThatChangesHoldsAtOnce) {
  CollectedRows rows;
  const auto threads = Threads(&rows, 3'600'000'000'000);  // An hour.
  EXPECT_TRUE(threads->Start("test", std::make_unique<Counter>()));
  EXPECT_TRUE(Take(*threads, 1));
  threads->SetInterval(1'000'000);
  EXPECT_TRUE(Take(*threads, 10));
  EXPECT_TRUE(threads->Stop(std::chrono::seconds(30)));
}

TDBG_TEST(AnIntervalThatChangesDuringASampleHoldsAtOnce) {
  CollectedRows rows;
  const auto threads = Threads(&rows, 3'600'000'000'000);  // An hour.
  EXPECT_TRUE(threads->Start("test", std::make_unique<Hastener>()));
  EXPECT_TRUE(Take(*threads, 10));
  EXPECT_TRUE(threads->Stop(std::chrono::seconds(30)));
}

TDBG_TEST(ASourceThatFailsOnDelaysNoOther) {
  CollectedRows rows;
  const auto threads = Threads(&rows, 1'000'000);
  EXPECT_TRUE(threads->Start("bad", std::make_unique<Counter>(true)));
  EXPECT_TRUE(threads->Start("good", std::make_unique<Counter>()));
  EXPECT_TRUE(Take(*threads, 30));
  EXPECT_TRUE(threads->Stop(std::chrono::seconds(30)));
  EXPECT_GE(rows.Of<SystemRow>().size(), 30U);
}

TDBG_TEST(ThreadsCountTheirProcessorTime) {
  CollectedRows rows;
  const auto threads = Threads(&rows, 1'000'000);
  EXPECT_TRUE(threads->Start("test", std::make_unique<Counter>()));
  EXPECT_TRUE(Take(*threads, 3));
  EXPECT_TRUE(threads->Stop(std::chrono::seconds(30)));
  EXPECT_GT(threads->cpu_ns(), 0);
}

// --- The file of a node ------------------------------------------------------

TDBG_TEST(ProcessesAreReadAsTheyWereWritten) {
  const TrainingProcess rank{.pid = 7, .start_ticks = 8, .rank = 3, .kind = 1};
  const TrainingProcess worker{
      .pid = 9, .start_ticks = 10, .rank = 3, .kind = 2, .worker = 5};
  const auto parsed =
      ParseTrainingProcesses(WrittenProcess(rank) + WrittenProcess(worker));
  EXPECT_EQ(parsed.size(), 2U);
  EXPECT_TRUE(parsed.at(0) == rank);
  EXPECT_TRUE(parsed.at(1) == worker);
}

TDBG_TEST(LinesThatNameNoProcessArePassedOver) {
  EXPECT_EQ(ParseTrainingProcesses("\n0 1 2 3 4\n-1 2 3 4 5\n1 2 3\n1 2 3 4\n"
                                   "99999999999 1 1 1 1\nx y z\n")
                .size(),
            0U);
  EXPECT_EQ(ParseTrainingProcesses(std::string(5000, '\xff')).size(), 0U);
}

TDBG_TEST(SessionsOfAProcessShareTheFileAndOneSamples) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/node";
  auto first = NodeFile::Join(path);
  auto second = NodeFile::Join(path);
  EXPECT_OK(first);
  EXPECT_TRUE(first.value() == second.value());
  EXPECT_TRUE(first.value()->TrySample());
  EXPECT_FALSE(second.value()->TrySample());
  first.value()->StopSampling();
  EXPECT_TRUE(second.value()->TrySample());
}

TDBG_TEST(TheFileIsReadOnFromWhereItWasRead) {
  const TemporaryDirectory directory;
  auto file = NodeFile::Join(directory.path() + "/node");
  EXPECT_OK(file);
  std::uint64_t offset = 0;
  EXPECT_EQ(file.value()->ReadFrom(&offset).size(), 0U);
  EXPECT_TRUE(file.value()->Add({.pid = 1, .start_ticks = 1}));
  EXPECT_TRUE(file.value()->Add({.pid = 2, .start_ticks = 1}));
  EXPECT_EQ(file.value()->ReadFrom(&offset).size(), 2U);
  EXPECT_TRUE(file.value()->Add({.pid = 3, .start_ticks = 1}));
  const auto read = file.value()->ReadFrom(&offset);
  EXPECT_EQ(read.size(), 1U);
  EXPECT_EQ(read.at(0).pid, 3);
}

TDBG_TEST(TheLastWhoLeavesRemovesTheFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/node";
  {
    auto first = NodeFile::Join(path);
    {
      auto second = NodeFile::Join(path);
      EXPECT_OK(second);
    }
    EXPECT_EQ(::access(path.c_str(), F_OK), 0);
    struct stat status{};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TDBG_TEST(WhatIsNoFileOfThisUserIsRefusedAndKept) {
  const TemporaryDirectory directory;
  const std::string target = directory.path() + "/target";
  const std::string link = directory.path() + "/link";
  std::ofstream(target) << "mine";
  EXPECT_EQ(::symlink(target.c_str(), link.c_str()), 0);
  EXPECT_FALSE(NodeFile::Join(link).ok());
  EXPECT_FALSE(NodeFile::Join(directory.path()).ok());
  EXPECT_FALSE(NodeFile::Join(directory.path() + "/no/such/folder").ok());
  EXPECT_EQ(::access(target.c_str(), F_OK), 0);
}

TDBG_TEST(WithoutAPathTheFileIsNobodyElses) {
  auto first = NodeFile::Join("");
  auto second = NodeFile::Join("");
  EXPECT_OK(first);
  EXPECT_TRUE(first.value()->TrySample());
  EXPECT_TRUE(second.value()->TrySample());
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
