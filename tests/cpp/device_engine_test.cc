// What is under way keeps what it is written to, whoever loses interest in it.

#include "capture/device_engine.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "fake_devices.h"
#include "reducers/cuda/entries.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Alive;
using testing::CapturedGraph;
using testing::Framework;
using testing::FreshDriver;

constexpr std::uint64_t kBytes = 32;
constexpr std::array<std::int64_t, 1> kShape = {kBytes};

// An engine without a writer: the records are the test's.
struct Scene {
  const cuda::Driver driver = FreshDriver(1);
  Framework framework{driver};
  std::shared_ptr<DeviceEngine> engine =
      DeviceEngine::Open(&driver, 0, std::make_shared<StagingLock>());

  // Bytes that have this value when the stream comes to it.
  const void* Tensor(unsigned char value, DeviceStream stream) {
    void* data = framework.Allocate(kBytes);
    framework.Fill(data, value, kBytes, stream);
    return data;
  }
  void Take(std::int64_t step, const void* data, DeviceStream stream,
            DeviceEngine::ReadyList* ready) {
    TensorView view;
    view.data = data;
    view.dtype = DType::kUInt8;
    view.item_size = 1;
    view.shape = kShape;
    DeviceEngine::Launch launch;
    EXPECT_TRUE(cuda::ToTensorEntry(view, 1.0, nullptr, &launch.entry));
    launch.target.dtype = DType::kUInt8;
    launch.target.count = kBytes;
    EXPECT_EQ(engine->AddRows(step, {&launch, 1}, stream.stream, ready).n_taken,
              1U);
  }
  // A graph of one row, captured and replayed on the stream.
  DeviceEngine::Ready Replay(const void* data, DeviceStream stream) {
    DeviceEngine::ReadyList ready;
    std::uint64_t id = 0;
    CapturedGraph graph(&framework, stream, [&] {
      Take(0, data, stream, &ready);
      id = engine->CaptureId(stream.stream);
    });
    graph.Replay(stream);
    EXPECT_TRUE(engine->Replayed(id, 0, stream.stream, &ready));
    EXPECT_EQ(ready.size(), 1U);
    return std::move(ready.front());
  }
};

// The greatest element of the only row.
std::uint64_t GreatestOf(DeviceEngine::Ready* ready) {
  EXPECT_EQ(ready->n_rows, 1U);
  std::array<std::byte, sizeof(Row)> record{};
  std::span<std::byte> bytes = record;
  EXPECT_TRUE(ready->completion->Poll(&bytes) == Completion::Answer::kDone);
  Row row;
  std::memcpy(&row, record.data(), sizeof(row));
  return row.summary.max.u64;
}

TDBG_TEST(ResultsThatNobodyWantsDoNotFallIntoThoseOfOthers) {
  {
    Scene scene;
    const DeviceStream slow = scene.framework.NewStream();
    const DeviceStream quick = scene.framework.NewStream();
    fakecuda_hold_stream(slow.stream, 1);
    {
      // As of a writer that drops the record.
      const auto unwanted = scene.Replay(scene.Tensor(1, slow), slow);
      std::span<std::byte> none;
      EXPECT_TRUE(unwanted.completion->Poll(&none) ==
                  Completion::Answer::kPending);
    }
    auto wanted = scene.Replay(scene.Tensor(2, quick), quick);
    EXPECT_EQ(scene.framework.Synchronize(quick), 0);
    fakecuda_hold_stream(slow.stream, 0);
    EXPECT_EQ(scene.framework.Synchronize(slow), 0);
    EXPECT_EQ(GreatestOf(&wanted), 2U);
    // Now it is over, and its room is free again.
    auto next = scene.Replay(scene.Tensor(3, slow), slow);
    EXPECT_EQ(scene.framework.Synchronize(slow), 0);
    EXPECT_EQ(GreatestOf(&next), 3U);
  }
  EXPECT_EQ(Alive(), "");
}

TDBG_TEST(AnEngineThatGoesWaitsForWhatIsUnderWay) {
  {
    Scene scene;
    const DeviceStream stream = scene.framework.NewStream();
    DeviceEngine::ReadyList ready;
    fakecuda_delay(10000);
    scene.Take(1, scene.Tensor(1, stream), stream, &ready);
    scene.engine->EndStep(1, &ready);
    for (int i = 0; i < 8; ++i) {
      scene.Take(2, scene.Tensor(1, stream), stream, &ready);
    }
    EXPECT_EQ(ready.size(), 1U);
    ready.clear();
    const int n_freed = fakecuda_calls("cuMemFree_v2");
    scene.engine.reset();
    EXPECT_TRUE(fakecuda_calls("cuMemFree_v2") > n_freed);
    // Nothing was left for those who free to wait for.
    EXPECT_EQ(fakecuda_drained(), 0);
  }
  EXPECT_EQ(Alive(), "");
}

// Longer than its patience: it leaves everything where it is.
void ExpectNothingFreedUnderACopy(bool is_marked) {
  Scene scene;
  const DeviceStream stream = scene.framework.NewStream();
  fakecuda_hold_stream(stream.stream, 1);
  // That behind the copy, and that behind all copies of the graph.
  if (!is_marked) fakecuda_fail("cuEventRecord", 2, 719);
  {
    const auto unwanted = scene.Replay(scene.Tensor(1, stream), stream);
  }
  scene.engine.reset();
  EXPECT_NE(fakecuda_live("pinned"), 0);
  EXPECT_EQ(fakecuda_calls("cuMemFreeHost"), 0);
  fakecuda_hold_stream(stream.stream, 0);
  EXPECT_EQ(scene.framework.Synchronize(stream), 0);
}

TDBG_TEST(AnEngineThatGoesFreesNothingUnderACopyThatHangs) {
  ExpectNothingFreedUnderACopy(true);
  fakecuda_forget();
}

TDBG_TEST(AnEngineThatGoesFreesNothingUnderACopyThatWasNotMarked) {
  ExpectNothingFreedUnderACopy(false);
  fakecuda_forget();
}

// What a completion says in the end.
Completion::Answer EndOf(Completion* completion) {
  std::span<std::byte> none;
  Completion::Answer answer = completion->Poll(&none);
  while (answer == Completion::Answer::kPending) {
    std::this_thread::yield();
    answer = completion->Poll(&none);
  }
  return answer;
}

// Its record would be dropped, and its memory given to another one.
TDBG_TEST(ACopyThatBrokeIsWaitedForWhereItMayHaveBegun) {
  std::array<std::byte, 512> staging{};
  Scene scene;
  const DeviceStream stream = scene.framework.NewStream();
  const void* data = scene.Tensor(1, stream);
  EXPECT_TRUE(scene.engine->CanCopy(staging));
  fakecuda_hold_stream(stream.stream, 1);
  scene.framework.Fill(const_cast<void*>(data), 2, kBytes, stream);
  fakecuda_fail("cuEventRecord", 2, 719);  // That behind the copy.
  const auto copy =
      scene.engine->Copy(data, std::span(staging).first(kBytes), stream.stream);
  EXPECT_FALSE(scene.engine->is_usable());
  std::span<std::byte> none;
  EXPECT_TRUE(copy->Poll(&none) == Completion::Answer::kPending);
  fakecuda_hold_stream(stream.stream, 0);
  EXPECT_TRUE(EndOf(copy.get()) == Completion::Answer::kFailed);
  EXPECT_TRUE(staging[kBytes - 1] == std::byte{2});
}

TDBG_TEST(ACopyWhoseEventFailsIsWaitedFor) {
  std::array<std::byte, 512> staging{};
  Scene scene;
  const DeviceStream stream = scene.framework.NewStream();
  const void* data = scene.Tensor(1, stream);
  EXPECT_TRUE(scene.engine->CanCopy(staging));
  fakecuda_hold_stream(stream.stream, 1);
  const auto copy =
      scene.engine->Copy(data, std::span(staging).first(kBytes), stream.stream);
  fakecuda_fail("cuEventQuery", 0, 719);
  std::span<std::byte> none;
  EXPECT_TRUE(copy->Poll(&none) == Completion::Answer::kPending);
  EXPECT_FALSE(scene.engine->is_usable());
  fakecuda_hold_stream(stream.stream, 0);
  EXPECT_TRUE(EndOf(copy.get()) == Completion::Answer::kFailed);
  EXPECT_TRUE(staging[kBytes - 1] == std::byte{1});
  fakecuda_fail("cuEventQuery", -1, 0);
}

TDBG_TEST(StagingIsLockedOnceForAllDevicesUntilTheLastIsGone) {
  const cuda::Driver driver = FreshDriver(2);
  std::array<std::byte, 512> staging{};
  const auto lock = std::make_shared<StagingLock>();
  auto first = DeviceEngine::Open(&driver, 0, lock);
  auto second = DeviceEngine::Open(&driver, 1, lock);
  EXPECT_TRUE(first->CanCopy(staging));
  EXPECT_TRUE(first->CanCopy(staging));
  EXPECT_TRUE(second->CanCopy(staging));
  EXPECT_EQ(fakecuda_calls("cuMemHostRegister_v2"), 1);
  first.reset();
  EXPECT_EQ(fakecuda_live("registered"), 1);
  second.reset();
  EXPECT_EQ(fakecuda_live("registered"), 0);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
