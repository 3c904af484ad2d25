// A thread that repeats: what it calls, with which signals, and how it ends.

#include "base/repeating_thread.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "testing.h"
#include "waiting.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

constexpr std::chrono::milliseconds kInterval{1};

// Outlives its thread, whichever of them is the last one to let go.
struct Calls {
  std::atomic<int> n_work{0};
  std::atomic<int> n_end{0};
  std::atomic<int> n_work_at_end{-1};
  std::atomic<bool> is_open{true};

  void Work() {
    ++n_work;
    while (!is_open) std::this_thread::sleep_for(kInterval);
  }
  void End() {
    n_work_at_end = n_work.load();
    ++n_end;
  }
};

std::unique_ptr<RepeatingThread> Started(const std::shared_ptr<Calls>& calls) {
  return std::make_unique<RepeatingThread>(
      "tdbg-test", kInterval, [calls] { calls->Work(); },
      [calls] { calls->End(); });
}

TDBG_TEST(WorkIsRepeatedUntilTheOwnerEnds) {
  auto calls = std::make_shared<Calls>();
  auto thread = Started(calls);
  EXPECT_TRUE(Until([&] { return calls->n_work >= 5; }));
  EXPECT_EQ(calls->n_end, 0);
  thread.reset();
  EXPECT_TRUE(Until([&] { return calls->n_end == 1; }));
  // The thread has let go of all that it used: nothing more can be called.
  EXPECT_TRUE(Until([&] { return calls.use_count() == 1; }));
  EXPECT_EQ(calls->n_work, calls->n_work_at_end);
  EXPECT_EQ(calls->n_end, 1);
}

TDBG_TEST(AnOwnerThatEndsDoesNotWaitForTheNextCall) {
  auto calls = std::make_shared<Calls>();
  RepeatingThread(
      "tdbg-test", std::chrono::hours(24), [calls] { calls->Work(); },
      [calls] { calls->End(); });
  EXPECT_TRUE(Until([&] { return calls->n_end == 1; }));
  EXPECT_EQ(calls->n_work, 0);
}

TDBG_TEST(AnOwnerDoesNotWaitForACallThatHangs) {
  auto calls = std::make_shared<Calls>();
  calls->is_open = false;
  auto thread = Started(calls);
  EXPECT_TRUE(Until([&] { return calls->n_work == 1; }));
  thread.reset();
  EXPECT_EQ(calls->n_end, 0);
  calls->is_open = true;
  EXPECT_TRUE(Until([&] { return calls->n_end == 1; }));
  EXPECT_EQ(calls->n_work, 1);
  EXPECT_TRUE(Until([&] { return calls.use_count() == 1; }));
}

TDBG_TEST(TheThreadHasItsNameAndBlocksSignals) {
  struct Seen {
    std::string name;
    bool is_blocked = false;
    std::atomic<bool> is_known{false};
  };
  auto seen = std::make_shared<Seen>();
  {
    const RepeatingThread thread("tdbg-test", kInterval, [seen] {
      if (seen->is_known) return;
      std::array<char, 16> name{};
      pthread_getname_np(pthread_self(), name.data(), name.size());
      sigset_t blocked;
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      seen->name = name.data();
      seen->is_blocked = sigismember(&blocked, SIGINT) == 1 &&
                         sigismember(&blocked, SIGUSR1) == 1;
      seen->is_known = true;
    });
    EXPECT_TRUE(Until([&] { return seen->is_known.load(); }));
  }
  EXPECT_EQ(seen->name, "tdbg-test");
  EXPECT_TRUE(seen->is_blocked);
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  EXPECT_EQ(sigismember(&own, SIGUSR1), 0);
  EXPECT_TRUE(Until([&] { return seen.use_count() == 1; }));
}

// ThreadSanitizer cannot fork.
#if !defined(__SANITIZE_THREAD__)
TDBG_TEST(ACopyInAForkedChildDoesNothing) {
  auto calls = std::make_shared<Calls>();
  auto thread = Started(calls);
  EXPECT_TRUE(Until([&] { return calls->n_work >= 1; }));
  const pid_t child = ::fork();
  if (child == 0) {
    const int before = calls->n_work;
    thread.reset();
    ::_exit(calls->n_work == before && calls->n_end == 0 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const int before = calls->n_work;
  EXPECT_TRUE(Until([&] { return calls->n_work > before; }));
  thread.reset();
  EXPECT_TRUE(Until([&] { return calls.use_count() == 1; }));
}
#endif

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
