// Signals at an interval: to whom, how many, and until somebody takes them.

#include "base/signal_timer.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <optional>

#include "testing.h"
#include "waiting.h"

namespace {

using namespace tdbg;           // NOLINT: a test.
using namespace tdbg::testing;  // NOLINT: a test.

constexpr std::chrono::milliseconds kInterval{1};

std::atomic<SignalTimer*> told{nullptr};
std::atomic<int> n_handled{0};
std::atomic<int> n_elsewhere{0};  // In another thread than the main one.
std::atomic<int> n_taken{0};

void Handle(int /*signal*/) {
  if (::syscall(SYS_gettid) != ::getpid()) ++n_elsewhere;
  ++n_handled;
  if (SignalTimer* timer = told) timer->Handled();
}

void Take(int /*signal*/) { ++n_taken; }

void TakeWithInformation(int /*signal*/, siginfo_t* /*info*/, void* /*at*/) {}

// A timer of SIGUSR1; a signal that comes late finds one that is ignored.
struct Timer {
  std::optional<SignalTimer> timer;

  explicit Timer(bool is_told) {
    n_handled = n_elsewhere = n_taken = 0;
    ::signal(SIGUSR1, Handle);
    timer.emplace(SIGUSR1, kInterval);
    if (is_told) told = &*timer;
  }
  ~Timer() {
    told = nullptr;
    timer.reset();
    ::signal(SIGUSR1, SIG_IGN);
  }
};

TDBG_TEST(TheMainThreadGetsASignalAtEachInterval) {
  Timer owner(false);
  // The first signal may come before the handler knows whom to tell.
  told = &*owner.timer;
  owner.timer->Handled();
  EXPECT_TRUE(Until([] { return n_handled >= 5; }));
  EXPECT_GE(owner.timer->n_sent(), 4u);
  EXPECT_EQ(n_elsewhere, 0);
  EXPECT_FALSE(owner.timer->is_taken());
}

TDBG_TEST(NoSignalFollowsOneThatIsNotHandled) {
  Timer owner(false);
  EXPECT_TRUE(Until([] { return n_handled == 1; }));
  std::this_thread::sleep_for(20 * kInterval);
  EXPECT_EQ(n_handled, 1);
  EXPECT_TRUE(Until([&] { return owner.timer->n_sent() == 1; }));
  owner.timer->Handled();
  EXPECT_TRUE(Until([] { return n_handled == 2; }));
  EXPECT_TRUE(Until([&] { return owner.timer->n_sent() == 2; }));
}

TDBG_TEST(WhoTakesTheSignalGetsOneAtMost) {
  Timer owner(false);
  ::signal(SIGUSR1, Take);
  EXPECT_TRUE(Until([&] {
    owner.timer->Handled();
    return owner.timer->is_taken();
  }));
  const std::uint64_t n_sent = owner.timer->n_sent();
  owner.timer->Handled();
  std::this_thread::sleep_for(20 * kInterval);
  EXPECT_EQ(owner.timer->n_sent(), n_sent);
  EXPECT_LE(n_taken, 1);
}

TDBG_TEST(TheHandlerOfASignalIsAFunctionOrNone) {
  ::signal(SIGUSR2, SIG_DFL);
  EXPECT_TRUE(SignalHandler(SIGUSR2) == nullptr);
  EXPECT_TRUE(IsSignalFree(SIGUSR2));
  ::signal(SIGUSR2, SIG_IGN);
  EXPECT_TRUE(SignalHandler(SIGUSR2) == nullptr);
  EXPECT_FALSE(IsSignalFree(SIGUSR2));
  ::signal(SIGUSR2, Take);
  EXPECT_TRUE(SignalHandler(SIGUSR2) == reinterpret_cast<const void*>(&Take));
  EXPECT_FALSE(IsSignalFree(SIGUSR2));
  struct sigaction action{};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = TakeWithInformation;
  EXPECT_EQ(sigaction(SIGUSR2, &action, nullptr), 0);
  EXPECT_TRUE(SignalHandler(SIGUSR2) ==
              reinterpret_cast<const void*>(&TakeWithInformation));
  EXPECT_FALSE(IsSignalFree(SIGUSR2));
  ::signal(SIGUSR2, SIG_DFL);
}

TDBG_TEST(ANumberThatIsNoSignalHasNoHandlerAndIsNotFree) {
  EXPECT_TRUE(SignalHandler(100'000) == nullptr);
  EXPECT_FALSE(IsSignalFree(100'000));
}

}  // namespace

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
