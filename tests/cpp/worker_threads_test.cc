// Threads that help: how many, when, and with which signals.

#include "base/worker_threads.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "testing.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

// How many threads of this process have the helpers' name.
int NumberOfHelpers() {
  int n = 0;
  DIR* tasks = ::opendir("/proc/self/task");
  while (const dirent* task = ::readdir(tasks)) {
    std::ifstream file("/proc/self/task/" + std::string(task->d_name) +
                       "/comm");
    std::string name;
    std::getline(file, name);
    n += name == "tdbg-reduce" ? 1 : 0;
  }
  ::closedir(tasks);
  return n;
}

// Waits until as many threads are at work at once as are expected.
struct Meeting {
  std::atomic<unsigned> n_here{0};
  std::atomic<unsigned> n_unblocked{0};  // That a signal could interrupt.
  unsigned n_expected = 1;

  static void Work(void* self) {
    auto* meeting = static_cast<Meeting*>(self);
    static thread_local bool is_caller = false;
    (void)is_caller;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    if (sigismember(&blocked, SIGINT) == 0 ||
        sigismember(&blocked, SIGUSR1) == 0) {
      ++meeting->n_unblocked;
    }
    ++meeting->n_here;
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (meeting->n_here.load() < meeting->n_expected &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }
};

TDBG_TEST(NoThreadIsStartedUnlessHelpIsAskedFor) {
  Meeting meeting;
  WorkOnThreads(1, &Meeting::Work, &meeting);
  WorkOnThreads(0, &Meeting::Work, &meeting);
  EXPECT_EQ(meeting.n_here.load(), 2U);
  EXPECT_EQ(NumberOfHelpers(), 0);
}

TDBG_TEST(AsManyThreadsWorkAsWereAskedForAndNoMore) {
  for (const unsigned n : {2U, 4U, 3U}) {
    Meeting meeting;
    meeting.n_expected = n;
    WorkOnThreads(n, &Meeting::Work, &meeting);
    EXPECT_EQ(meeting.n_here.load(), n);
    // The calling thread alone takes signals.
    EXPECT_EQ(meeting.n_unblocked.load(), 1U);
  }
  EXPECT_EQ(NumberOfHelpers(), 3);
}

TDBG_TEST(ACallThatFindsTheHelpersBusyWorksAlone) {
  Meeting outer;
  outer.n_expected = 3;  // Two by help, the third by hand.
  std::thread other([&] { WorkOnThreads(2, &Meeting::Work, &outer); });
  while (outer.n_here.load() < 2) std::this_thread::yield();
  Meeting inner;
  WorkOnThreads(2, &Meeting::Work, &inner);
  EXPECT_EQ(inner.n_here.load(), 1U);
  ++outer.n_here;
  other.join();
}

TDBG_TEST(ManyShortCallsAreAllAnswered) {
  for (int i = 0; i < 3000; ++i) {
    std::atomic<int> parts{0};
    std::atomic<int> done{0};
    struct Context {
      std::atomic<int>* parts;
      std::atomic<int>* done;
    } context{&parts, &done};
    WorkOnThreads(
        4,
        [](void* c) {
          auto* at = static_cast<Context*>(c);
          while (at->parts->fetch_add(1) < 8) ++*at->done;
        },
        &context);
    EXPECT_EQ(done.load(), 8);
  }
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
