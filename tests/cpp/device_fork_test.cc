// A forked child has a copy of a device capture that does nothing: the driver
// does not survive a fork, and its threads and locks are the parent's.

#include <chrono>
#include <vector>

#include "child_process.h"
#include "fake_devices.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::DeviceRun;
using testing::Framework;
using testing::FreshDriver;

TDBG_TEST(AChildDoesNothing) {
  const cuda::Driver driver = FreshDriver();
  Framework framework(driver);
  const DeviceStream stream = framework.NewStream();
  void* data = framework.Tensor(std::vector<float>(16, 1.0F));
  DeviceRun run(driver);
  const std::uint32_t id = run.Define("a", DType::kFloat32, {16});
  EXPECT_TRUE(run.Take(1, id, data, stream));
  // Nobody has the fake driver's lock when the child is made.
  EXPECT_EQ(framework.Synchronize(stream), 0);
  // Whatever the child called of the driver would wait for threads that it does
  // not have.
  fakecuda_hold(1);
  const int n_calls = fakecuda_calls("cuCtxPushCurrent_v2");
  const pid_t child = testing::Fork([&] {
    auto& capture = run.capture();
    if (capture.usable(0)) return 1;
    std::vector<std::size_t> left;
    const CaptureItem item{.definition = id, .data = data, .strides = {}};
    capture.Statistics(1, {&item, 1}, {}, {}, stream, &left);
    if (!left.empty()) return 2;
    if (capture.Repeat(1, id, {.call = 1}, id, {}, stream)) return 3;
    if (capture.Values(1, item, {}, stream) == DeviceAnswer::kCaptured)
      return 4;
    capture.FenceRaw(stream);
    capture.EndStep(1);
    capture.EndAllSteps();
    if (capture.CaptureId(stream) != 0) return 5;
    if (capture.Replayed(1, 1, stream)) return 6;
    if (capture.state(0).rows != 0) return 7;
    run.DropCapture();
    return fakecuda_calls("cuCtxPushCurrent_v2") == n_calls ? 0 : 8;
  });
  const testing::Ending ending = testing::WaitFor(child, DeviceRun::kPatience);
  fakecuda_hold(0);
  EXPECT_FALSE(ending.timed_out);
  EXPECT_EQ(ending.exit_code, 0);
  run.EndStep(1);
  EXPECT_OK(run.Close());
  EXPECT_EQ(run.Read()->n_rows(), 1U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
