// Sixteen threads, in bursts, into a queue that is far too small, under each
// policy: every record ends in exactly one of written, dropped, failed; what
// was written is there, in the order of its thread; and every step that lost
// something is covered by a gap.
//
// Arguments: a filter, then how many records (1,000,000; 10,000,000 for a long
// run).

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fault_injection.h"
#include "reader/run_reader.h"
#include "sanitized.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kThreads = 16;
constexpr std::uint64_t kStep = 64;  // Calls a step, its end included.
constexpr std::uint64_t kBurst = 512;
constexpr std::uint64_t kTensors = 7;  // A step.
constexpr std::int64_t kStepsOfThread = 1'000'000'000;

std::uint64_t n_records = testing::kHasThreadSanitizer ? 100'000 : 1'000'000;

struct Thread {
  std::uint32_t scalar = 0;
  std::uint32_t tensor = 0;
};

void Produce(Writer* writer, const Thread& thread, std::uint64_t id,
             std::uint64_t n, std::atomic<std::uint64_t>* n_not_taken) {
  const std::array<std::int64_t, 1> shape = {16};
  std::uint64_t n_lost = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto step = static_cast<std::int64_t>(id) * kStepsOfThread +
                      static_cast<std::int64_t>(i / kStep);
    bool is_taken = true;
    if (i % kStep == kStep - 1) {
      is_taken = writer->EndStep({.step = step});
    } else if (i % kStep == kStep / 2) {
      writer->Refuse(step, 1, 5);
      is_taken = false;
    } else if (i % 8 == 0) {
      const std::array<std::uint64_t, 16> values = {i, ~i};
      is_taken = writer->AddTensor(step, thread.tensor,
                                   {.data = values.data(),
                                    .dtype = DType::kUInt64,
                                    .item_size = 8,
                                    .shape = shape,
                                    .strides = {}});
    } else if (i % 8 == 1) {
      Row row;
      row.definition = thread.tensor;
      row.summary.count = i;
      is_taken = writer->AddRows(step, {&row, 1});
    } else {
      const Scalar scalar{.definition = thread.scalar,
                          .value = static_cast<double>(i)};
      is_taken = writer->AddScalars(step, {&scalar, 1});
    }
    n_lost += is_taken ? 0 : 1;
    if (i % kBurst == kBurst - 1) std::this_thread::sleep_for(milliseconds(1));
  }
  n_not_taken->fetch_add(n_lost);
}

// Counts what comes out of the order of its producer.
class Order {
 public:
  void See(std::uint32_t definition, std::uint64_t number) {
    const auto [it, is_first] = last_.try_emplace(definition, number);
    if (!is_first && number <= it->second) ++n_wrong;
    it->second = number;
    ++n_seen;
  }
  std::uint64_t n_wrong = 0;
  std::uint64_t n_seen = 0;

 private:
  std::map<std::uint32_t, std::uint64_t> last_;
};

bool IsCovered(const std::vector<Gap>& gaps, std::int64_t step) {
  for (const Gap& gap : gaps) {
    if (gap.first_step <= step && step <= gap.last_step) return true;
  }
  return false;
}

void CheckSteps(RunReader& reader, const Counters& c) {
  std::map<std::int64_t, std::uint64_t> n_tensors;
  for (const TensorEntry& entry : reader.tensors()) ++n_tensors[entry.step];
  // Gaps by the thread of their steps, or the search would be long.
  std::map<std::int64_t, std::vector<Gap>> gaps;
  std::uint64_t n_in_gaps = 0;
  for (const Gap& gap : reader.gaps()) {
    n_in_gaps += gap.records;
    for (std::int64_t t = gap.first_step / kStepsOfThread;
         t <= gap.last_step / kStepsOfThread; ++t) {
      gaps[t].push_back(gap);
    }
  }
  EXPECT_EQ(n_in_gaps, c.dropped + c.failed);
  std::uint64_t n_wrong = 0;
  std::uint64_t n_uncovered = 0;
  std::uint64_t n_checked = 0;
  std::uint64_t n_complete = 0;
  for (const StepEntry& entry : reader.steps()) {
    const StepRecord& step = entry.record;
    if (step.offered != step.written + step.dropped + step.failed) ++n_wrong;
    if (step.offered != kStep - 1) ++n_wrong;
    n_complete += n_tensors[step.step] == kTensors ? 1 : 0;
    if (step.dropped == 0 || step.step % 7 != 0) continue;
    ++n_checked;
    const std::int64_t thread = step.step / kStepsOfThread;
    n_uncovered += IsCovered(gaps[thread], step.step) ? 0 : 1;
  }
  EXPECT_EQ(n_wrong, 0U);
  EXPECT_EQ(n_uncovered, 0U);
  EXPECT_GT(n_checked, 0U);
  if (c.steps_kept + c.steps_left_out != 0) {
    // Of a step whose end was dropped nobody knows here whether it is whole.
    EXPECT_LE(n_complete, c.steps_kept);
    EXPECT_GE(n_complete + c.offered / kStep - reader.steps().size(),
              c.steps_kept);
  }
}

void Run(Overflow overflow) {
  const testing::TemporaryDirectory run;
  testing::FaultyFileSystem disk;
  WriterOptions options;
  options.run_directory = run.path();
  options.min_free_bytes = 0;
  options.queue_bytes = WriterOptions::kMinQueueBytes;
  options.overflow = overflow;
  options.file_system = &disk;
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  std::array<Thread, kThreads> threads;
  for (std::uint64_t id = 0; id < kThreads; ++id) {
    Definition definition;
    definition.name = "scalar" + std::to_string(id);
    threads[id].scalar = writer.Define(definition);
    definition.name = "tensor" + std::to_string(id);
    definition.dtype = DType::kUInt64;
    definition.item_size = 8;
    definition.shape = {16};
    threads[id].tensor = writer.Define(definition);
  }
  // Slow enough that the queue fills, fast enough that the test ends.
  disk.SetBytesPerSecond(200'000'000);
  const std::uint64_t n_each = n_records / 3 / kThreads / kStep * kStep;
  std::atomic<std::uint64_t> n_not_taken{0};
  std::vector<std::thread> producers;
  for (std::uint64_t id = 0; id < kThreads; ++id) {
    producers.emplace_back(Produce, &writer, threads[id], id, n_each,
                           &n_not_taken);
  }
  for (std::thread& producer : producers) producer.join();
  disk.SetBytesPerSecond(0);
  EXPECT_OK(writer.Close(milliseconds(60000)));

  const Counters c = writer.counters();
  EXPECT_EQ(c.offered, kThreads * n_each);
  EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);
  EXPECT_EQ(c.offered_bytes,
            c.written_bytes + c.dropped_bytes + c.failed_bytes);
  EXPECT_EQ(c.failed, 0U);
  EXPECT_EQ(c.dropped, n_not_taken.load());

  auto opened_reader = RunReader::Open(writer.directory(), {});
  EXPECT_OK(opened_reader);
  RunReader& reader = *opened_reader.value();
  EXPECT_EQ(reader.problems().size(), 0U);
  Order scalars;
  for (const ScalarEntry& entry : reader.scalars()) {
    scalars.See(entry.scalar.definition,
                static_cast<std::uint64_t>(entry.scalar.value));
  }
  Order rows;
  for (const ColumnRow& row : reader.Rows(0, reader.n_rows())) {
    rows.See(row.definition, row.summary.count);
  }
  Order tensors;
  std::uint64_t n_bad = 0;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const auto read = reader.ReadTensor(i);
    std::array<std::uint64_t, 16> values{};
    if (read.ok() && read.value().bytes.size() == sizeof(values)) {
      std::memcpy(values.data(), read.value().bytes.data(), sizeof(values));
    }
    if (values[1] != ~values[0]) ++n_bad;
    tensors.See(reader.tensors()[i].definition, values[0]);
  }
  EXPECT_EQ(n_bad, 0U);
  EXPECT_EQ(scalars.n_wrong + rows.n_wrong + tensors.n_wrong, 0U);
  EXPECT_EQ(
      scalars.n_seen + rows.n_seen + tensors.n_seen + reader.steps().size(),
      c.written);
  CheckSteps(reader, c);
  std::printf("       %llu records: %llu written, %llu dropped\n",
              static_cast<unsigned long long>(c.offered),
              static_cast<unsigned long long>(c.written),
              static_cast<unsigned long long>(c.dropped));
}

// Sabotages seen to fail here: counting a record as offered twice when it is
// dropped; taking the items of a run in any order.
TDBG_TEST(SixteenThreadsUnderBlock) { Run(Overflow::kBlock); }
TDBG_TEST(SixteenThreadsUnderDrop) { Run(Overflow::kDrop); }
TDBG_TEST(SixteenThreadsUnderSample) { Run(Overflow::kSample); }

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) {
  if (argc > 2) tdbg::n_records = std::strtoull(argv[2], nullptr, 10);
  return tdbg::testing::Run(argc, argv);
}
