// The disk fails at every call that the writer makes, in turn: the n-th call
// fails once, or from then on, for n = 1, 2, 3, ... until a run meets no fault
// (SQLite's loop).  Whatever happens, every call returns, every record is
// accounted for, and what a reader finds is right.
//
//   writer_fault_test [FILTER [all]]     "all": a dozen errors instead of two

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fault_injection.h"
#include "sanitized.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"
#include "writer_workload.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::Call;
using testing::FaultPlan;
using testing::FaultyFileSystem;
using testing::Found;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 16;
constexpr milliseconds kPatience{20000};

bool all_errors = false;

// Of the calls of a training one in so many fails.  The steps are alike, so
// that a sanitizer sees all the code; that every single call may fail is seen
// without.
std::uint64_t Stride() {
  if (testing::kHasThreadSanitizer) return 17;
  return testing::RepeatsLess() ? 5 : 1;
}

struct Outcome {
  bool opened = false;
  bool hit = false;
  Counters counters;
  Status flushed;  // The first that was not ok.
  Status closed;
  Found found;
};

// One training under `plan`.  Flushes make the sequence of calls the same in
// every run.
Outcome Train(const FaultPlan& plan, CodecPolicy codec) {
  const TemporaryDirectory run;
  FaultyFileSystem disk(plan);
  WriterOptions options = testing::WorkloadOptions(run.path());
  options.file_system = &disk;
  options.codec = codec;
  // Room for a step, whose memory is soon made: there are many runs.
  options.queue_bytes = 4U << 20;
  options.previous_bytes = 4U << 20;
  Outcome outcome;
  auto opened = Writer::Open(options);
  if (!opened.ok()) {
    outcome.hit = disk.n_faults() > 0;
    EXPECT_TRUE(opened.status().system_error() == plan.error);
    return outcome;
  }
  outcome.opened = true;
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    workload.Step(step);
    const Status status = writer.Flush(step % 3 == 2, kPatience);
    EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded);
    if (outcome.flushed.ok()) outcome.flushed = status;
    const Counters c = writer.counters();
    const std::uint64_t ended = c.written + c.dropped + c.failed;
    EXPECT_LE(ended, c.offered);
    if (status.ok()) EXPECT_EQ(ended, c.offered);
  }
  outcome.closed = writer.Close(kPatience);
  EXPECT_NE(outcome.closed.code(), StatusCode::kDeadlineExceeded);
  outcome.hit = disk.n_faults() > 0;
  outcome.counters = writer.counters();
  outcome.found = testing::ReadWorkload(writer.directory());
  return outcome;
}

void CheckOutcome(const Outcome& outcome, const FaultPlan& plan) {
  const Counters& c = outcome.counters;
  EXPECT_EQ(c.offered, kSteps * testing::kWorkloadRecords);
  EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);
  EXPECT_EQ(c.offered_bytes,
            c.written_bytes + c.dropped_bytes + c.failed_bytes);
  EXPECT_EQ(outcome.found.wrong, 0U);
  EXPECT_EQ(outcome.found.damage, 0U);
  // What the writer lost is no damage of its files.
  EXPECT_EQ(outcome.found.missing, 0U);
  // Exactly what was counted as written is there.
  EXPECT_EQ(outcome.found.records, c.written);
  const std::uint64_t lost = c.dropped + c.failed;
  if (lost == 0) return;
  // A loss shows in the counters, as an error of a call, and in the data.
  EXPECT_GT(c.io_errors, 0U);
  EXPECT_EQ(c.last_errno, plan.error);
  EXPECT_FALSE(outcome.flushed.ok() && outcome.closed.ok());
  // Unless the disk refused to the very end, the data tells of it.
  if (!outcome.closed.ok() && (plan.for_ever || plan.count > 1)) return;
  EXPECT_EQ(outcome.found.gap_records, lost);
  EXPECT_EQ(outcome.found.step_failed, lost);
}

// Sites and losses stand for those of the calls that were passed over, too.
struct Exposure {
  std::uint64_t sites = 0, runs = 0, faults_in_open = 0, runs_with_loss = 0;
};

Exposure FailEveryCall(FaultPlan plan, CodecPolicy codec = CodecPolicy::kAuto) {
  Exposure exposure;
  const std::uint64_t stride = plan.only.empty() ? Stride() : 1;
  for (plan.first = 1;; plan.first += stride) {
    const int before = testing::Failures();
    const Outcome outcome = Train(plan, codec);
    if (outcome.opened) {
      CheckOutcome(outcome, plan);
      if (outcome.counters.written < outcome.counters.offered) {
        exposure.runs_with_loss += stride;
      }
      // After a fault that passes, the training is captured to its end.
      if (!plan.for_ever && plan.count == 1)
        EXPECT_EQ(outcome.found.steps.size(), std::size_t{kSteps});
    } else {
      exposure.faults_in_open += stride;
    }
    ++exposure.runs;
    if (testing::Failures() != before) {
      std::fprintf(stderr, "    at call %llu, %s, %s\n",
                   static_cast<unsigned long long>(plan.first),
                   std::strerror(plan.error),
                   plan.for_ever ? "for ever" : "once");
      if (testing::Failures() > 20) break;
    }
    if (!outcome.hit) break;
    exposure.sites += stride;
  }
  std::printf(
      "       %s %s: %llu sites, %llu runs, %llu failed to open, "
      "%llu with losses\n",
      plan.is_short ? "short writes" : std::strerror(plan.error),
      plan.for_ever ? "for ever" : "once",
      static_cast<unsigned long long>(exposure.sites),
      static_cast<unsigned long long>(exposure.runs),
      static_cast<unsigned long long>(exposure.faults_in_open),
      static_cast<unsigned long long>(exposure.runs_with_loss));
  return exposure;
}

std::vector<int> Errors() {
  if (testing::RepeatsLess()) return {ENOSPC};
  if (!all_errors) return {ENOSPC, EIO};
  return {ENOSPC, EIO,    EDQUOT, EROFS,  EACCES, EMFILE,
          ENFILE, EAGAIN, ENOMEM, ESTALE, EFBIG,  ENODEV};
}

// Sabotages seen to fail here: counting nothing as failed when a shard is
// abandoned; not carrying the records that close steps over.
TDBG_TEST(EveryCallFailsOnce) {
  for (const int error : Errors()) {
    const Exposure exposure = FailEveryCall({.error = error, .only = {}});
    EXPECT_GE(exposure.sites, 80U);
    EXPECT_GE(exposure.runs_with_loss, 10U);
    EXPECT_GE(exposure.faults_in_open, 5U);
  }
}

// Faults on faults: what tells of the first loss is lost itself.  Sabotage seen
// to fail here: forgetting the gaps of a batch that failed.
TDBG_TEST(EveryCallAndSomeAfterItFail) {
  for (const std::uint64_t every : {3U, 7U, 8U, 9U}) {
    const Exposure exposure = FailEveryCall(
        {.count = 4, .every = every, .error = ENOSPC, .only = {}});
    EXPECT_GE(exposure.sites, 80U);
    EXPECT_GE(exposure.runs_with_loss, 50U);
    if (testing::RepeatsLess()) break;
  }
}

// Sabotage seen to fail here: passing over what comes while there is no shard.
TDBG_TEST(EveryCallFailsForEver) {
  for (const int error : Errors()) {
    const Exposure exposure =
        FailEveryCall({.for_ever = true, .error = error, .only = {}});
    EXPECT_GE(exposure.sites, 80U);
    EXPECT_GE(exposure.runs_with_loss, 50U);
  }
}

// Sabotage seen to fail here: taking a short write for a whole one.
TDBG_TEST(ShortWritesLoseNothing) {
  for (const bool for_ever : {false, true}) {
    const FaultPlan plan{
        .for_ever = for_ever, .is_short = true, .only = {Call::kPwrite}};
    const Exposure exposure = FailEveryCall(plan);
    EXPECT_GE(exposure.sites, 50U);
    EXPECT_EQ(exposure.runs_with_loss, 0U);
    EXPECT_EQ(exposure.faults_in_open, 0U);
  }
}

// Values that go to the disk as they are, past the page cache.
TDBG_TEST(RawValuesSurviveTheSame) {
  for (const bool for_ever : {false, true}) {
    const Exposure exposure =
        FailEveryCall({.for_ever = for_ever, .error = ENOSPC, .only = {}},
                      CodecPolicy::kNone);
    EXPECT_GE(exposure.sites, 100U);
    EXPECT_GE(exposure.runs_with_loss, 10U);
    const Exposure direct = FailEveryCall(
        {.for_ever = for_ever, .error = EIO, .only = {Call::kPwriteDirect}},
        CodecPolicy::kNone);
    EXPECT_EQ(direct.runs_with_loss, direct.sites);
    const Exposure short_writes = FailEveryCall(
        {.for_ever = for_ever, .is_short = true, .only = {Call::kPwriteDirect}},
        CodecPolicy::kNone);
    EXPECT_EQ(short_writes.runs_with_loss, 0U);
    for (const Exposure& of : {direct, short_writes}) {
      EXPECT_GE(of.sites, 4U);
    }
  }
}

TDBG_TEST(AFileSystemWithoutDirectWritesLosesNothing) {
  for (const Call call : {Call::kSetDirect, Call::kPwriteDirect}) {
    for (const int error : {EINVAL, EOPNOTSUPP}) {
      const FaultPlan plan{
          .first = 1, .for_ever = true, .error = error, .only = {call}};
      const Outcome outcome = Train(plan, CodecPolicy::kNone);
      EXPECT_TRUE(outcome.hit);
      CheckOutcome(outcome, plan);
      EXPECT_EQ(outcome.counters.written, outcome.counters.offered);
      EXPECT_OK(outcome.flushed);
      EXPECT_OK(outcome.closed);
    }
  }
}

// Sabotage seen to fail here: not repeating an interrupted write.
TDBG_TEST(InterruptedCallsLoseNothing) {
  const Exposure exposure = FailEveryCall({.error = EINTR, .only = {}});
  EXPECT_GE(exposure.sites, 80U);
  EXPECT_EQ(exposure.runs_with_loss, 0U);
  EXPECT_EQ(exposure.faults_in_open, 0U);
}

// Sabotage seen to fail here: syncing the same shard again after a failed sync.
TDBG_TEST(AShardWhoseSyncFailedIsNeverSyncedAgain) {
  const TemporaryDirectory run;
  FaultyFileSystem disk;
  WriterOptions options = testing::WorkloadOptions(run.path());
  options.shard_bytes = 1U << 30;
  options.file_system = &disk;
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  workload.Step(0);
  EXPECT_OK(writer.Flush(true, kPatience));
  EXPECT_EQ(writer.counters().shards, 1U);
  workload.Step(1);
  disk.SetPlan({.first = 1, .only = {Call::kFdatasync}});
  EXPECT_EQ(writer.Flush(true, kPatience).system_error(), EIO);
  workload.Step(2);
  EXPECT_OK(writer.Flush(true, kPatience));
  EXPECT_EQ(writer.counters().shards, 2U);
  EXPECT_OK(writer.Close(kPatience));
  EXPECT_EQ(writer.counters().failed, 0U);  // What was visible stays written.
  const Found found = testing::ReadWorkload(writer.directory());
  EXPECT_EQ(found.steps.size(), 3U);
}

// A disk that fails for a while: the writer degrades, says so, drops, and goes
// on when it can.  Sabotage seen to fail here: giving up after kMaxFailures.
TDBG_TEST(ADegradedWriterRecovers) {
  const TemporaryDirectory run;
  FaultyFileSystem disk;
  WriterOptions options = testing::WorkloadOptions(run.path());
  options.file_system = &disk;
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  workload.Step(0);
  EXPECT_OK(writer.Flush(false, kPatience));
  // The commit page, open already, stays writable: it is how readers learn.
  disk.SetPlan({.first = 1,
                .for_ever = true,
                .error = EROFS,
                .only = {Call::kOpen, Call::kFdatasync}});
  workload.Step(1);
  EXPECT_FALSE(writer.Flush(true, kPatience).ok());
  const auto start = steady_clock::now();
  std::int64_t step = 2;
  while (writer.counters().state != WriterState::kDegraded &&
         steady_clock::now() - start < std::chrono::seconds(10)) {
    workload.Step(step++);
    (void)writer.Flush(false, kPatience);
  }
  EXPECT_TRUE(writer.counters().state == WriterState::kDegraded);
  EXPECT_EQ(writer.counters().last_errno, EROFS);
  auto reader = RunReader::Open(writer.directory(), {});
  EXPECT_OK(reader);
  EXPECT_TRUE(reader.value()->commit()->state == WriterState::kDegraded);
  disk.SetPlan({});
  const auto healed = steady_clock::now();
  while (writer.counters().state != WriterState::kRunning &&
         steady_clock::now() - healed < std::chrono::seconds(10)) {
    workload.Step(step++);
    (void)writer.Flush(false, kPatience);
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(writer.counters().state == WriterState::kRunning);
  workload.Step(step);
  EXPECT_OK(writer.Flush(true, kPatience));
  EXPECT_OK(writer.Close(kPatience));
  const Counters c = writer.counters();
  EXPECT_GT(c.failed, 0U);
  EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);
  const Found found = testing::ReadWorkload(writer.directory());
  EXPECT_TRUE(found.tensors.contains(step));
  EXPECT_EQ(found.gap_records, c.failed);
}

// Files that go while they are written: nobody refuses the writes, and nobody
// will ever read them.  Sabotage seen to fail here: not asking for the name;
// counting what the file held as written.
TDBG_TEST(WhatIsWrittenToAFileWithoutANameIsLost) {
  for (const bool is_replaced : {false, true}) {
    const TemporaryDirectory run;
    auto opened = Writer::Open(testing::WorkloadOptions(run.path()));
    EXPECT_OK(opened);
    Writer& writer = *opened.value();
    const std::string shard = writer.directory() + "/000001.tds";
    testing::Workload workload(&writer);
    workload.Step(0);
    EXPECT_OK(writer.Flush(false, kPatience));
    EXPECT_EQ(writer.counters().written, testing::kWorkloadRecords);
    if (is_replaced) {
      std::filesystem::rename(writer.directory() + "/COMMIT", shard);
    } else {
      std::filesystem::remove(shard);
    }
    workload.Step(1);
    EXPECT_EQ(writer.Flush(false, kPatience).system_error(), ENOENT);
    workload.Step(2);
    EXPECT_OK(writer.Flush(false, kPatience));
    EXPECT_OK(writer.Close(kPatience));
    const Counters c = writer.counters();
    EXPECT_EQ(c.offered, 3 * testing::kWorkloadRecords);
    EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);
    EXPECT_EQ(c.last_errno, ENOENT);
    // The step that was going on is told of with its losses; the one before it
    // is gone, and a gap says so.
    const Found found = testing::ReadWorkload(writer.directory());
    EXPECT_EQ(found.records, c.written);
    EXPECT_EQ(found.gap_records, c.failed);
    EXPECT_TRUE(found.steps == (std::set<std::int64_t>{1, 2}));
  }
}

TDBG_TEST(AWriterWhoseDirectoryIsDeletedCountsEverythingAsFailed) {
  const TemporaryDirectory run;
  WriterOptions options = testing::WorkloadOptions(run.path());
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  workload.Step(0);
  EXPECT_OK(writer.Flush(false, kPatience));
  std::filesystem::remove_all(run.path() + "/w");
  // Without anything new to write it is noticed, too.
  for (int i = 0; i < 500 && writer.counters().failed == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(writer.counters().failed, testing::kWorkloadRecords);
  workload.Step(1);
  EXPECT_FALSE(writer.Close(kPatience).ok());
  const Counters c = writer.counters();
  EXPECT_EQ(c.written, 0U);
  EXPECT_EQ(c.failed, c.offered);
  EXPECT_EQ(c.last_errno, ENOENT);
}

// Sabotage seen to fail here: abandoning the shard when its index fails.
TDBG_TEST(AnIndexThatFailsConcernsNobody) {
  const TemporaryDirectory run;
  FaultyFileSystem disk;
  WriterOptions options = testing::WorkloadOptions(run.path());
  options.shard_bytes = 1U << 30;
  options.file_system = &disk;
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  testing::Workload workload(&writer);
  // The batch of the shard is the first write, that of its index the second.
  disk.SetPlan({.first = 2, .only = {Call::kPwrite}});
  workload.Step(0);
  EXPECT_EQ(writer.Flush(false, kPatience).system_error(), EIO);
  EXPECT_EQ(disk.n_faults(), 1U);
  workload.Step(1);
  EXPECT_OK(writer.Close(kPatience));
  EXPECT_EQ(writer.counters().failed, 0U);
  EXPECT_EQ(writer.counters().shards, 1U);
  EXPECT_EQ(testing::ReadWorkload(writer.directory()).records,
            2 * testing::kWorkloadRecords);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) {
  tdbg::all_errors = argc > 2 && std::string(argv[2]) == "all";
  return tdbg::testing::Run(argc, argv);
}
