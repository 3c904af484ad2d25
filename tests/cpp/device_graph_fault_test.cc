// Each function of the driver fails in turn while a graph is captured and
// replayed, and while more streams are used than have working memory.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fake_devices.h"
#include "sanitized.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Alive;
using testing::CapturedGraph;
using testing::DeviceRun;
using testing::Framework;
using testing::FreshDriver;

// Calls that fail in turn.
constexpr int kPlaces = testing::kHasAddressSanitizer ? 2 : 8;

#define TDBG_NAME_OF(symbol, member, parameters) #symbol,
constexpr const char* kFunctions[] = {TDBG_CUDA_FUNCTIONS(TDBG_NAME_OF)};
#undef TDBG_NAME_OF

// Statistics of one tensor into a graph, which is replayed twice; of another,
// in the second step, on more streams than have working memory.
void Train(Framework* framework, DeviceRun* run) {
  constexpr std::uint16_t kStreams = 11;
  const std::uint32_t id = run->Define("a", DType::kUInt8, {100});
  void* data = framework->Allocate(100);
  const DeviceStream stream = framework->NewStream();
  std::uint64_t graph_id = 0;
  {
    CapturedGraph graph(framework, stream, [&] {
      graph_id = run->capture().CaptureId(stream);
      (void)run->Take(0, id, data, stream);
      (void)run->capture().Repeat(0, id, {.call = 1}, id, {}, stream);
    });
    for (std::int64_t step = 0; step < 2; ++step) {
      graph.Replay(stream);
      (void)run->capture().Replayed(graph_id, step, stream);
      run->EndStep(step);
    }
  }
  for (std::uint16_t i = 0; i < kStreams; ++i) {
    (void)run->Take(2, id, data, framework->NewStream(), {.call = i});
  }
  run->EndStep(2);
}

bool Frees(const std::string& function) {
  for (const char* word :
       {"Free", "Destroy", "Unload", "Release", "Unregister"}) {
    if (function.find(word) != std::string::npos) return true;
  }
  return false;
}

void FailAt(const std::string& function, int nth) {
  const cuda::Driver driver = FreshDriver(1);
  {
    Framework framework(driver);
    DeviceRun run(driver);
    fakecuda_fail(function.c_str(), nth, nth % 2 == 0 ? 2 : 719);
    Train(&framework, &run);
    fakecuda_fail(function.c_str(), -1, 0);
    EXPECT_OK(run.Close());
    run.ExpectBalance();
    EXPECT_EQ(run.Read()->steps().size(), 3U);
  }
  if (const std::string alive = Alive(); !alive.empty() && !Frees(function)) {
    testing::Fail(__FILE__, __LINE__,
                  function + " " + std::to_string(nth) + " leaves " + alive);
  }
  fakecuda_forget();
}

TDBG_TEST(EachFunctionFailsWhileAGraphIsCaptured) {
  std::vector<std::pair<std::string, int>> calls;
  {
    const cuda::Driver driver = FreshDriver(1);
    Framework framework(driver);
    DeviceRun run(driver);
    Train(&framework, &run);
    EXPECT_TRUE(run.capture().usable(0));
    EXPECT_OK(run.Close());
    EXPECT_EQ(run.Read()->n_rows(), 15U);
    for (const char* function : kFunctions) {
      calls.emplace_back(function, fakecuda_calls(function));
    }
  }
  EXPECT_EQ(Alive(), "");
  for (const auto& [function, n_calls] : calls) {
    const int stride = std::max(1, n_calls / kPlaces);
    for (int nth = 1; nth <= n_calls; nth += stride) FailAt(function, nth);
  }
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
