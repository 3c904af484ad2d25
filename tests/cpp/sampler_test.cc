// Which steps are kept under Overflow::kSample: a simulation without threads.

#include "writer/sampler.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "testing.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;
using Verdict = Sampler::Verdict;

// A queue that a disk drains by so many bytes a step.
struct Simulation {
  std::uint64_t capacity = 1000;
  std::uint64_t drained = 10;
  std::uint64_t used = 0;
  std::int64_t step = 0;
  std::uint64_t highest = 0;
  std::vector<std::int64_t> kept{};

  // A step of `n` tensors of `n_bytes`, whole or not at all.
  void Step(Sampler* sampler, std::uint64_t n, std::uint64_t n_bytes) {
    std::uint64_t n_kept = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
      const auto answer =
          sampler->Ask(step, n_bytes, {.used = used, .capacity = capacity});
      if (answer.verdict != Verdict::kKeep) continue;
      ++n_kept;
      used += n_bytes;
    }
    EXPECT_TRUE(n_kept == 0 || n_kept == n);
    if (n_kept != 0) kept.push_back(step);
    highest = std::max(highest, used);
    sampler->EndStep(step++);
    used -= std::min(used, drained);
  }
};

TDBG_TEST(AWriterThatKeepsUpGetsEverything) {
  Sampler sampler;
  Simulation simulation{.drained = 100};
  for (int i = 0; i < 1000; ++i) simulation.Step(&sampler, 4, 25);
  EXPECT_EQ(simulation.kept.size(), 1000U);
  EXPECT_EQ(sampler.interval(), 1U);
  EXPECT_EQ(sampler.counts().kept, 1000U);
  EXPECT_EQ(sampler.counts().left_out, 0U);
}

// The disk takes a tenth, a hundredth, a thousandth of what is offered: about
// that share of the steps is kept, and no more than fits.  Sabotage seen to
// fail here: never halving n; not asking whether the next step fits.
TDBG_TEST(TheShareThatIsKeptIsWhatTheDiskTakes) {
  for (const std::uint64_t share : {10, 100, 1000}) {
    Sampler sampler;
    Simulation simulation{.capacity = 1'000'000, .drained = 100'000 / share};
    const std::uint64_t n_steps = 1000 * share;
    for (std::uint64_t i = 0; i < n_steps; ++i) {
      simulation.Step(&sampler, 4, 25'000);
    }
    EXPECT_LE(simulation.highest, simulation.capacity);
    const auto n_kept = static_cast<double>(simulation.kept.size());
    const double possible = 1000;
    EXPECT_GT(n_kept, 0.9 * possible);
    EXPECT_LT(n_kept, 1.02 * possible);
    EXPECT_EQ(sampler.counts().kept, simulation.kept.size());
    EXPECT_EQ(sampler.counts().left_out, n_steps - simulation.kept.size());
  }
}

// Sabotage seen to fail here: going by the half of the queue alone.
TDBG_TEST(AStepThatWouldNotFitIsLeftOut) {
  Sampler sampler;
  Simulation simulation{.capacity = 1000, .drained = 100};
  for (int i = 0; i < 1000; ++i) simulation.Step(&sampler, 2, 300);
  EXPECT_LE(simulation.highest, simulation.capacity);
  EXPECT_GE(simulation.kept.size(), 100U);
}

TDBG_TEST(AnIdleWriterIsGivenEverythingAgain) {
  Sampler sampler;
  Simulation simulation{.drained = 0};
  while (sampler.interval() < 1024) simulation.Step(&sampler, 1, 100);
  simulation.used = 0;
  simulation.drained = 100;
  const std::size_t n_before = simulation.kept.size();
  for (int i = 0; i < 20; ++i) simulation.Step(&sampler, 1, 100);
  EXPECT_EQ(sampler.interval(), 1U);
  EXPECT_GE(simulation.kept.size(), n_before + 9);
}

TDBG_TEST(AStepThatDidNotFitIsSpoiltAndWaitsNoMore) {
  Sampler sampler;
  const Sampler::Fill fill{.used = 0, .capacity = 1000};
  auto answer = sampler.Ask(7, 10, fill);
  EXPECT_TRUE(answer.verdict == Verdict::kKeep);
  EXPECT_TRUE(answer.may_wait == Sampler::kPatience);
  sampler.Waited(7, milliseconds(400), true);
  answer = sampler.Ask(7, 10, fill);
  EXPECT_TRUE(answer.may_wait == milliseconds(600));
  sampler.Waited(7, milliseconds(700), false);
  answer = sampler.Ask(7, 10, fill);
  EXPECT_TRUE(answer.verdict == Verdict::kSpoilt);
  EXPECT_EQ(sampler.counts().kept, 0U);
  EXPECT_EQ(sampler.counts().left_out, 1U);
  EXPECT_EQ(sampler.interval(), 2U);
}

TDBG_TEST(StepsOfSeveralThreadsAreDecidedOneByOne) {
  Sampler sampler;
  const Sampler::Fill empty{.used = 0, .capacity = 1000};
  const Sampler::Fill full{.used = 990, .capacity = 1000};
  EXPECT_TRUE(sampler.Ask(1, 10, empty).verdict == Verdict::kKeep);
  EXPECT_TRUE(sampler.Ask(2, 10, full).verdict == Verdict::kLeaveOut);
  EXPECT_TRUE(sampler.Ask(1, 10, full).verdict == Verdict::kKeep);
  EXPECT_TRUE(sampler.Ask(2, 10, empty).verdict == Verdict::kLeaveOut);
  // Steps that never end do not pile up.
  for (std::int64_t step = 10; step < 100'000; ++step) {
    (void)sampler.Ask(step, 10, full);
  }
  EXPECT_EQ(sampler.counts().kept, 1U);
  EXPECT_EQ(sampler.counts().left_out, 99'991U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
