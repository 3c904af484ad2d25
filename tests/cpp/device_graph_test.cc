// Statistics inside of CUDA graphs: launched while the graph is captured,
// delivered after each replay.

#include <vector>

#include "fake_devices.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Alive;
using testing::DeviceRun;
using testing::Framework;
using testing::FreshDriver;

// A graph as a framework makes and replays it.
class CapturedGraph {
 public:
  // Captures what `body` does on `stream`.
  template <typename Body>
  CapturedGraph(Framework* framework, DeviceStream stream, Body body)
      : framework_(framework) {
    framework->Enter();
    EXPECT_EQ(cuStreamBeginCapture_v2(Framework::StreamOf(stream), 0), 0);
    framework->Leave();
    body();
    framework->Enter();
    EXPECT_EQ(cuStreamEndCapture(Framework::StreamOf(stream), &graph_), 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&executable_, graph_, 0), 0);
    framework->Leave();
  }
  ~CapturedGraph() {
    framework_->Enter();
    EXPECT_EQ(cuGraphExecDestroy(executable_), 0);
    EXPECT_EQ(cuGraphDestroy(graph_), 0);
    framework_->Leave();
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void Replay(DeviceStream stream) {
    framework_->Enter();
    EXPECT_EQ(cuGraphLaunch(executable_, Framework::StreamOf(stream)), 0);
    framework_->Leave();
  }

 private:
  Framework* const framework_;
  cuda::Graph graph_ = nullptr;
  void* executable_ = nullptr;
};

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
                  DeviceAnswer::kLeft);
      EXPECT_TRUE(run.capture().CountHistogram(0, items[0], {}, {}, stream) ==
                  DeviceAnswer::kLeft);
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
      }
      if (i == 0) bytes = run.capture().state(0).device_bytes;
    }
    EXPECT_EQ(run.capture().state(0).device_bytes, bytes);
    EXPECT_OK(run.Close());
    EXPECT_EQ(run.Read()->n_rows(), 200U);
  }
  EXPECT_EQ(Alive(), "");
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
  EXPECT_TRUE(run.Take(1, id, data, stream));
  CapturedGraph graph(&framework, stream, [&] { run.EndStep(1); });
  graph.Replay(stream);
  EXPECT_EQ(framework.Synchronize(stream), 0);
  EXPECT_TRUE(run.capture().usable(0));
  EXPECT_TRUE(run.Take(2, id, data, stream));
  run.EndStep(2);
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  EXPECT_EQ(run.Read()->n_rows(), 1U);
  EXPECT_EQ(run.writer().counters().losses[8].records, 1U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
