// Records whose bytes come later keep their place, and hold up no longer than
// a disk would.

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "reader/run_reader.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using testing::TemporaryDirectory;

constexpr milliseconds kPatience{20000};

// What a device does with a record: tests set it from outside.
struct Delivery {
  std::atomic<Completion::Answer> answer{Completion::Answer::kPending};
  std::atomic<int> n_polls{0};
  std::atomic<int> n_alive{0};
  std::vector<std::byte> bytes;  // Set before the answer is kDone.
};

class Delivered : public Completion {
 public:
  explicit Delivered(Delivery* delivery) : delivery_(delivery) {
    ++delivery_->n_alive;
  }
  ~Delivered() override { --delivery_->n_alive; }
  Answer Poll(std::span<std::byte>* bytes) override {
    ++delivery_->n_polls;
    const Answer answer = delivery_->answer.load();
    if (answer == Answer::kDone) {
      std::memcpy(bytes->data(), delivery_->bytes.data(),
                  delivery_->bytes.size());
      *bytes = bytes->first(delivery_->bytes.size());
    }
    return answer;
  }

 private:
  Delivery* const delivery_;
};

Writer::Start StartOf(Delivery* delivery) {
  return [delivery](std::span<std::byte>) {
    return std::make_unique<Delivered>(delivery);
  };
}

struct Run {
  TemporaryDirectory directory;
  std::unique_ptr<Writer> writer;
  std::uint32_t tensor = 0;

  explicit Run(Overflow overflow = Overflow::kBlock) {
    WriterOptions options;
    options.run_directory = directory.path();
    options.min_free_bytes = 0;
    options.queue_bytes = WriterOptions::kMinQueueBytes;
    options.overflow = overflow;
    auto opened = Writer::Open(options);
    EXPECT_OK(opened);
    writer = std::move(opened).value();
    Definition definition;
    definition.name = "a";
    definition.dtype = DType::kFloat32;
    definition.item_size = 4;
    definition.shape = {2};
    tensor = writer->Define(definition);
  }
  [[nodiscard]] std::unique_ptr<RunReader> Read() const {
    auto reader = RunReader::Open(writer->directory(), {});
    EXPECT_OK(reader);
    return std::move(reader).value();
  }
  [[nodiscard]] Row RowOf(std::uint64_t count) const {
    Row row;
    row.definition = tensor;
    row.summary.count = count;
    return row;
  }
  void ExpectBalance() const {
    const Counters c = writer->counters();
    EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);
    EXPECT_EQ(c.offered_bytes,
              c.written_bytes + c.dropped_bytes + c.failed_bytes);
  }
};

template <typename T>
std::vector<std::byte> BytesOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

void WaitForPolls(const Delivery& delivery, int n) {
  while (delivery.n_polls.load() < n) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

TDBG_TEST(ARecordThatComesLaterKeepsItsPlace) {
  Run run;
  Delivery rows;
  Delivery values;
  EXPECT_TRUE(run.writer->AddRowsLater(3, 2, StartOf(&rows)));
  EXPECT_TRUE(
      run.writer->AddTensorLater(3, run.tensor, StartOf(&values), 4, 5));
  const Row after = run.RowOf(30);
  EXPECT_TRUE(run.writer->AddRows(3, {&after, 1}));
  EXPECT_TRUE(run.writer->EndStep({.step = 3}));
  // Nothing overtakes it: not even the end of the step becomes visible.
  EXPECT_EQ(run.writer->Flush(false, milliseconds(30)).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(run.Read()->n_rows(), 0U);
  EXPECT_EQ(values.n_polls.load(), 0);

  values.bytes = BytesOf<float>({1.5F, -2.0F});
  values.answer = Completion::Answer::kDone;
  rows.bytes = BytesOf<Row>({run.RowOf(10), run.RowOf(20)});
  rows.answer = Completion::Answer::kDone;
  EXPECT_OK(run.writer->Flush(false, kPatience));
  auto reader = run.Read();
  const auto read = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(read.size(), 3U);
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].summary.count, 10 * (i + 1));
  }
  EXPECT_EQ(reader->tensors().size(), 1U);
  EXPECT_EQ(reader->tensors()[0].call, 4U);
  EXPECT_EQ(rows.n_alive.load() + values.n_alive.load(), 0);
  run.ExpectBalance();
  EXPECT_EQ(run.writer->counters().dropped, 0U);
}

TDBG_TEST(ARecordThatFailsIsDroppedAndTold) {
  Run run;
  Delivery rows;
  rows.answer = Completion::Answer::kFailed;
  EXPECT_TRUE(run.writer->AddRowsLater(3, 2, StartOf(&rows)));
  EXPECT_TRUE(run.writer->EndStep({.step = 3}));
  EXPECT_OK(run.writer->Flush(false, kPatience));
  EXPECT_EQ(rows.n_polls.load(), 1);
  EXPECT_EQ(rows.n_alive.load(), 0);
  const Counters counters = run.writer->counters();
  const auto& loss = counters.losses[std::size_t{8}];
  EXPECT_EQ(loss.records, 1U);
  EXPECT_EQ(loss.bytes, 2 * sizeof(Row));
  run.ExpectBalance();
  auto reader = run.Read();
  EXPECT_EQ(reader->gaps().size(), 1U);
  EXPECT_TRUE(reader->gaps()[0].reason == GapReason::kDeviceError);
  EXPECT_EQ(reader->gaps()[0].first_step, 3);
  EXPECT_EQ(reader->gaps()[0].records, 1U);
  EXPECT_EQ(reader->steps().size(), 1U);
  EXPECT_EQ(reader->steps()[0].record.dropped, 1U);
}

TDBG_TEST(WhatComesMayBeShorterThanItsRoom) {
  Run run;
  const Histogram histogram{
      .definition = run.tensor, .call = 7, .keys = {3, 9}, .counts = {100, 1}};
  Delivery bins;
  bins.bytes = EncodeHistogram(histogram);
  bins.answer = Completion::Answer::kDone;
  EXPECT_TRUE(run.writer->AddHistogramLater(
      1, run.tensor, bins.bytes.size() + 5000, StartOf(&bins), 7));
  EXPECT_OK(run.writer->Close(kPatience));
  run.ExpectBalance();
  auto reader = run.Read();
  EXPECT_EQ(reader->histograms().size(), 1U);
  EXPECT_EQ(reader->histograms()[0].call, 7U);
  const auto stored = reader->ReadHistogram(0);
  EXPECT_OK(stored);
  EXPECT_TRUE(stored.value().counts == histogram.counts);
}

TDBG_TEST(WhatNeverComesCostsCloseASecondAndNothingElse) {
  Run run;
  Delivery hung;
  Delivery late;
  EXPECT_TRUE(run.writer->AddTensorLater(1, run.tensor, StartOf(&hung)));
  EXPECT_TRUE(run.writer->AddRowsLater(1, 1, StartOf(&late)));
  const Row after = run.RowOf(5);
  EXPECT_TRUE(run.writer->AddRows(1, {&after, 1}));
  EXPECT_TRUE(run.writer->EndStep({.step = 1}));
  EXPECT_OK(run.writer->Close(kPatience));
  EXPECT_EQ(hung.n_alive.load() + late.n_alive.load(), 0);
  const Counters counters = run.writer->counters();
  EXPECT_EQ(counters.losses[8].records, 2U);
  EXPECT_EQ(counters.written, 2U);
  run.ExpectBalance();
  EXPECT_EQ(run.Read()->n_rows(), 1U);
}

TDBG_TEST(CloseThatHasNoTimeLeavesItBehind) {
  Delivery hung;
  {
    Run run;
    EXPECT_TRUE(run.writer->AddTensorLater(1, run.tensor, StartOf(&hung)));
    WaitForPolls(hung, 1);
    EXPECT_EQ(run.writer->Close(milliseconds(20)).code(),
              StatusCode::kDeadlineExceeded);
    run.ExpectBalance();
  }
  // The thread ends by itself, and takes what it held with it.
  while (hung.n_alive.load() != 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// With the oldest record on its way nothing moves, and the queue is bounded:
// under kDrop all that does not fit is dropped at once, and under kBlock once
// the patience has passed.
void FillBehindAHungRecord(Overflow overflow) {
  Run run(overflow);
  Delivery hung;
  EXPECT_TRUE(run.writer->AddRowsLater(1, 1, StartOf(&hung)));
  const std::vector<Row> rows(1000, run.RowOf(1));
  int n_taken = 0;
  while (run.writer->AddRows(1, rows)) ++n_taken;
  EXPECT_TRUE(n_taken > 0);
  EXPECT_TRUE(run.writer->counters().queued_bytes <=
              WriterOptions::kMinQueueBytes);
  // There is room for what closes the step.
  EXPECT_TRUE(run.writer->EndStep({.step = 1}));
  hung.answer = Completion::Answer::kFailed;
  EXPECT_OK(run.writer->Flush(false, kPatience));
  const Counters counters = run.writer->counters();
  EXPECT_EQ(counters.dropped, 2U);
  EXPECT_EQ(counters.losses[8].records, 1U);
  run.ExpectBalance();
  EXPECT_TRUE(run.writer->AddRows(2, rows));
}

TDBG_TEST(TheQueueStaysBoundedBehindIt) {
  FillBehindAHungRecord(Overflow::kDrop);
  FillBehindAHungRecord(Overflow::kBlock);
}

TDBG_TEST(WhatIsNotTakenIsNotStarted) {
  Run run(Overflow::kDrop);
  bool is_started = false;
  const Writer::Start start = [&](std::span<std::byte>) {
    is_started = true;
    return std::unique_ptr<Completion>();
  };
  EXPECT_FALSE(run.writer->AddTensorLater(1, 99, start));
  EXPECT_FALSE(run.writer->AddRowsLater(1, 0, start));
  EXPECT_FALSE(run.writer->AddHistogramLater(1, 99, 10, start));
  EXPECT_FALSE(run.writer->AddHistogramLater(
      1, run.tensor, WriterOptions::kMinQueueBytes, start));
  EXPECT_FALSE(is_started);
  EXPECT_EQ(run.writer->counters().dropped, 4U);
  run.ExpectBalance();
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
