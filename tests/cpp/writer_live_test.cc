// A reader follows a writer while it writes: it sees every record once, whole,
// in order.
//
//   writer_live_test [FILTER [RECORDS]]     1,000,000 records when not told

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reader/run_reader.h"
#include "sanitized.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/shard_writer.h"
#include "writer/writer.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kDefinitions = 8;
constexpr std::uint64_t kRecordsPerStep =
    100;  // The one that ends it included.

std::uint64_t n_records = testing::kHasThreadSanitizer ? 100'000 : 1'000'000;

// Writes `n` records.  The k-th of a kind carries k, so that a reader knows
// what must come next.
void Write(Writer* writer, std::uint64_t n) {
  std::array<std::uint32_t, kDefinitions> ids{};
  for (std::uint64_t i = 0; i < kDefinitions; ++i) {
    Definition definition;
    definition.name = "t" + std::to_string(i);
    definition.dtype = DType::kUInt64;
    definition.item_size = 8;
    definition.shape = {4};
    ids[i] = writer->Define(definition);
  }
  const std::array<std::int64_t, 1> shape = {4};
  std::uint64_t n_rows = 0;
  std::uint64_t n_scalars = 0;
  std::uint64_t n_tensors = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto step = static_cast<std::int64_t>(i / kRecordsPerStep);
    const std::uint32_t id = ids[i % kDefinitions];
    if (i % kRecordsPerStep == kRecordsPerStep - 1) {
      (void)writer->EndStep({.step = step});
    } else if (i % 4 == 0) {
      Row row;
      row.definition = id;
      row.summary.count = n_rows++;
      (void)writer->AddRows(step, {&row, 1});
    } else if (i % 4 == 1) {
      const std::array<std::uint64_t, 4> values = {n_tensors, ~n_tensors, i, 7};
      ++n_tensors;
      (void)writer->AddTensor(step, id,
                              {.data = values.data(),
                               .dtype = DType::kUInt64,
                               .item_size = 8,
                               .shape = shape,
                               .strides = {}});
    } else {
      const Scalar scalar{.definition = id,
                          .value = static_cast<double>(n_scalars++)};
      (void)writer->AddScalars(step, {&scalar, 1});
    }
  }
}

// What a reader has seen so far, checked as it comes.
class Follower {
 public:
  explicit Follower(RunReader* reader) : reader_(reader) {}

  void Check() {
    const std::uint64_t n_rows = reader_->n_rows();
    for (const ColumnRow& row : reader_->Rows(rows_, n_rows)) {
      if (row.summary.count != rows_++) ++gaps;
    }
    const auto& scalars = reader_->scalars();
    for (; scalars_ < scalars.size(); ++scalars_) {
      const double value = scalars[scalars_].scalar.value;
      if (value != static_cast<double>(scalars_)) ++gaps;
    }
    const auto& steps = reader_->steps();
    for (; steps_ < steps.size(); ++steps_) {
      const StepRecord& step = steps[steps_].record;
      if (step.step != static_cast<std::int64_t>(steps_)) ++gaps;
      if (steps[steps_].sequence <= last_sequence_) ++gaps;
      last_sequence_ = steps[steps_].sequence;
      if (step.offered != kRecordsPerStep - 1) ++bad;
      if (step.written != step.offered) ++bad;
    }
    for (; tensors_ < reader_->tensors().size(); ++tensors_) {
      const auto read = reader_->ReadTensor(tensors_);
      std::array<std::uint64_t, 4> values{};
      if (!read.ok() || read.value().bytes.size() != sizeof(values)) {
        ++bad;
        continue;
      }
      std::memcpy(values.data(), read.value().bytes.data(), sizeof(values));
      if (values[0] != tensors_ || values[1] != ~tensors_) ++gaps;
    }
  }
  [[nodiscard]] std::uint64_t seen() const {
    return rows_ + scalars_ + steps_ + tensors_;
  }

  std::uint64_t bad = 0;
  std::uint64_t gaps = 0;

 private:
  RunReader* const reader_;
  std::uint64_t rows_ = 0;
  std::uint64_t scalars_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t last_sequence_ = 0;
  std::uint64_t tensors_ = 0;
};

// Sabotages seen to fail here: never advancing the counter of the commit slot;
// numbering a new shard's records from 1 again.
TDBG_TEST(AReaderThatRacesTheWriterSeesEverythingInOrder) {
  const testing::TemporaryDirectory run;
  WriterOptions options;
  options.run_directory = run.path();
  options.min_free_bytes = 0;
  options.queue_bytes = 8 << 20;
  options.shard_bytes = 16 << 20;
  options.flush_interval = milliseconds(5);
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  auto opened_reader = RunReader::Open(writer.directory(), {});
  EXPECT_OK(opened_reader);
  RunReader& reader = *opened_reader.value();

  std::atomic<bool> is_done{false};
  std::thread producer([&] {
    Write(&writer, n_records);
    EXPECT_OK(writer.Close(milliseconds(60000)));
    is_done.store(true);
  });
  Follower follower(&reader);
  std::uint64_t n_polls = 0;
  std::uint64_t n_growth = 0;
  std::uint64_t n_growth_live = 0;
  std::uint64_t last_counter = 0;
  std::uint64_t n_backwards = 0;
  for (bool last = false;;) {
    const bool was_done = is_done.load();
    const bool grew = reader.Poll();
    ++n_polls;
    if (grew) ++n_growth;
    if (grew && !was_done) ++n_growth_live;
    if (const auto slot = reader.commit(); slot.has_value()) {
      if (slot->counter < last_counter) ++n_backwards;
      last_counter = slot->counter;
    }
    follower.Check();
    if (last && !grew) break;
    last = was_done;
  }
  producer.join();
  const Counters c = writer.counters();
  EXPECT_EQ(c.offered, n_records);
  EXPECT_EQ(c.written, n_records);
  EXPECT_EQ(follower.seen(), n_records);
  EXPECT_EQ(follower.bad, 0U);
  EXPECT_EQ(follower.gaps, 0U);
  EXPECT_EQ(n_backwards, 0U);
  EXPECT_GE(last_counter, n_growth_live / 2);
  EXPECT_EQ(reader.problems().size(), 0U);
  EXPECT_TRUE(reader.liveness() == Liveness::kClosed);
  std::printf(
      "       %llu records in %llu shards; %llu polls, %llu saw growth, "
      "%llu of them while it was written\n",
      static_cast<unsigned long long>(follower.seen()),
      static_cast<unsigned long long>(c.shards),
      static_cast<unsigned long long>(n_polls),
      static_cast<unsigned long long>(n_growth),
      static_cast<unsigned long long>(n_growth_live));
  // The writer looks every 20 ms; how often this thread got to look depends on
  // the machine.
  EXPECT_GE(n_growth_live, std::min<std::uint64_t>(n_records / 20000, 5));
}

// Raw tensors that pass the page cache, beside small records that do not, on a
// disk: whatever a reader finds it finds whole, and it finds pads where the
// writer aligned itself, in the index too.
TDBG_TEST(AReaderThatRacesDirectWritesSeesWholeTensors) {
  constexpr std::int64_t kSteps = 60;
  constexpr std::size_t kMost = 1'500'000;
  const auto size_of = [](std::int64_t step) {
    return static_cast<std::size_t>(500'000 + step * 7919 % 1'000'000);
  };
  for (const bool use_caches : {true, false}) {
    const auto run = testing::TemporaryDirectory::OnDisk();
    WriterOptions options;
    options.run_directory = run.path();
    options.min_free_bytes = 0;
    options.codec = CodecPolicy::kNone;
    options.queue_bytes = 32 << 20;
    options.shard_bytes = 64 << 20;
    options.flush_interval = milliseconds(5);
    auto opened = Writer::Open(options);
    EXPECT_OK(opened);
    Writer& writer = *opened.value();
    std::vector<std::uint64_t> values(kMost);
    for (std::size_t i = 0; i < kMost; ++i) values[i] = i * 0x9e3779b9U;
    std::atomic<bool> is_done{false};
    std::thread producer([&] {
      for (std::int64_t step = 0; step < kSteps; ++step) {
        // Part of the values, from another place in each step.
        const std::vector<std::int64_t> shape = {
            static_cast<std::int64_t>(size_of(step))};
        Definition definition;
        definition.name = "t" + std::to_string(step);
        definition.dtype = DType::kUInt64;
        definition.item_size = 8;
        definition.shape = shape;
        const std::uint32_t id = writer.Define(definition);
        (void)writer.AddTensor(step, id,
                               {.data = values.data() + step,
                                .dtype = DType::kUInt64,
                                .item_size = 8,
                                .shape = shape,
                                .strides = {}});
        (void)writer.AddEvent(step, {.json = std::string(step % 7 * 100, 'x')});
        (void)writer.EndStep({.step = step});
      }
      EXPECT_OK(writer.Close(milliseconds(60000)));
      is_done.store(true);
    });
    ReaderOptions reading;
    reading.use_caches = use_caches;
    auto opened_reader = RunReader::Open(writer.directory(), reading);
    EXPECT_OK(opened_reader);
    RunReader& reader = *opened_reader.value();
    std::size_t n_seen = 0;
    for (bool last = false;;) {
      const bool was_done = is_done.load();
      const bool grew = reader.Poll();
      for (; n_seen < reader.tensors().size(); ++n_seen) {
        const std::int64_t step = reader.tensors()[n_seen].step;
        EXPECT_EQ(step, static_cast<std::int64_t>(n_seen));
        const auto read = reader.ReadTensor(n_seen);
        EXPECT_OK(read);
        if (!read.ok()) continue;
        const auto bytes = read.value().bytes;
        EXPECT_EQ(bytes.size(), size_of(step) * 8);
        EXPECT_EQ(std::memcmp(bytes.data(), values.data() + step, bytes.size()),
                  0);
      }
      if (last && !grew) break;
      last = was_done;
    }
    producer.join();
    EXPECT_EQ(n_seen, std::size_t{kSteps});
    EXPECT_EQ(reader.steps().size(), std::size_t{kSteps});
    EXPECT_EQ(reader.problems().size(), 0U);
    EXPECT_EQ(writer.counters().written, std::uint64_t{3 * kSteps});
  }
}

// A long step is in the file, but for its end, before it ends.  Sabotage seen
// to fail here: a thread that only writes what it publishes.
TDBG_TEST(DataAreWrittenBeforeTheirStepEnds) {
  constexpr std::size_t kTensors = 1500;
  const testing::TemporaryDirectory run;
  WriterOptions options;
  options.run_directory = run.path();
  options.min_free_bytes = 0;
  options.codec = CodecPolicy::kNone;
  options.flush_interval = std::chrono::minutes(10);
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  Writer& writer = *opened.value();
  const std::array<std::int64_t, 1> shape = {128};
  Definition definition;
  definition.name = "t";
  definition.dtype = DType::kUInt64;
  definition.item_size = 8;
  definition.shape = {shape[0]};
  const std::uint32_t id = writer.Define(definition);
  std::array<std::uint64_t, 128> values{};
  for (std::size_t i = 0; i < kTensors; ++i) {
    values.fill(i);
    EXPECT_TRUE(writer.AddTensor(0, id,
                                 {.data = values.data(),
                                  .dtype = DType::kUInt64,
                                  .item_size = 8,
                                  .shape = shape,
                                  .strides = {}},
                                 static_cast<std::uint16_t>(i)));
  }
  const std::string shard = writer.directory() + "/000001.tds";
  const auto start = std::chrono::steady_clock::now();
  const auto is_late = [&] {
    return std::chrono::steady_clock::now() - start > std::chrono::seconds(10);
  };
  while (std::filesystem::file_size(shard) < ShardWriter::kMinBehind &&
         !is_late()) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_GE(std::filesystem::file_size(shard), ShardWriter::kMinBehind);
  const auto reader = RunReader::Open(writer.directory(), {});
  EXPECT_OK(reader);
  EXPECT_LE(reader.value()->tensors().size(), kTensors);
  EXPECT_EQ(reader.value()->steps().size(), 0U);
  EXPECT_EQ(reader.value()->problems().size(), 0U);
  EXPECT_EQ(writer.counters().written, 0U);
  EXPECT_TRUE(writer.EndStep({.step = 0}));
  EXPECT_OK(writer.Flush(false, milliseconds(60000)));
  EXPECT_TRUE(reader.value()->Poll());
  EXPECT_EQ(writer.counters().written, kTensors + 1);
  EXPECT_EQ(reader.value()->steps().size(), 1U);
  EXPECT_EQ(reader.value()->tensors().size(), kTensors);
  for (std::size_t i = 0; i < reader.value()->tensors().size(); ++i) {
    const auto read = reader.value()->ReadTensor(i);
    EXPECT_OK(read);
    values.fill(i);
    EXPECT_EQ(std::memcmp(read.value().bytes.data(), values.data(), 1024), 0);
  }
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) {
  if (argc > 2) tdbg::n_records = std::strtoull(argv[2], nullptr, 10);
  return tdbg::testing::Run(argc, argv);
}
