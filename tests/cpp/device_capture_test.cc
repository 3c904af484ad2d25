// What a device delivers is what the CPU would have written, in its place, and
// nobody waits for it.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device_rows_of.h"
#include "fake_devices.h"
#include "testing.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using testing::Alive;
using testing::DeviceRun;
using testing::ExpectSame;
using testing::Framework;
using testing::FreshDriver;
using testing::Numbers;
using testing::OnCpu;

TDBG_TEST(RowsAreThoseOfTheCpuBeforeTheEndOfTheirStep) {
  const cuda::Driver driver = FreshDriver();
  {
    Framework framework(driver);
    DeviceRun run(driver);
    EXPECT_TRUE(run.capture().usable(0));
    const DeviceStream stream = framework.NewStream();
    const auto a = Numbers(1000, 1);
    auto b = Numbers(50001, -3);
    b[70] = NAN;
    const std::uint32_t ids[] = {run.Define("a", DType::kFloat32, {1000}),
                                 run.Define("b", DType::kFloat32, {50001}),
                                 run.Define("none", DType::kFloat32, {0})};
    const std::vector<CaptureItem> items = {
        {.definition = ids[0], .data = framework.Tensor(a), .strides = {}},
        {.definition = ids[2], .data = nullptr, .strides = {}},
        {.definition = ids[1], .data = framework.Tensor(b), .strides = {}}};
    std::vector<std::size_t> left;
    run.capture().Statistics(7, items, {.call = 1, .micro_batch = 2}, {},
                             stream, &left);
    EXPECT_TRUE(left.empty());
    EXPECT_TRUE(
        run.Take(7, ids[0], items[0].data, stream, {}, {.factor = -0.5}));
    // The gradient scaler's scale lies on the device.
    const void* divisor = framework.Tensor<float>({4.0F});
    EXPECT_TRUE(run.Take(7, ids[0], items[0].data, stream, {.call = 3},
                         {.factor = 1.0, .divisor = divisor}));
    EXPECT_TRUE(run.capture().Repeat(7, ids[1], {.call = 9}, ids[1],
                                     {.call = 1, .micro_batch = 2}, stream));
    EXPECT_FALSE(
        run.capture().Repeat(7, ids[1], {}, ids[1], {.call = 5}, stream));
    run.EndStep(7);
    EXPECT_FALSE(run.capture().Repeat(7, ids[1], {}, ids[1],
                                      {.call = 1, .micro_batch = 2}, stream));
    EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
    auto reader = run.Read();
    const auto rows = reader->Rows(0, reader->n_rows());
    EXPECT_EQ(rows.size(), 6U);
    ExpectSame(rows[0].summary, OnCpu(a));
    EXPECT_EQ(rows[0].call, 1U);
    EXPECT_EQ(rows[0].micro_batch, 2U);
    EXPECT_EQ(rows[0].flags, 0U);
    EXPECT_EQ(rows[1].definition, ids[2]);
    EXPECT_EQ(rows[1].summary.count, 0U);
    EXPECT_EQ(rows[1].summary.min.f64, INFINITY);
    ExpectSame(rows[2].summary, OnCpu(b));
    ExpectSame(rows[3].summary, OnCpu(a, -0.5));
    EXPECT_EQ(rows[3].flags, kRescaled);
    ExpectSame(rows[4].summary, OnCpu(a, 0.25));
    EXPECT_EQ(rows[4].flags, kRescaled);
    ExpectSame(rows[5].summary, OnCpu(b));
    EXPECT_EQ(rows[5].call, 9U);
    EXPECT_EQ(reader->steps().size(), 1U);
    EXPECT_OK(run.Close());
    run.ExpectBalance();
    const DeviceState state = run.capture().state(0);
    EXPECT_EQ(state.rows, 4U);
    EXPECT_EQ(state.launches, 3U);
    EXPECT_EQ(state.failures, 0U);
    EXPECT_TRUE(state.device_bytes <= 64ULL << 20);
  }
  EXPECT_EQ(Alive(), "");
}

TDBG_TEST(TablesThatDidNotChangeAreNotUploadedAgain) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  std::vector<CaptureItem> items;
  constexpr std::size_t kTensors = 1100;  // Of more than one block.
  for (std::size_t i = 0; i < kTensors; ++i) {
    items.push_back(
        {.definition =
             run.Define("t" + std::to_string(i), DType::kFloat32, {5}),
         .data = framework.Tensor(Numbers(5, static_cast<float>(i))),
         .strides = {}});
  }
  std::vector<std::size_t> left;
  for (std::int64_t step = 0; step < 3; ++step) {
    run.capture().Statistics(step, items, {}, {}, stream, &left);
    run.EndStep(step);
  }
  EXPECT_EQ(run.capture().state(0).uploads, 2U);
  std::swap(items[0], items[1]);
  run.capture().Statistics(3, items, {}, {}, stream, &left);
  run.EndStep(3);
  EXPECT_EQ(run.capture().state(0).uploads, 3U);
  EXPECT_TRUE(left.empty());
  EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
  auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 4 * kTensors);
  for (std::size_t i = 0; i < kTensors; ++i) {
    EXPECT_EQ(rows[i].definition, items[i < 2 ? 1 - i : i].definition);
    ExpectSame(rows[2 * kTensors + i].summary,
               OnCpu(Numbers(5, static_cast<float>(i))));
  }
}

TDBG_TEST(NobodyWaitsForADeviceThatIsSlow) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
  const auto values = Numbers(16, 2);
  void* data = framework.Tensor(values);
  EXPECT_TRUE(run.capture().usable(0));
  fakecuda_hold(1);
  for (std::int64_t step = 0; step < 5; ++step) {
    EXPECT_TRUE(run.Take(step, id, data, stream));
    EXPECT_TRUE(run.capture().Values(
                    step, {.definition = id, .data = data, .strides = {}}, {},
                    stream) == DeviceAnswer::kCaptured);
    run.capture().FenceRaw(stream);
    run.EndStep(step);
  }
  EXPECT_TRUE(run.writer().Flush(false, milliseconds(10)).code() ==
              StatusCode::kDeadlineExceeded);
  EXPECT_EQ(run.Read()->steps().size(), 0U);
  fakecuda_hold(0);
  EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
  auto reader = run.Read();
  EXPECT_EQ(reader->steps().size(), 5U);
  EXPECT_EQ(reader->n_rows(), 5U);
  const auto stored = reader->ReadTensor(4);
  EXPECT_OK(stored);
  EXPECT_EQ(std::memcmp(stored.value().bytes.data(), values.data(), 64), 0);
  EXPECT_EQ(run.capture().state(0).copied_bytes, 5U * 64);
}

TDBG_TEST(MemoryThatIsReusedInTheOrderOfTheStreamIsReadBefore) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {4096});
  void* data = framework.Allocate(4096);
  fakecuda_delay(50);
  constexpr int kSteps = 40;
  for (int step = 0; step < kSteps; ++step) {
    // As a caching allocator does: the next tensor gets the memory of the last.
    framework.Fill(data, static_cast<unsigned char>(step + 1), 4096, stream);
    EXPECT_TRUE(run.Take(step, id, data, stream));
    EXPECT_TRUE(run.capture().Values(
                    step, {.definition = id, .data = data, .strides = {}}, {},
                    stream) == DeviceAnswer::kCaptured);
    run.EndStep(step);
    run.capture().FenceRaw(stream);
  }
  EXPECT_OK(run.Close());
  auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), std::size_t{kSteps});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].summary.min.u64, i + 1);
    EXPECT_EQ(rows[i].summary.max.u64, i + 1);
    const auto stored = reader->ReadTensor(i);
    EXPECT_OK(stored);
    EXPECT_TRUE(std::all_of(
        stored.value().bytes.begin(), stored.value().bytes.end(),
        [&](std::byte b) { return b == static_cast<std::byte>(i + 1); }));
  }
}

TDBG_TEST(StreamsAndDevicesAndThreadsMeetInOneStep) {
  const cuda::Driver driver = FreshDriver(2);
  {
    Framework first(driver, 0);
    Framework second(driver, 1);
    DeviceRun run(driver);
    constexpr std::size_t kThreads = 4;
    constexpr std::size_t kStreams = 6;  // Each: more than have scratch.
    constexpr std::size_t kRounds = 5;
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        Framework& framework = t % 2 == 0 ? first : second;
        for (std::size_t s = 0; s < kStreams; ++s) {
          const std::uint32_t id =
              run.Define(std::to_string(t) + "." + std::to_string(s),
                         DType::kFloat32, {30000});
          static Mutex mutex;
          DeviceStream stream;
          void* data = nullptr;
          {
            MutexLock lock(mutex);
            stream = framework.NewStream();
            data = framework.Tensor(
                Numbers(30000, static_cast<float>(10 * t + s)));
          }
          for (std::size_t i = 0; i < kRounds; ++i) {
            EXPECT_TRUE(run.Take(1, id, data, stream,
                                 {.call = static_cast<std::uint16_t>(i)}));
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    run.EndStep(1);
    // Close has less patience than kernels in an emulator may need.
    EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
    EXPECT_OK(run.Close());
    auto reader = run.Read();
    const auto rows = reader->Rows(0, reader->n_rows());
    EXPECT_EQ(rows.size(), kThreads * kStreams * kRounds);
    for (const auto& row : rows) {
      const std::string name = reader->definitions().Find(row.definition)->name;
      const float first_number = 10.0F * static_cast<float>(name[0] - '0') +
                                 static_cast<float>(name[2] - '0');
      ExpectSame(row.summary, OnCpu(Numbers(30000, first_number)));
    }
    EXPECT_EQ(run.capture().state(0).failures, 0U);
    EXPECT_EQ(run.capture().state(1).failures, 0U);
    EXPECT_EQ(run.capture().state(0).rows + run.capture().state(1).rows,
              rows.size());
  }
  EXPECT_EQ(Alive(), "");
}

TDBG_TEST(UnitsAndHistogramsAreThoseOfTheCpu) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("x", DType::kFloat32, {2, 3, 4});
  const std::uint32_t units =
      run.Define("unit/x", DType::kUInt64, {3, 3}, TensorRole::kUnitSummary);
  const std::uint32_t two_rows =
      run.Define("unit/rows", DType::kUInt64, {3, 2}, TensorRole::kUnitSummary);
  const std::uint32_t none = run.Define("none", DType::kFloat32, {0});
  const auto values = Numbers(24, 0);
  const CaptureItem item{
      .definition = id, .data = framework.Tensor(values), .strides = {}};
  EXPECT_TRUE(run.capture().usable(0));
  fakecuda_hold_stream(stream.stream, 1);
  EXPECT_TRUE(run.capture().UnitSummary(1, units, item, {.call = 2},
                                        {.low = -3.0, .high = 4.0},
                                        stream) == DeviceAnswer::kCaptured);
  EXPECT_TRUE(run.capture().UnitSummary(1, two_rows, item, {},
                                        {.rows_are_units = true},
                                        stream) == DeviceAnswer::kCaptured);
  EXPECT_TRUE(run.capture().UnitSummary(1, id, item, {}, {}, stream) ==
              DeviceAnswer::kRefused);
  EXPECT_TRUE(run.capture().CountHistogram(1, item, {.call = 3}, {.factor = 2},
                                           stream) == DeviceAnswer::kCaptured);
  EXPECT_TRUE(run.capture().CountHistogram(
                  1, {.definition = none, .data = nullptr, .strides = {}}, {},
                  {}, stream) == DeviceAnswer::kCaptured);
  run.EndStep(1);
  // Whoever fetched them too early would do it now.
  std::this_thread::sleep_for(milliseconds(20));
  fakecuda_hold_stream(stream.stream, 0);
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  auto reader = run.Read();
  EXPECT_EQ(reader->tensors().size(), 2U);
  EXPECT_EQ(reader->tensors()[0].call, 2U);
  // Of the rows of an embedding what is not zero counts.
  const auto by_row = reader->ReadTensor(1);
  EXPECT_OK(by_row);
  const std::uint64_t n_zero =
      static_cast<std::uint64_t>(std::ranges::count(values, 0.0F));
  std::array<std::uint64_t, 6> rows{};
  EXPECT_EQ(by_row.value().bytes.size(), sizeof(rows));
  std::memcpy(rows.data(), by_row.value().bytes.data(), sizeof(rows));
  EXPECT_EQ(rows[0] + rows[1], 24U - n_zero);
  EXPECT_EQ(rows[2] + rows[3], 0U);
  EXPECT_EQ(rows[4], 12U);
  const auto stored = reader->ReadTensor(0);
  EXPECT_OK(stored);
  std::array<std::uint64_t, 9> counts{};
  EXPECT_EQ(stored.value().bytes.size(), sizeof(counts));
  std::memcpy(counts.data(), stored.value().bytes.data(), sizeof(counts));
  for (std::size_t unit = 0; unit < 3; ++unit) {
    std::uint64_t active = 0;
    std::uint64_t out_of_range = 0;
    for (std::size_t i = 0; i < 24; ++i) {
      if (i / 4 % 3 != unit) continue;
      active += values[i] > 0 ? 1U : 0U;
      out_of_range += values[i] < -3 || values[i] > 4 ? 1U : 0U;
    }
    EXPECT_EQ(counts[unit], active);
    EXPECT_EQ(counts[3 + unit], out_of_range);
    EXPECT_EQ(counts[6 + unit], 8U);
  }
  EXPECT_EQ(reader->histograms().size(), 2U);
  const auto read = reader->ReadHistogram(0);
  EXPECT_OK(read);
  const Histogram& histogram = read.value();
  EXPECT_EQ(histogram.call, 3U);
  std::uint64_t n = 0;
  for (const std::uint64_t count : histogram.counts) n += count;
  EXPECT_EQ(n, 24U);
  EXPECT_TRUE(std::is_sorted(histogram.keys.begin(), histogram.keys.end()));
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
