// What taps show while a program runs is what whoever opened the step gets.

#include "capture/tap.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "reducers/reduce.h"
#include "testing.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kRoom = 1 << 20;

const std::array<float, 4> kValues = {1, -2, 3, 0};
const std::array<std::int64_t, 2> kShape = {2, 2};

TensorView View(const float* data, std::span<const std::int64_t> shape) {
  return {.data = data,
          .dtype = DType::kFloat32,
          .item_size = 4,
          .shape = shape,
          .strides = {}};
}

std::shared_ptr<const TapPlan> PlanOf(std::vector<TapRequest> requests,
                                      std::uint64_t most_bytes = kRoom) {
  return std::make_shared<TapPlan>(std::move(requests), false, most_bytes);
}

TDBG_TEST(AResultIsTheRowOfTheTensorThatWasShown) {
  TapSteps steps;
  const auto ticket = steps.Open(PlanOf({{.tap = 7, .takes_row = true}}));
  const TensorView view = View(kValues.data(), kShape);
  steps.Take(ticket, 7, {}, view);
  const auto results = steps.Close(ticket);
  EXPECT_EQ(results.size(), 1U);
  const Summary expected = Reduce(view);
  EXPECT_TRUE(results[0]->has_row);
  EXPECT_EQ(std::memcmp(&results[0]->row, &expected, sizeof expected), 0);
  EXPECT_EQ(results[0]->shape, std::vector<std::int64_t>({2, 2}));
  EXPECT_TRUE(!results[0]->has_values);
  EXPECT_TRUE(results[0]->units.empty());
}

TDBG_TEST(OnlyWhatThePlanHasIsTaken) {
  TapSteps steps;
  const auto ticket = steps.Open(
      PlanOf({{.tap = 3, .takes_row = true}, {.tap = 1, .takes_units = true}}));
  for (std::int64_t tap = 0; tap < 5; ++tap) {
    steps.Take(ticket, tap, {}, View(kValues.data(), kShape));
  }
  const auto results = steps.Close(ticket);
  EXPECT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0]->tap, 1);
  EXPECT_TRUE(!results[0]->has_row);
  EXPECT_EQ(results[0]->units.size(), 2U);
  EXPECT_EQ(results[0]->units[0].active, 2U);
  EXPECT_EQ(results[0]->units[1].active, 0U);
  EXPECT_EQ(results[1]->tap, 3);
  EXPECT_EQ(steps.n_lost(), 0U);
}

TDBG_TEST(ElementsAreCopiedUpToTheLimitOfTheTapAndTheBoundOfTheStep) {
  TapSteps steps;
  const auto ticket = steps.Open(PlanOf({{.tap = 1, .copy_limit = kAnySize},
                                         {.tap = 2, .copy_limit = 15},
                                         {.tap = 3, .copy_limit = kAnySize}},
                                        20));
  for (std::int64_t tap = 1; tap <= 3; ++tap) {
    steps.Take(ticket, tap, {}, View(kValues.data(), kShape));
  }
  const auto results = steps.Close(ticket);
  EXPECT_EQ(results.size(), 3U);
  EXPECT_TRUE(results[0]->has_values);
  EXPECT_EQ(std::memcmp(results[0]->values.data(), kValues.data(), 16), 0);
  EXPECT_TRUE(!results[1]->has_values);
  EXPECT_TRUE(!results[2]->has_values);
  EXPECT_EQ(steps.n_lost(), 1U);
}

TDBG_TEST(PartsKeepTheirNumbersAndPlaces) {
  TapSteps steps;
  const auto ticket = steps.Open(PlanOf({{.tap = 1, .takes_row = true}}));
  const std::array<std::int64_t, 2> whole = {4, 2};
  const std::array<std::int64_t, 2> offset = {2, 0};
  steps.Take(ticket, 1,
             {.number = 5, .global_shape = whole, .global_offset = offset},
             View(kValues.data(), kShape));
  const auto results = steps.Close(ticket);
  EXPECT_EQ(results[0]->part, 5);
  EXPECT_EQ(results[0]->global_shape, std::vector<std::int64_t>({4, 2}));
  EXPECT_EQ(results[0]->global_offset, std::vector<std::int64_t>({2, 0}));
}

TDBG_TEST(ATensorWithoutElementsAndAScalarAreShown) {
  TapSteps steps;
  const auto ticket = steps.Open(PlanOf(
      {{.tap = 1, .takes_row = true, .takes_units = true, .copy_limit = 64}}));
  const std::array<std::int64_t, 1> none = {0};
  steps.Take(ticket, 1, {}, View(nullptr, none));
  steps.Take(ticket, 1, {}, View(kValues.data(), {}));
  const auto results = steps.Close(ticket);
  EXPECT_EQ(results[0]->row.count, 0U);
  EXPECT_TRUE(results[0]->has_values);
  EXPECT_EQ(results[1]->row.count, 1U);
  EXPECT_TRUE(results[1]->units.empty());
}

TDBG_TEST(WhatComesToAClosedStepIsLostAndCounted) {
  TapSteps steps;
  const auto plan = PlanOf({{.tap = 1, .takes_row = true}});
  const auto first = steps.Open(plan);
  EXPECT_EQ(steps.n_open(), 1U);
  EXPECT_TRUE(steps.Close(first).empty());
  EXPECT_EQ(steps.n_open(), 0U);
  steps.Take(first, 1, {}, View(kValues.data(), kShape));
  steps.Take(TapSteps::kNoTicket, 1, {}, View(kValues.data(), kShape));
  EXPECT_EQ(steps.n_lost(), 1U);
  const auto second = steps.Open(plan);
  EXPECT_TRUE(second != first);
  EXPECT_TRUE(steps.Close(second).empty());
  EXPECT_TRUE(steps.Close(second).empty());
}

TDBG_TEST(APlanMayBeReplacedBeforeTheProgramRuns) {
  TapSteps steps;
  const auto ticket = steps.Open(PlanOf({}));
  steps.Replace(ticket, PlanOf({{.tap = 1, .takes_row = true}}));
  steps.Replace(ticket + 1, PlanOf({}));
  steps.Take(ticket, 1, {}, View(kValues.data(), kShape));
  EXPECT_EQ(steps.Close(ticket).size(), 1U);
}

TDBG_TEST(ThereIsNoTicketWhereTooManyStepsAreOpen) {
  TapSteps steps;
  const auto plan = PlanOf({{.tap = 1, .takes_row = true}});
  std::vector<std::int64_t> tickets;
  for (std::size_t i = 0; i < TapSteps::kMaxOpen; ++i) {
    tickets.push_back(steps.Open(plan));
    EXPECT_TRUE(tickets.back() != TapSteps::kNoTicket);
  }
  EXPECT_EQ(steps.Open(plan), TapSteps::kNoTicket);
  EXPECT_TRUE(steps.Close(tickets[20]).empty());
  const auto next = steps.Open(plan);
  EXPECT_TRUE(next != TapSteps::kNoTicket);
  EXPECT_TRUE(next > tickets.back());
}

TDBG_TEST(ManyThreadsShowAtOnceAndNothingIsLost) {
  constexpr int kThreads = 4, kEach = 500;
  TapSteps steps;
  const auto ticket = steps.Open(PlanOf({{.tap = 1, .takes_row = true}}));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < kEach; ++k) {
        steps.Take(ticket, 1, {.number = i * kEach + k},
                   View(kValues.data(), kShape));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const auto results = steps.Close(ticket);
  std::set<std::int32_t> parts;
  std::array<std::int32_t, kThreads> latest;
  latest.fill(-1);
  for (const auto& each : results) {
    parts.insert(each->part);
    // In the order of each thread.
    std::int32_t& before =
        latest.at(static_cast<std::size_t>(each->part / kEach));
    EXPECT_TRUE(each->part > before);
    before = each->part;
  }
  EXPECT_EQ(parts.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(steps.n_lost(), 0U);
}

TDBG_TEST(StepsMayCloseWhileProgramsThatAreLateStillShow) {
  constexpr int kSteps = 300;
  TapSteps steps;
  std::atomic<std::int64_t> ticket{TapSteps::kNoTicket};
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> n_shown{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!is_over.load()) {
        if (ticket.load() == TapSteps::kNoTicket) continue;
        steps.Take(ticket.load(), 1, {}, View(kValues.data(), kShape));
        ++n_shown;
      }
    });
  }
  std::uint64_t n_found = 0;
  for (int i = 0; i < kSteps; ++i) {
    // A plan of its own: one that is freed too early is found by the
    // sanitizers.
    const auto opened = steps.Open(PlanOf({{.tap = 1, .takes_row = true}}));
    if (opened == TapSteps::kNoTicket) continue;
    ticket.store(opened);
    std::this_thread::yield();
    n_found += steps.Close(opened).size();
  }
  is_over.store(true);
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(n_found + steps.n_lost() <= n_shown.load());
  EXPECT_EQ(steps.n_open(), 0U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
