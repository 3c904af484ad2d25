// A child that was forked, at any moment, reduces on its own thread.

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/worker_threads.h"
#include "child_process.h"
#include "reduce_views.h"
#include "reducers/reduce.h"
#include "reducers/segments.h"
#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

// A child that used its parent's helpers would wait for threads that it lacks.
TDBG_TEST(AForkedChildReducesOnItsOwnThread) {
  std::vector<float> values(3 * kLeastParallelBytes / sizeof(float), 0.25F);
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  const TensorView view = ViewOf(values.data(), DType::kFloat32, shape);
  const Summary expected = Reduce(view, {.n_threads = 3});
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop.load()) (void)Reduce(view, {.n_threads = 3});
  });
  for (int i = 0; i < 60; ++i) {
    const pid_t child = Fork([&] {
      const Summary s = Reduce(view, {.n_threads = 3});
      return std::memcmp(&s, &expected, sizeof(s)) == 0 ? 0 : 1;
    });
    const Ending ending = WaitFor(child, std::chrono::seconds(20));
    EXPECT_FALSE(ending.timed_out);
    EXPECT_EQ(ending.exit_code, 0);
    if (ending.timed_out) break;
  }
  stop = true;
  busy.join();
  const Summary after = Reduce(view, {.n_threads = 3});
  EXPECT_EQ(std::memcmp(&after, &expected, sizeof(after)), 0);
}

TDBG_TEST(AProcessExitsWhileHelpersSleepOrWork) {
  std::vector<float> values(3 * kLeastParallelBytes / sizeof(float), 0.25F);
  const std::int64_t shape[] = {static_cast<std::int64_t>(values.size())};
  const TensorView view = ViewOf(values.data(), DType::kFloat32, shape);
  for (int i = 0; i < 10; ++i) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      // Another generation of helpers: those of a process that was forked
      // before it had any cannot be had here, so this one works alone, in two
      // threads, one of which is at work when the process exits.
      std::thread([&] {
        for (;;) (void)Reduce(view, {.n_threads = 3});
      }).detach();
      (void)Reduce(view, {.n_threads = 3});
      std::exit(7);
    }
    const Ending ending = WaitFor(child, std::chrono::seconds(20));
    EXPECT_EQ(ending.exit_code, 7);
  }
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
