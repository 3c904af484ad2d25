// Statistics inside of CUDA graphs: launched while the graph is captured,
// delivered after each replay.

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "fake_devices.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Alive;
using testing::CapturedGraph;
using testing::DeviceRun;
using testing::Framework;
using testing::FreshDriver;

TDBG_TEST(RowsOfAGraphAreDeliveredAfterEachReplay) {
  const cuda::Driver driver = FreshDriver();
  {
    Framework framework(driver);
    DeviceRun run(driver);
    const DeviceStream stream = framework.NewStream();
    constexpr std::size_t kTensors = 70;  // More than travel with a launch.
    std::vector<CaptureItem> items;
    for (std::size_t i = 0; i < kTensors; ++i) {
      items.push_back({.definition = run.Define("t" + std::to_string(i),
                                                DType::kUInt8, {32}),
                       .data = framework.Allocate(32),
                       .strides = {}});
    }
    const auto data = [&](std::size_t i) {
      return const_cast<void*>(items[i].data);
    };
    // The first use of the device falls into the capture, whose mode forbids
    // what others do carelessly.
    std::uint64_t id = 0;
    CapturedGraph graph(&framework, stream, [&] {
      EXPECT_TRUE(run.capture().usable(0));
      id = run.capture().CaptureId(stream);
      std::vector<std::size_t> left;
      run.capture().Statistics(0, items, {}, {}, stream, &left);
      EXPECT_TRUE(left.empty());
      EXPECT_TRUE(run.capture().Repeat(0, items[0].definition, {.call = 1},
                                       items[3].definition, {}, stream));
      EXPECT_TRUE(run.capture().Values(0, items[0], {}, stream) ==
                  DeviceAnswer::kUnhandled);
      EXPECT_TRUE(run.capture().CountHistogram(0, items[0], {}, {}, stream) ==
                  DeviceAnswer::kUnhandled);
      run.capture().FenceRaw(stream);
      run.EndStep(0);
    });
    EXPECT_NE(id, 0U);
    EXPECT_EQ(run.capture().CaptureId(stream), 0U);
    for (std::int64_t step = 1; step <= 4; ++step) {
      for (std::size_t i = 0; i < kTensors; ++i) {
        framework.Fill(data(i), static_cast<unsigned char>(10 * step), 32,
                       stream);
      }
      graph.Replay(stream);
      EXPECT_TRUE(run.capture().Replayed(id, step, stream));
      // What is launched beside it goes with the step as always.
      EXPECT_TRUE(run.Take(step, items[1].definition, items[1].data, stream,
                           {.call = 7}));
      run.EndStep(step);
    }
    EXPECT_FALSE(run.capture().Replayed(id + 1, 5, stream));
    EXPECT_OK(run.Close());
    run.ExpectBalance();
    auto reader = run.Read();
    const auto rows = reader->Rows(0, reader->n_rows());
    EXPECT_EQ(rows.size(), 4 * (kTensors + 2));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t step = 1 + i / (kTensors + 2);
      EXPECT_EQ(rows[i].step, static_cast<std::int64_t>(step));
      EXPECT_EQ(rows[i].summary.max.u64, 10 * step);
      EXPECT_EQ(rows[i].summary.min.u64, 10 * step);
    }
    EXPECT_EQ(run.capture().state(0).failures, 0U);
    // The graph may run on after the capture is gone.
  }
  EXPECT_EQ(fakecuda_live("objects"), 0);
}

TDBG_TEST(WhatAGraphHeldIsUsedAgainWhenItIsGone) {
  const cuda::Driver driver = FreshDriver();
  {
    Framework framework(driver);
    DeviceRun run(driver);
    const DeviceStream stream = framework.NewStream();
    const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
    void* data = framework.Allocate(32);
    std::uint64_t bytes = 0;
    for (int i = 0; i < 200; ++i) {
      std::uint64_t capture_id = 0;
      {
        CapturedGraph graph(&framework, stream, [&] {
          EXPECT_TRUE(run.Take(0, id, data, stream));
          capture_id = run.capture().CaptureId(stream);
        });
        graph.Replay(stream);
        EXPECT_TRUE(run.capture().Replayed(capture_id, i, stream));
        run.EndStep(i);
        EXPECT_EQ(framework.Synchronize(stream), 0);
      }
      if (i == 0) bytes = run.capture().state(0).device_bytes;
    }
    EXPECT_EQ(run.capture().state(0).device_bytes, bytes);
    EXPECT_OK(run.Close());
    EXPECT_EQ(run.Read()->n_rows(), 200U);
  }
  EXPECT_EQ(Alive(), "");
}

// What is copied from its block is still to be copied when the next graph runs,
// on another stream.
TDBG_TEST(WhatAGraphHeldIsNotUsedWhileItsLastCopyIsUnderWay) {
  const cuda::Driver driver = FreshDriver();
  {
    Framework framework(driver);
    DeviceRun run(driver);
    const DeviceStream streams[] = {framework.NewStream(),
                                    framework.NewStream()};
    const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
    void* data[] = {framework.Allocate(32), framework.Allocate(32)};
    const auto replay_once = [&](int i) {
      const DeviceStream stream = streams[i];
      framework.Fill(data[i], static_cast<unsigned char>(10 + i), 32, stream);
      std::uint64_t capture_id = 0;
      CapturedGraph graph(&framework, stream, [&] {
        EXPECT_TRUE(run.Take(0, id, data[i], stream));
        capture_id = run.capture().CaptureId(stream);
      });
      graph.Replay(stream);
      EXPECT_TRUE(run.capture().Replayed(capture_id, i, stream));
      run.EndStep(i);
    };
    EXPECT_TRUE(run.capture().usable(0));
    fakecuda_hold_stream(streams[0].stream, 1);
    replay_once(0);
    replay_once(1);
    EXPECT_EQ(framework.Synchronize(streams[1]), 0);
    fakecuda_hold_stream(streams[0].stream, 0);
    EXPECT_OK(run.Close());
    const auto reader = run.Read();
    const auto rows = reader->Rows(0, reader->n_rows());
    EXPECT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].summary.max.u64, 10U);
    EXPECT_EQ(rows[1].summary.max.u64, 11U);
  }
  EXPECT_EQ(Alive(), "");
}

// Each replay is on another stream; the copy of the first one is slow.
TDBG_TEST(CopiesOfAllStreamsOfAGraphAreWaitedFor) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream slow = framework.NewStream();
  const DeviceStream quick = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
  void* data = framework.Allocate(32);
  framework.Fill(data, 1, 32, quick);
  std::uint64_t capture_id = 0;
  {
    CapturedGraph graph(&framework, quick, [&] {
      EXPECT_TRUE(run.Take(0, id, data, quick));
      capture_id = run.capture().CaptureId(quick);
    });
    fakecuda_hold_stream(slow.stream, 1);
    graph.Replay(slow);
    EXPECT_TRUE(run.capture().Replayed(capture_id, 0, slow));
    graph.Replay(quick);
    EXPECT_TRUE(run.capture().Replayed(capture_id, 1, quick));
  }
  const std::uint64_t bytes = run.capture().state(0).device_bytes;
  // Enough for the quick one alone.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const CapturedGraph next(&framework, quick,
                           [&] { EXPECT_TRUE(run.Take(2, id, data, quick)); });
  EXPECT_TRUE(run.capture().state(0).device_bytes > bytes);
  fakecuda_hold_stream(slow.stream, 0);
  EXPECT_OK(run.Close());
}

TDBG_TEST(AGraphThatOutlivesTheCaptureRunsOn) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  const DeviceStream stream = framework.NewStream();
  auto run = std::make_unique<DeviceRun>(driver);
  const std::uint32_t id = run->Define("a", DType::kUInt8, {32});
  void* data = framework.Allocate(32);
  CapturedGraph graph(&framework, stream,
                      [&] { EXPECT_TRUE(run->Take(0, id, data, stream)); });
  EXPECT_OK(run->Close());
  run.reset();
  graph.Replay(stream);  // Into memory that must still be there.
  EXPECT_EQ(framework.Synchronize(stream), 0);
}

// A step that began on a stream which is being captured when it ends.
TDBG_TEST(ACaptureIsNotTouchedByAStepThatEndsInIt) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
  void* data = framework.Allocate(32);
  constexpr std::int64_t kTimes = 150;  // More than there are blocks.
  for (std::int64_t i = 0; i < kTimes; ++i) {
    EXPECT_TRUE(run.Take(2 * i, id, data, stream));
    CapturedGraph graph(&framework, stream, [&] { run.EndStep(2 * i); });
    graph.Replay(stream);
    EXPECT_EQ(framework.Synchronize(stream), 0);
    EXPECT_TRUE(run.capture().usable(0));
    EXPECT_TRUE(run.Take(2 * i + 1, id, data, stream));
    run.EndStep(2 * i + 1);
    EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
  }
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  EXPECT_EQ(run.capture().state(0).refused, 0U);
  EXPECT_EQ(run.Read()->n_rows(), std::uint64_t{kTimes});
  EXPECT_EQ(run.writer().counters().losses[8].records, std::uint64_t{kTimes});
}

// They lie where the step's launches still write.
TDBG_TEST(RowsThatAreLostToACaptureSpoilNoOthers) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream slow = framework.NewStream();
  const DeviceStream quick = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
  void* data[] = {framework.Allocate(32), framework.Allocate(32)};
  EXPECT_TRUE(run.capture().usable(0));
  fakecuda_hold_stream(slow.stream, 1);
  framework.Fill(data[0], 1, 32, slow);
  EXPECT_TRUE(run.Take(0, id, data[0], slow));
  const CapturedGraph graph(&framework, slow, [&] { run.EndStep(0); });
  framework.Fill(data[1], 2, 32, quick);
  EXPECT_TRUE(run.Take(1, id, data[1], quick));
  EXPECT_EQ(framework.Synchronize(quick), 0);
  fakecuda_hold_stream(slow.stream, 0);
  run.EndStep(1);
  EXPECT_OK(run.Close());
  const auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].step, 1);
  EXPECT_EQ(rows[0].summary.max.u64, 2U);
}

// Its launches never cleared what they share.
TDBG_TEST(AGraphThatNeverRanSpoilsNoOther) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {100000});
  void* data = framework.Allocate(100000);
  framework.Fill(data, 3, 100000, stream);
  {
    const CapturedGraph never(&framework, stream, [&] {
      EXPECT_TRUE(run.Take(0, id, data, stream));
    });
  }
  const std::uint64_t n_bytes = run.capture().state(0).device_bytes;
  std::uint64_t graph_id = 0;
  CapturedGraph graph(&framework, stream, [&] {
    EXPECT_TRUE(run.Take(0, id, data, stream));
    graph_id = run.capture().CaptureId(stream);
  });
  EXPECT_EQ(run.capture().state(0).device_bytes, n_bytes);
  graph.Replay(stream);
  EXPECT_TRUE(run.capture().Replayed(graph_id, 1, stream));
  run.EndStep(1);
  EXPECT_OK(run.Close());
  const auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].summary.min.u64, 3U);
  EXPECT_EQ(rows[0].summary.max.u64, 3U);
}

TDBG_TEST(AGraphOfTwoStreamsIsWhole) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream streams[] = {framework.NewStream(), framework.NewStream()};
  const std::uint32_t id = run.Define("a", DType::kUInt8, {100000});
  void* data = framework.Allocate(100000);
  cuda::EventHandle events[2] = {};
  framework.Enter();
  for (auto& event : events) EXPECT_EQ(driver.event_create(&event, 2), 0);
  framework.Leave();
  const auto let_wait = [&](int from, int to) {
    framework.Enter();
    EXPECT_EQ(
        driver.event_record(events[from], Framework::StreamOf(streams[from])),
        0);
    EXPECT_EQ(driver.stream_wait_event(Framework::StreamOf(streams[to]),
                                       events[from], 0),
              0);
    framework.Leave();
  };
  std::uint64_t graph_id = 0;
  {
    CapturedGraph graph(&framework, streams[0], [&] {
      let_wait(0, 1);
      graph_id = run.capture().CaptureId(streams[1]);
      EXPECT_EQ(run.capture().CaptureId(streams[0]), graph_id);
      for (std::uint16_t i = 0; i < 6; ++i) {
        EXPECT_TRUE(run.Take(0, id, data, streams[i % 2], {.call = i}));
      }
      run.EndStep(0);
      let_wait(1, 0);
    });
    for (std::int64_t step = 1; step < 4; ++step) {
      framework.Fill(data, static_cast<unsigned char>(step), 100000,
                     streams[0]);
      graph.Replay(streams[0]);
      EXPECT_TRUE(run.capture().Replayed(graph_id, step, streams[0]));
      run.EndStep(step);
    }
    EXPECT_OK(run.Close());
  }
  framework.Enter();
  for (auto& event : events) EXPECT_EQ(driver.event_destroy(event), 0);
  framework.Leave();
  const auto reader = run.Read();
  const auto rows = reader->Rows(0, reader->n_rows());
  EXPECT_EQ(rows.size(), 18U);
  for (const auto& row : rows) {
    EXPECT_EQ(row.summary.min.u64, static_cast<std::uint64_t>(row.step));
    EXPECT_EQ(row.summary.max.u64, static_cast<std::uint64_t>(row.step));
  }
}

TDBG_TEST(GraphsForWhichNoMemoryIsLeftAreLeft) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream stream = framework.NewStream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
  void* data = framework.Allocate(32);
  std::vector<std::unique_ptr<CapturedGraph>> graphs;
  int n_left = 0;
  for (int i = 0; i < 120; ++i) {
    graphs.push_back(std::make_unique<CapturedGraph>(&framework, stream, [&] {
      const bool is_taken = run.Take(0, id, data, stream);
      n_left += is_taken ? 0 : 1;
      EXPECT_EQ(run.capture().Repeat(0, id, {.call = 1}, id, {}, stream),
                is_taken);
    }));
  }
  EXPECT_TRUE(n_left > 5);
  EXPECT_TRUE(run.capture().usable(0));
  EXPECT_TRUE(run.capture().state(0).device_bytes <= 64ULL << 20);
  graphs.clear();
  CapturedGraph graph(&framework, stream,
                      [&] { EXPECT_TRUE(run.Take(0, id, data, stream)); });
}

// It waits for all other streams of its kind, which it cannot while they are
// captured.
TDBG_TEST(TheDefaultStreamIsLeftWhileAStreamThatItWaitsForIsCaptured) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  DeviceRun run(driver);
  const DeviceStream blocking = framework.NewStream(0);
  const DeviceStream plain = framework.default_stream();
  const std::uint32_t id = run.Define("a", DType::kUInt8, {32});
  void* data = framework.Allocate(32);
  EXPECT_TRUE(run.Take(1, id, data, plain));
  const CapturedGraph graph(&framework, blocking, [&] {
    EXPECT_FALSE(run.Take(1, id, data, plain));
    EXPECT_TRUE(
        run.capture().Values(1, {.definition = id, .data = data, .strides = {}},
                             {}, plain) != DeviceAnswer::kCaptured);
    run.capture().FenceRaw(plain);
  });
  run.EndStep(1);
  EXPECT_TRUE(run.capture().usable(0));
  EXPECT_OK(run.Close());
  EXPECT_EQ(run.Read()->n_rows(), 1U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
