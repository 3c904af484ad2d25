// The time of a training's thread, divided into steps and phases.

#include "sampler/step_clock.h"

#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "testing.h"

namespace tdbg {
namespace {

std::int64_t Of(const StepRow& row, Phase phase) {
  return row.phase_ns[static_cast<std::size_t>(phase)];
}

std::int64_t Sum(const StepRow& row) {
  return std::accumulate(row.phase_ns.begin(), row.phase_ns.end(),
                         std::int64_t{0});
}

// Lets the clock go on by at least this much.
void Wait(std::int64_t ns) {
  const std::int64_t until_ns = MonotonicNs() + ns;
  while (MonotonicNs() < until_ns) {
  }
}

StepClock::Number Train(std::int64_t step) {
  return {.global_step = step, .mode_step = step, .mode = 1};
}

// Sabotage seen to fail here: charging after the phase has changed.
TDBG_TEST(ThePhasesOfAStepAddUpToTheTimeSinceTheStepBefore) {
  StepClock clock;
  clock.Start();
  std::int64_t before_ns = 0;
  for (std::int64_t step = 0; step < 5; ++step) {
    Wait(1000);
    clock.Enter(Phase::kForward);
    Wait(20'000);
    clock.Enter(Phase::kCompile);
    Wait(30'000);
    clock.Leave(Phase::kCompile);
    clock.Leave(Phase::kForward);
    clock.Enter(Phase::kOptimizer);
    Wait(10'000);
    clock.Leave(Phase::kOptimizer);
    EXPECT_FALSE(clock.EndStep(Train(step)));
    EXPECT_EQ(clock.global_step(), step);
    const std::vector<StepRow> rows = clock.TakeRows();
    EXPECT_EQ(rows.size(), 1U);
    EXPECT_EQ(Sum(rows[0]), rows[0].duration_ns);
    EXPECT_GE(Of(rows[0], Phase::kForward), 20'000);
    EXPECT_GE(Of(rows[0], Phase::kCompile), 30'000);
    EXPECT_GE(Of(rows[0], Phase::kOptimizer), 10'000);
    if (step > 0) EXPECT_EQ(rows[0].time - rows[0].duration_ns, before_ns);
    before_ns = rows[0].time;
  }
}

TDBG_TEST(APhaseThatBeginsDuringAnInterruptionHasNoTimeOfIt) {
  StepClock clock;
  clock.Start();
  clock.BeginInterruption(Phase::kCapture);
  clock.Enter(Phase::kForward);
  Wait(20'000);
  EXPECT_EQ(clock.phase(), Phase::kCapture);
  const std::int64_t now_ns = clock.EndInterruption();
  EXPECT_EQ(clock.phase(), Phase::kForward);
  clock.Leave(Phase::kForward);
  clock.EndStep(Train(0));
  const StepRow row = clock.TakeRows().at(0);
  EXPECT_GE(Of(row, Phase::kCapture), 20'000);
  EXPECT_LE(Of(row, Phase::kForward), row.time - now_ns);
}

TDBG_TEST(APhaseThatNobodyEndedEndsWithTheOneAroundItOrWithTheStep) {
  StepClock clock;
  clock.Start();
  clock.Enter(Phase::kForward);
  clock.Enter(Phase::kBackward);
  clock.Leave(Phase::kOptimizer);
  EXPECT_EQ(clock.phase(), Phase::kBackward);
  clock.Leave(Phase::kForward);
  EXPECT_EQ(clock.phase(), Phase::kOther);
  clock.Enter(Phase::kOptimizer);
  clock.EndStep(Train(0));
  EXPECT_EQ(clock.phase(), Phase::kOther);
}

TDBG_TEST(StepsThatPassGetTheirNumbersLater) {
  StepClock clock;
  clock.Start();
  EXPECT_EQ(clock.coming_step(), 0);
  for (int i = 0; i < 4; ++i) clock.EndStep();
  EXPECT_EQ(clock.coming_step(), 4);
  EXPECT_EQ(clock.TakeRows().size(), 0U);
  clock.NumberSteps(3, Train(12));
  EXPECT_EQ(clock.coming_step(), 14);
  clock.NumberSteps(1, Train(13));
  EXPECT_EQ(clock.coming_step(), 14);
  std::int64_t number = 10;
  for (const StepRow& row : clock.TakeRows()) {
    EXPECT_EQ(row.global_step, number++);
  }
  EXPECT_EQ(number, 14);
  EXPECT_EQ(clock.n_steps(), 4);
  // One that nobody numbers is lost, and takes no number of another.
  clock.EndStep();
  clock.EndStep(Train(15));
  EXPECT_EQ(clock.coming_step(), 16);
  EXPECT_EQ(clock.TakeRows().at(0).global_step, 15);
  EXPECT_EQ(clock.n_lost(), 1);
}

TDBG_TEST(AnEvaluationHasARowOfItsOwnInsideThatOfTheNextStep) {
  StepClock clock;
  clock.Start();
  for (std::int64_t i = 0; i < 2; ++i) {
    clock.Enter(Phase::kEvaluation);
    clock.AddBatch(8, -1);
    Wait(10'000);
    clock.Leave(Phase::kEvaluation);
    clock.EndEvaluation();
    clock.KeepEvaluation({.global_step = i, .mode_step = i, .mode = 2});
  }
  clock.EndStep(Train(2));
  const std::vector<StepRow> rows = clock.TakeRows();
  EXPECT_EQ(rows.size(), 3U);
  for (const StepRow& row : rows) EXPECT_EQ(Sum(row), row.duration_ns);
  EXPECT_EQ(rows[0].samples, 8);
  EXPECT_EQ(rows[2].samples, -1);
  EXPECT_EQ(Of(rows[2], Phase::kEvaluation),
            Of(rows[0], Phase::kEvaluation) + Of(rows[1], Phase::kEvaluation));
  EXPECT_EQ(rows[1].time - rows[1].duration_ns, rows[0].time);
}

TDBG_TEST(AnEvaluationThatTurnsOutToTrainIsAForward) {
  StepClock clock;
  clock.Start();
  clock.Enter(Phase::kEvaluation);
  clock.AddBatch(8, 80);
  Wait(10'000);
  clock.Leave(Phase::kEvaluation);
  clock.EndEvaluation();
  clock.ForgetEvaluation();
  clock.EndStep(Train(0));
  const std::vector<StepRow> rows = clock.TakeRows();
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_EQ(Of(rows[0], Phase::kEvaluation), 0);
  EXPECT_GE(Of(rows[0], Phase::kForward), 10'000);
  EXPECT_EQ(rows[0].tokens, 80);
}

TDBG_TEST(AnEvaluationOfAStepThatHasEndedLeavesNoTimeToTheNext) {
  StepClock clock;
  clock.Start();
  clock.Enter(Phase::kEvaluation);
  Wait(10'000);
  clock.Leave(Phase::kEvaluation);
  clock.EndEvaluation();
  clock.EndStep(Train(0));
  clock.ForgetEvaluation();
  clock.EndStep(Train(1));
  const std::vector<StepRow> rows = clock.TakeRows();
  EXPECT_EQ(rows.size(), 2U);
  for (const StepRow& row : rows) EXPECT_EQ(Sum(row), row.duration_ns);
  EXPECT_EQ(Of(rows[1], Phase::kEvaluation), 0);
  EXPECT_EQ(Of(rows[1], Phase::kForward), 0);
}

TDBG_TEST(TimeOfAnEvaluationThatHasARowIsSpentByNobodyElse) {
  StepClock clock;
  clock.Start();
  for (const std::int64_t i : {0, 1}) {
    clock.Enter(Phase::kEvaluation);
    Wait(10'000);
    if (i == 1) clock.Spend(1'000'000'000);
    clock.Leave(Phase::kEvaluation);
    clock.EndEvaluation();
    clock.KeepEvaluation({.global_step = i, .mode_step = i, .mode = 2});
  }
  clock.EndStep(Train(2));
  const std::vector<StepRow> rows = clock.TakeRows();
  EXPECT_EQ(rows.size(), 3U);
  for (const StepRow& row : rows) {
    EXPECT_EQ(Sum(row), row.duration_ns);
    EXPECT_GE(Of(row, Phase::kEvaluation), 0);
  }
  EXPECT_GE(Of(rows[0], Phase::kEvaluation), 10'000);
  EXPECT_GE(Of(rows[1], Phase::kCapture), 10'000);
}

TDBG_TEST(AnotherThreadChangesNothingUntilItEndsAStep) {
  StepClock clock;
  clock.Start();
  clock.Enter(Phase::kForward);
  std::thread([&clock] {
    clock.Leave(Phase::kForward);
    clock.Enter(Phase::kOptimizer);
    EXPECT_GT(clock.BeginInterruption(Phase::kGc), 0);
    EXPECT_GT(clock.EndInterruption(), 0);
    EXPECT_EQ(clock.phase(), Phase::kForward);
    clock.EndStep(Train(0));
    clock.Enter(Phase::kOptimizer);
  }).join();
  EXPECT_EQ(clock.phase(), Phase::kOptimizer);
  const StepRow row = clock.TakeRows().at(0);
  EXPECT_EQ(Sum(row), row.duration_ns);
}

TDBG_TEST(AThreadThatStandsInActsForTheOwner) {
  StepClock clock;
  clock.Start();
  clock.Enter(Phase::kCompute);
  std::thread([&clock] {
    clock.StandIn();
    clock.Enter(Phase::kOptimizer);
    Wait(10'000);
    EXPECT_EQ(clock.phase(), Phase::kOptimizer);
    clock.EndStep(Train(0));
    EXPECT_EQ(clock.phase(), Phase::kCompute);
    clock.StandDown();
    clock.Enter(Phase::kBackward);
  }).join();
  EXPECT_EQ(clock.phase(), Phase::kCompute);
  Wait(10'000);
  clock.Leave(Phase::kCompute);
  clock.EndStep(Train(1));
  const std::vector<StepRow> rows = clock.TakeRows();
  EXPECT_EQ(rows.size(), 2U);
  EXPECT_GE(Of(rows[0], Phase::kOptimizer), 10'000);
  EXPECT_GE(Of(rows[1], Phase::kCompute), 10'000);
  EXPECT_EQ(Of(rows[1], Phase::kBackward), 0);
  for (const StepRow& row : rows) EXPECT_EQ(Sum(row), row.duration_ns);
}

TDBG_TEST(TimeThatTdbgHasSpentComesFromThePhase) {
  StepClock clock;
  clock.Start();
  clock.Enter(Phase::kForward);
  Wait(30'000);
  clock.Spend(10'000);
  clock.SpendIn(Phase::kForward, 10'000);
  // No more than there is.
  clock.SpendIn(Phase::kBackward, 10'000);
  clock.Leave(Phase::kForward);
  clock.EndStep(Train(0));
  const StepRow row = clock.TakeRows().at(0);
  EXPECT_EQ(Of(row, Phase::kCapture), 20'000);
  EXPECT_EQ(Of(row, Phase::kBackward), 0);
  EXPECT_EQ(Sum(row), row.duration_ns);
}

TDBG_TEST(AClockThatIsOffMeasuresNothing) {
  StepClock clock;
  clock.Enter(Phase::kForward);
  EXPECT_FALSE(clock.EndStep(Train(0)));
  clock.Start();
  clock.set_is_repeating(true);
  clock.Enter(Phase::kForward);
  EXPECT_EQ(clock.phase(), Phase::kOther);
  clock.set_is_repeating(false);
  clock.Stop();
  clock.EndStep(Train(0));
  EXPECT_EQ(clock.TakeRows().size(), 0U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
