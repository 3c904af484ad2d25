// Every function of the driver fails in turn, at every call: capture goes on
// without the device, what was lost is counted, and nothing is left behind.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "fake_devices.h"
#include "sanitized.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Alive;
using testing::DeviceRun;
using testing::Framework;
using testing::FreshDriver;

constexpr int kSteps = 2;

// Calls of a function that fail in turn: the first ones, which make everything,
// and some of those after.
constexpr int kFirst = testing::kHasAddressSanitizer ? 1 : 4;
constexpr int kPlaces = testing::kHasAddressSanitizer ? 1 : 4;

#define TDBG_NAME_OF(symbol, member, parameters) #symbol,
constexpr const char* kFunctions[] = {TDBG_CUDA_FUNCTIONS(TDBG_NAME_OF)};
#undef TDBG_NAME_OF

struct Trained {
  std::uint64_t n_left = 0;
  std::uint64_t n_rows = 0;
  bool is_usable = false;
  bool is_broken = false;  // The failure was noticed.
};

// What the framework has before.
struct Scene {
  Framework framework;
  std::vector<DeviceStream> streams;
  std::vector<const void*> tensors;

  explicit Scene(const cuda::Driver& driver) : framework(driver) {
    streams = {framework.NewStream(), framework.NewStream()};
    for (int i = 0; i < 40; ++i) {
      tensors.push_back(framework.Tensor(std::vector<float>(32, 1.0F)));
    }
  }
};

// A short training with everything on: statistics of two streams, units,
// histograms, values, a fence.  Whatever fails, it comes to its end.
Trained Train(const cuda::Driver& driver, const Scene& scene) {
  DeviceRun run(driver);
  Trained trained;
  const std::vector<DeviceStream>& streams = scene.streams;
  const std::uint32_t units =
      run.Define("unit/a", DType::kUInt64, {3, 8}, TensorRole::kUnitSummary);
  std::vector<CaptureItem> items;
  for (const void* data : scene.tensors) {
    items.push_back(
        {.definition = run.Define("t" + std::to_string(items.size()),
                                  DType::kFloat32, {4, 8}),
         .data = data,
         .strides = {}});
  }
  for (std::int64_t step = 0; step < kSteps; ++step) {
    DeviceCapture& capture = run.capture();
    std::vector<std::size_t> left;
    capture.Statistics(step, items, {}, {}, streams[0], &left);
    trained.n_left += left.size();
    left.clear();
    capture.Statistics(step, std::span(items).first(1), {.call = 1}, {},
                       streams[1], &left);
    trained.n_left += left.size();
    (void)capture.Repeat(step, items[1].definition, {.call = 2},
                         items[0].definition, {.call = 1}, streams[1]);
    (void)capture.UnitSummary(step, units, items[0], {}, {.low = -1, .high = 1},
                              streams[0]);
    (void)capture.CountHistogram(step, items[0], {}, {}, streams[0]);
    (void)capture.Values(step, items[0], {}, streams[0]);
    capture.FenceRaw(streams[0]);
    run.EndStep(step);
    EXPECT_OK(run.writer().Flush(false, DeviceRun::kPatience));
  }
  const DeviceState state = run.capture().state(0);
  trained.is_usable = state.is_usable;
  // Where the staging memory cannot be pinned, only values go another way.
  trained.is_broken = state.failures > (state.values_reason.empty() ? 0U : 1U);
  EXPECT_EQ(state.is_usable, state.reason.empty());
  EXPECT_OK(run.Close());
  run.ExpectBalance();
  auto reader = run.Read();
  EXPECT_EQ(reader->steps().size(), std::size_t{kSteps});
  trained.n_rows = reader->n_rows();
  // Each row is there, was left to another way, or went with a lost record.
  const Counters counters = run.writer().counters();
  if (counters.losses[8].records == 0 && counters.dropped == 0) {
    EXPECT_TRUE(trained.n_rows + trained.n_left >= 41 * kSteps);
  }
  return trained;
}

// The contexts of the framework are as they were.
void ExpectContextsKept(const cuda::Driver& driver) {
  cuda::Context context = nullptr;
  EXPECT_EQ(driver.context_pop(&context), 201);
}

// How often each function is called where nothing fails.
std::map<std::string, int> CallsWithoutFaults() {
  const cuda::Driver driver = FreshDriver(1);
  const Scene scene(driver);
  std::map<std::string, int> calls;
  for (const char* function : kFunctions) {
    calls[function] = -fakecuda_calls(function);
  }
  const Trained trained = Train(driver, scene);
  EXPECT_FALSE(trained.is_broken);
  EXPECT_EQ(trained.n_left, 0U);
  EXPECT_EQ(trained.n_rows, 42U * kSteps);
  for (const char* function : kFunctions) {
    calls[function] += fakecuda_calls(function);
  }
  return calls;
}

// What frees, and what finds the context in which to: where that fails for
// good, something stays.
bool Frees(const std::string& function) {
  for (const char* word :
       {"Free", "Destroy", "Unload", "Release", "Unregister"}) {
    if (function.find(word) != std::string::npos) return true;
  }
  return false;
}

// One training in which the n-th call (0: every call) fails, and for the first
// one after it.
void FailAt(const std::string& function, int nth, int code) {
  const cuda::Driver driver = FreshDriver(1);
  bool is_fatal = false;
  {
    const Scene scene(driver);
    fakecuda_fail(function.c_str(), nth, code);
    const Trained trained = Train(driver, scene);
    is_fatal = nth == 0 || Frees(function);
    fakecuda_fail(function.c_str(), -1, 0);
    ExpectContextsKept(driver);
    if (nth != 0 && !Frees(function)) {
      EXPECT_EQ(trained.is_usable, !trained.is_broken);
    }
    // The next one does not feel it.
    if (nth <= 1) {
      const Trained again = Train(driver, scene);
      EXPECT_TRUE(again.is_usable);
      EXPECT_EQ(again.n_rows, 42U * kSteps);
    }
  }
  if (const std::string alive = Alive(); !alive.empty() && !is_fatal) {
    testing::Fail(__FILE__, __LINE__,
                  function + " " + std::to_string(nth) + " leaves " + alive);
  }
  fakecuda_forget();
}

TDBG_TEST(EachFunctionFailsAtEachCall) {
  for (const auto& [function, n_calls] : CallsWithoutFaults()) {
    int nth = 1;
    while (nth <= n_calls) {
      FailAt(function, nth, nth % 2 == 0 ? 2 : 719);
      nth += nth < kFirst ? 1 : std::max(1, n_calls / kPlaces);
    }
  }
}

TDBG_TEST(EachFunctionFailsForGood) {
  for (const auto& [function, n_calls] : CallsWithoutFaults()) {
    if (n_calls != 0 && function.find("CtxPopCurrent") == std::string::npos) {
      FailAt(function, 0, 719);
    }
  }
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
