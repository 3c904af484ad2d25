// What the device path does not take, what finds no room, and a device that
// never answers.

#include <array>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "device_rows_of.h"
#include "fake_devices.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::CapturedGraph;
using testing::DeviceRun;
using testing::ExpectSame;
using testing::Framework;
using testing::FreshDriver;
using testing::Numbers;
using testing::OnCpu;

TDBG_TEST(WhatItCannotTakeIsGivenBackAndWhatNobodyCanIsRefused) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.default_stream();
  const auto values = Numbers(1 << 12, 0);
  const auto* data = static_cast<const std::byte*>(framework.Tensor(values));
  const std::uint32_t five =
      run.Define("five", DType::kFloat32, {2, 2, 2, 2, 2});
  const std::uint32_t flat = run.Define("flat", DType::kFloat32, {8});
  const std::uint32_t complex = run.Define("c", DType::kComplex64, {8});
  const std::array<std::int64_t, 5> gaps = {4096, 1024, 256, 64, 16};
  const std::array<std::int64_t, 1> backwards = {-8};
  const std::vector<CaptureItem> items = {
      {.definition = five, .data = data, .strides = gaps},
      {.definition = flat, .data = data + 64, .strides = backwards},
      {.definition = complex, .data = data, .strides = {}},
      {.definition = flat, .data = data + 1, .strides = {}}};
  std::vector<std::size_t> left;
  run.capture().Statistics(1, items, {}, {}, stream, &left);
  EXPECT_TRUE(left == (std::vector<std::size_t>{0, 3}));
  EXPECT_TRUE(run.capture().Values(1, items[1], {}, stream) ==
              DeviceAnswer::kUnhandled);
  run.EndStep(1);
  EXPECT_OK(run.Close());
  EXPECT_EQ(run.writer().counters().dropped, 1U);
  auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 1U);
  std::vector<float> every_other;
  for (int i = 0; i < 8; ++i) {
    every_other.push_back(values[static_cast<std::size_t>(16 - 2 * i)]);
  }
  ExpectSame(rows[0].summary, OnCpu(every_other));
}

TDBG_TEST(ResultsThatFindNoRoomAreRefusedAndCounted) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
  void* data = framework.Tensor(Numbers(16, 2));
  EXPECT_TRUE(run.capture().usable(0));
  fakecuda_hold(1);
  std::int64_t n_steps = 0;
  while (run.capture().state(0).refused == 0) {
    EXPECT_TRUE(run.Take(n_steps, id, data, stream));
    run.EndStep(n_steps++);
  }
  EXPECT_TRUE(n_steps > 100);
  EXPECT_TRUE(run.capture().usable(0));
  fakecuda_hold(0);
  EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
  EXPECT_EQ(run.writer().counters().dropped, 1U);
  // There is room again.
  EXPECT_TRUE(run.Take(n_steps, id, data, stream));
  run.EndStep(n_steps);
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  EXPECT_EQ(run.Read()->n_rows(), static_cast<std::uint64_t>(n_steps));
}

TDBG_TEST(StepsThatNeverEndHoldFewBlocks) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
  void* data = framework.Tensor(Numbers(16, 2));
  constexpr std::int64_t kSteps = 300;  // More than there are blocks.
  for (std::int64_t step = 0; step < kSteps; ++step) {
    EXPECT_TRUE(run.Take(step, id, data, stream));
    if (step % 50 == 0) {
      EXPECT_EQ(framework.Synchronize(stream), 0);
      EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
    }
  }
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  EXPECT_EQ(run.capture().state(0).refused, 0U);
  EXPECT_EQ(run.Read()->n_rows(), std::uint64_t{kSteps});
}

TDBG_TEST(ALaunchThatFailsIsLeftAndEndsTheUseOfTheDevice) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
  void* data = framework.Tensor(Numbers(16, 2));
  EXPECT_TRUE(run.Take(1, id, data, stream));
  fakecuda_fail("cuLaunchKernel", 1, 719);
  EXPECT_FALSE(run.Take(1, id, data, stream, {.call = 1}));
  const DeviceState state = run.capture().state(0);
  EXPECT_FALSE(state.is_usable);
  EXPECT_EQ(state.failures, 1U);
  EXPECT_EQ(state.reason.find("cuLaunchKernel: "), 0U);
  const int n_launches = fakecuda_calls("cuLaunchKernel");
  EXPECT_FALSE(run.Take(1, id, data, stream, {.call = 2}));
  EXPECT_TRUE(
      run.capture().Values(1, {.definition = id, .data = data, .strides = {}},
                           {}, stream) != DeviceAnswer::kCaptured);
  EXPECT_EQ(fakecuda_calls("cuLaunchKernel"), n_launches);
  run.EndStep(1);
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  EXPECT_EQ(run.Read()->n_rows(), 1U);  // What was launched before.
}

TDBG_TEST(AFenceWaitsForWhatIsUnderWayOnly) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
  const CaptureItem item{.definition = id,
                         .data = framework.Tensor(Numbers(16, 2)),
                         .strides = {}};
  const auto waits_of_a_fence = [&] {
    const int before = fakecuda_calls("cuStreamWaitEvent");
    run.capture().FenceRaw(stream);
    return fakecuda_calls("cuStreamWaitEvent") - before;
  };
  EXPECT_TRUE(run.capture().usable(0));
  EXPECT_EQ(waits_of_a_fence(), 0);
  fakecuda_hold(1);
  EXPECT_TRUE(run.capture().Values(1, item, {}, stream) ==
              DeviceAnswer::kCaptured);
  EXPECT_EQ(waits_of_a_fence(), 1);
  {
    // A graph cannot wait for what is outside of it.
    const CapturedGraph graph(&framework, stream,
                              [&] { EXPECT_EQ(waits_of_a_fence(), 0); });
  }
  fakecuda_hold(0);
  run.EndStep(1);
  EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
  // The writer may have the values a moment before the engine knows of it.
  const auto deadline = std::chrono::steady_clock::now() + DeviceRun::kPatience;
  while (waits_of_a_fence() != 0 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(waits_of_a_fence(), 0);
}

// The same handle is another stream in each thread.
TDBG_TEST(StreamsOfThreadsAreNotMistakenForOneAnother) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream own{.device = 0, .stream = reinterpret_cast<void*>(2)};
  constexpr std::size_t kThreads = 3;
  constexpr std::size_t kBytes = 200000;
  fakecuda_delay(500);
  EXPECT_TRUE(run.capture().usable(0));
  for (std::int64_t step = 0; step < 5; ++step) {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < kThreads; ++t) {
      const auto value = static_cast<unsigned char>(10 * step + t + 1);
      void* data = framework.Allocate(kBytes);
      const std::uint32_t id =
          run.Define("t" + std::to_string(value), DType::kUInt8, {kBytes});
      threads.emplace_back([&, value, data, id, step] {
        framework.Fill(data, value, kBytes, own);
        EXPECT_TRUE(run.Take(step, id, data, own));
      });
    }
    for (std::thread& thread : threads) thread.join();
    run.EndStep(step);  // By a thread that launched nothing.
  }
  EXPECT_OK(run.Close());
  auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 5 * kThreads);
  for (const auto& row : rows) {
    const std::string name = reader->definitions().Find(row.definition)->name;
    EXPECT_EQ("t" + std::to_string(row.summary.min.u64), name);
    EXPECT_EQ("t" + std::to_string(row.summary.max.u64), name);
  }
}

TDBG_TEST(ADeviceThatHangsCostsCloseItsPatience) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  {
    DeviceRun run(driver);
    const DeviceStream stream = framework.NewStream();
    const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
    void* data = framework.Tensor(Numbers(16, 2));
    EXPECT_TRUE(run.capture().usable(0));
    fakecuda_hold(1);
    EXPECT_TRUE(run.Take(1, id, data, stream));
    EXPECT_TRUE(
        run.capture().Values(1, {.definition = id, .data = data, .strides = {}},
                             {}, stream) == DeviceAnswer::kCaptured);
    run.EndStep(1);
    EXPECT_OK(run.Close());
    run.ExpectBalance();
    EXPECT_EQ(run.writer().counters().losses[8].records, 2U);
    EXPECT_EQ(run.Read()->steps().size(), 1U);
  }
  // What it may still write to was not freed.
  EXPECT_NE(fakecuda_live("pinned"), 0);
  EXPECT_EQ(fakecuda_live("registered"), 1);
  fakecuda_hold(0);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
