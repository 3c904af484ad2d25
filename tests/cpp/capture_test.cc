// What capture makes of tensors is what a reader finds.

#include "capture/capture.h"

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "child_process.h"
#include "reader/run_reader.h"
#include "reducers/reduce.h"
#include "temporary_directory.h"
#include "testing.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using testing::TemporaryDirectory;

constexpr milliseconds kPatience{20000};

std::unique_ptr<Capture> OpenIn(const TemporaryDirectory& run) {
  WriterOptions options;
  options.run_directory = run.path();
  options.min_free_bytes = 0;
  auto capture = Capture::Open(options);
  EXPECT_OK(capture);
  return std::move(capture).value();
}

std::unique_ptr<RunReader> ReadOf(Capture& capture) {
  auto reader = RunReader::Open(capture.writer().directory(), {});
  EXPECT_OK(reader);
  return std::move(reader).value();
}

std::uint32_t Define(Capture& capture, const std::string& name, DType dtype,
                     std::vector<std::int64_t> shape) {
  Definition definition;
  definition.name = name;
  definition.dtype = dtype;
  definition.item_size = ItemSize(dtype);
  definition.shape = std::move(shape);
  return capture.writer().Define(definition);
}

TDBG_TEST(RowsStandInTheOrderOfTheCallsBeforeTheirStep) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const std::vector<float> values = {1, -2, 3, 0};
  const std::uint32_t a = Define(*capture, "a", DType::kFloat32, {4});
  const std::uint32_t b = Define(*capture, "b", DType::kFloat32, {2, 2});
  const std::array<std::int64_t, 2> transposed = {4, 8};
  const std::array<CaptureItem, 2> items = {
      CaptureItem{
          .definition = b, .data = values.data(), .strides = transposed},
      CaptureItem{.definition = a, .data = values.data(), .strides = {}}};
  capture->Statistics(7, items, {.call = 1, .micro_batch = 2}, 1.0);
  // Another step comes in between; its rows stay with it.
  capture->Statistics(8, std::span(items).first(1), {}, 0.5);
  capture->Statistics(7, std::span(items).last(1), {}, 1.0);
  EXPECT_TRUE(capture->EndStep({.step = 7}));
  EXPECT_TRUE(capture->EndStep({.step = 8}));
  EXPECT_OK(capture->Flush(false, kPatience));
  auto reader = ReadOf(*capture);
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].definition, b);
  EXPECT_EQ(rows[0].step, 7);
  EXPECT_EQ(rows[0].call, 1U);
  EXPECT_EQ(rows[0].micro_batch, 2U);
  EXPECT_EQ(rows[0].flags, 0U);
  EXPECT_EQ(rows[1].definition, a);
  EXPECT_EQ(rows[2].position, 2U);
  EXPECT_EQ(rows[3].step, 8);
  EXPECT_EQ(rows[3].flags, kRescaled);
  EXPECT_EQ(rows[3].summary.max.f64, 1.5);
  const Definition first = reader->definitions().At(1);
  const Summary expected = Reduce({.data = values.data(),
                                   .dtype = DType::kFloat32,
                                   .item_size = 4,
                                   .shape = first.shape,
                                   .strides = {}});
  EXPECT_EQ(std::memcmp(&rows[1].summary, &expected, sizeof(expected)), 0);
  EXPECT_EQ(reader->steps().size(), 2U);
  EXPECT_EQ(reader->steps()[0].record.written, 1U);  // One record of rows.
}

TDBG_TEST(ManyRowsAreWrittenBeforeTheStepEnds) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const float value = 1;
  const CaptureItem item{
      .definition = Define(*capture, "a", DType::kFloat32, {}),
      .data = &value,
      .strides = {}};
  const std::vector<CaptureItem> items(3000, item);
  capture->Statistics(0, items, {}, 1.0);
  capture->Statistics(0, items, {}, 1.0);
  EXPECT_EQ(capture->writer().counters().offered, 1U);
  capture->Statistics(0, items, {}, 1.0);
  EXPECT_TRUE(capture->EndStep({.step = 0}));
  EXPECT_OK(capture->Close(kPatience));
  auto reader = ReadOf(*capture);
  EXPECT_EQ(reader->n_rows(), 9000U);
  const auto rows = reader->Rows(8999, 9000);
  EXPECT_EQ(rows.front().position, 8999U);
}

TDBG_TEST(RowsThatComeToAStepThatHasEndedAreWrittenWithTheNextOne) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const float value = 1;
  const std::array<CaptureItem, 1> item = {
      CaptureItem{.definition = Define(*capture, "a", DType::kFloat32, {}),
                  .data = &value,
                  .strides = {}}};
  EXPECT_TRUE(capture->EndStep({.step = 0}));
  capture->Statistics(0, item, {}, 1.0);
  EXPECT_TRUE(capture->EndStep({.step = 1}));
  // Of the writer alone: what capture still holds is not written by it.
  EXPECT_OK(capture->writer().Flush(false, kPatience));
  auto reader = ReadOf(*capture);
  EXPECT_EQ(reader->n_rows(), 1U);
  EXPECT_EQ(reader->Rows(0, 1).front().step, 0);
  EXPECT_EQ(reader->steps().size(), 2U);
}

TDBG_TEST(UnitSummariesAreTensorsOfThreeRows) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  // Two samples of three units.
  const std::vector<float> values = {1, 0, -1, 2, 0, 9};
  const std::uint32_t id = Define(*capture, "relu", DType::kFloat32, {2, 3});
  const std::uint32_t unit =
      Define(*capture, "unit/relu", DType::kUInt64, {3, 3});
  EXPECT_TRUE(capture->UnitSummary(
      4, unit, {.definition = id, .data = values.data(), .strides = {}}, {},
      {.low = -5, .high = 5}));
  EXPECT_TRUE(capture->EndStep({.step = 4}));
  EXPECT_OK(capture->Close(kPatience));
  auto reader = ReadOf(*capture);
  EXPECT_EQ(reader->tensors().size(), 1U);
  const auto read = reader->ReadTensor(0);
  EXPECT_OK(read);
  const std::array<std::uint64_t, 9> expected = {2, 0, 1, 0, 0, 1, 2, 2, 2};
  EXPECT_EQ(read.value().bytes.size(), sizeof(expected));
  EXPECT_EQ(
      std::memcmp(read.value().bytes.data(), expected.data(), sizeof(expected)),
      0);
}

TDBG_TEST(RowsOfAnEmbeddingAreUnitsOfWhatIsNotZero) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const std::vector<float> values = {1, 0, -1, 0, 0, 0};
  const std::uint32_t id = Define(*capture, "g", DType::kFloat32, {2, 3});
  const std::uint32_t unit = Define(*capture, "unit/g", DType::kUInt64, {3, 2});
  EXPECT_TRUE(capture->UnitSummary(
      4, unit, {.definition = id, .data = values.data(), .strides = {}}, {},
      {.rows_are_units = true}));
  EXPECT_TRUE(capture->EndStep({.step = 4}));
  EXPECT_OK(capture->Close(kPatience));
  auto reader = ReadOf(*capture);
  const auto read = reader->ReadTensor(0);
  EXPECT_OK(read);
  const std::array<std::uint64_t, 6> expected = {2, 0, 0, 0, 3, 3};
  EXPECT_EQ(read.value().bytes.size(), sizeof(expected));
  EXPECT_EQ(
      std::memcmp(read.value().bytes.data(), expected.data(), sizeof(expected)),
      0);
}

TDBG_TEST(HistogramsAreCountedAndStored) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const std::vector<float> values = {1, -2, 3, 0, 1, 1};
  const std::vector<std::int32_t> integers = {7, -7};
  const std::uint32_t id = Define(*capture, "x", DType::kFloat32, {2, 3});
  const std::uint32_t none = Define(*capture, "e", DType::kFloat32, {0, 3});
  const std::uint32_t whole = Define(*capture, "i", DType::kInt32, {2});
  const CaptureItem item{
      .definition = id, .data = values.data(), .strides = {}};
  EXPECT_TRUE(
      capture->CountHistogram(3, item, {.call = 1, .micro_batch = 2}, 1.0));
  EXPECT_TRUE(capture->CountHistogram(3, item, {}, 0.5));
  EXPECT_TRUE(capture->CountHistogram(
      3, {.definition = none, .data = nullptr, .strides = {}}, {}, 1.0));
  // Integers are not scaled.
  EXPECT_TRUE(capture->CountHistogram(
      3, {.definition = whole, .data = integers.data(), .strides = {}}, {},
      0.5));
  EXPECT_TRUE(capture->EndStep({.step = 3}));
  EXPECT_OK(capture->Close(kPatience));
  auto reader = ReadOf(*capture);
  EXPECT_EQ(reader->histograms().size(), 4U);
  EXPECT_EQ(reader->histograms()[0].step, 3);
  std::vector<Histogram> histograms;
  for (std::size_t i = 0; i < 4; ++i) {
    auto histogram = reader->ReadHistogram(i);
    EXPECT_OK(histogram);
    histograms.push_back(std::move(histogram).value());
  }
  using Keys = std::vector<std::uint16_t>;
  using Counts = std::vector<std::uint64_t>;
  EXPECT_EQ(histograms[0].definition, id);
  EXPECT_EQ(histograms[0].call, 1U);
  EXPECT_EQ(histograms[0].micro_batch, 2U);
  EXPECT_TRUE(histograms[0].keys == (Keys{0, 0x3f80, 0x4040, 0xc000}));
  EXPECT_TRUE(histograms[0].counts == (Counts{1, 3, 1, 1}));
  EXPECT_TRUE(histograms[1].keys == (Keys{0, 0x3f00, 0x3fc0, 0xbf80}));
  EXPECT_TRUE(histograms[2].keys.empty());
  EXPECT_TRUE(histograms[3].keys == (Keys{0x40e0, 0xc0e0}));
}

TDBG_TEST(WhatCannotBeCapturedIsRefusedAndCounted) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const std::array<double, 2> values = {1, 2};
  const std::uint32_t complex_id =
      Define(*capture, "z", DType::kComplex128, {1});
  const CaptureItem item{
      .definition = complex_id, .data = values.data(), .strides = {}};
  capture->Statistics(0, {&item, 1}, {}, 1.0);  // Has no row,
  EXPECT_TRUE(capture->Values(0, item, {}));    // but values.
  const CaptureItem missing{
      .definition = complex_id, .data = nullptr, .strides = {}};
  EXPECT_FALSE(capture->Values(0, missing, {}));
  const CaptureItem unknown{
      .definition = 99, .data = values.data(), .strides = {}};
  capture->Statistics(0, {&unknown, 1}, {}, 1.0);
  EXPECT_FALSE(capture->UnitSummary(0, complex_id, item, {}, {}));
  EXPECT_FALSE(capture->CountHistogram(0, item, {}, 1.0));
  EXPECT_FALSE(capture->CountHistogram(0, unknown, {}, 1.0));
  EXPECT_TRUE(capture->EndStep({.step = 0}));
  EXPECT_OK(capture->Close(kPatience));
  auto reader = ReadOf(*capture);
  EXPECT_EQ(reader->steps().at(0).record.offered, 7U);
  EXPECT_EQ(reader->steps().at(0).record.dropped, 6U);
}

// Autograd calls from threads of its own.
TDBG_TEST(RowsFromManyThreadsAreAllThere) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const float value = 1;
  const CaptureItem item{
      .definition = Define(*capture, "a", DType::kFloat32, {}),
      .data = &value,
      .strides = {}};
  for (std::int64_t step = 0; step < 20; ++step) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) {
          capture->Statistics(step, {&item, 1}, {}, 1.0);
        }
        (void)capture->Values(step, item, {});
        (void)capture->CountHistogram(step, item, {}, 1.0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(capture->EndStep({.step = step}));
  }
  EXPECT_OK(capture->Close(kPatience));
  auto reader = ReadOf(*capture);
  EXPECT_EQ(reader->n_rows(), 20U * 200);
  EXPECT_EQ(reader->tensors().size(), 20U * 4);
  EXPECT_EQ(reader->histograms().size(), 20U * 4);
  EXPECT_EQ(reader->problems().size(), 0U);
}

TDBG_TEST(AForkedCopyIsInert) {
  const TemporaryDirectory run;
  auto capture = OpenIn(run);
  const float value = 1;
  const CaptureItem item{
      .definition = Define(*capture, "a", DType::kFloat32, {}),
      .data = &value,
      .strides = {}};
  capture->Statistics(0, {&item, 1}, {}, 1.0);
  const pid_t child = testing::Fork([&] {
    capture->Statistics(0, {&item, 1}, {}, 1.0);
    if (capture->Values(0, item, {}) || capture->EndStep({.step = 0})) return 1;
    if (capture->CountHistogram(0, item, {}, 1.0)) return 3;
    if (!capture->Close(kPatience).ok()) return 2;
    capture.reset();
    return 0;
  });
  EXPECT_EQ(testing::WaitFor(child, milliseconds(20000)).exit_code, 0);
  EXPECT_TRUE(capture->EndStep({.step = 0}));
  EXPECT_OK(capture->Close(kPatience));
  EXPECT_EQ(ReadOf(*capture)->n_rows(), 1U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
