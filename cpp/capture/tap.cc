#include "capture/tap.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tdbg {
namespace {

std::vector<std::int64_t> CopyOf(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

}  // namespace

TapPlan::TapPlan(std::vector<TapRequest> requests, bool precise,
                 std::uint64_t most_bytes)
    : requests_(std::move(requests)),
      precise_(precise),
      most_bytes_(most_bytes) {
  std::sort(
      requests_.begin(), requests_.end(),
      [](const TapRequest& a, const TapRequest& b) { return a.tap < b.tap; });
}

const TapRequest* TapPlan::Find(std::int64_t tap) const {
  const auto found =
      std::lower_bound(requests_.begin(), requests_.end(), tap,
                       [](const TapRequest& request, std::int64_t t) {
                         return request.tap < t;
                       });
  return found == requests_.end() || found->tap != tap ? nullptr : &*found;
}

TapSteps& TapSteps::OfProcess() {
  static auto* const steps = new TapSteps;
  return *steps;
}

TapSteps::~TapSteps() {
  for (Step& step : steps_) {
    Results(step);
  }
}

std::int64_t TapSteps::Open(std::shared_ptr<const TapPlan> plan) {
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < kMaxOpen; ++i) {
    const std::int64_t ticket = ++latest_ticket_;
    Step& step = StepOf(ticket);
    if (step.ticket.load() != kNoTicket || step.n_takers.load() != 0) continue;
    // What came too late for the step before.
    n_lost_.fetch_add(Results(step).size(), std::memory_order_relaxed);
    step.n_bytes.store(0, std::memory_order_relaxed);
    step.plan = std::move(plan);
    step.ticket.store(ticket);
    return ticket;
  }
  return kNoTicket;
}

void TapSteps::Replace(std::int64_t ticket,
                       std::shared_ptr<const TapPlan> plan) {
  const MutexLock lock(mutex_);
  if (ticket <= kNoTicket) return;
  Step& step = StepOf(ticket);
  if (step.ticket.load() == ticket) step.plan = std::move(plan);
}

void TapSteps::Take(std::int64_t ticket, std::int64_t tap, const TapPart& part,
                    const TensorView& view) noexcept {
  if (ticket <= kNoTicket) return;
  Step& step = StepOf(ticket);
  // Announced before the ticket is looked at, as Close looks at it after it has
  // withdrawn the ticket: one of both sees the other.
  step.n_takers.fetch_add(1);
  if (step.ticket.load() == ticket) {
    try {
      TakeInto(step, tap, part, view);
    } catch (...) {  // No memory.
      n_lost_.fetch_add(1, std::memory_order_relaxed);
    }
  } else {
    n_lost_.fetch_add(1, std::memory_order_relaxed);
  }
  step.n_takers.fetch_sub(1);
}

void TapSteps::TakeInto(Step& step, std::int64_t tap, const TapPart& part,
                        const TensorView& view) {
  const TapPlan& plan = *step.plan;
  const TapRequest* const request = plan.Find(tap);
  if (request == nullptr) return;
  auto result = std::make_unique<TapResult>();
  result->tap = tap;
  result->part = part.number;
  result->dtype = view.dtype;
  result->shape = CopyOf(view.shape);
  result->global_shape = CopyOf(part.global_shape);
  result->global_offset = CopyOf(part.global_offset);
  const bool has_statistics = HasStatistics(view.dtype);
  if (request->takes_row && has_statistics) {
    result->row = Reduce(view, {.precise = plan.precise()});
    result->has_row = true;
  }
  if (request->takes_units && has_statistics && !view.shape.empty()) {
    const UnitSummarySpec& spec = request->units;
    const std::size_t axis = spec.Axis(view.shape.size());
    result->units.resize(static_cast<std::size_t>(view.shape[axis]));
    CountUnits(view, axis, spec.CountedLow(), spec.CountedHigh(),
               result->units);
  }
  const std::uint64_t n_bytes = view.n_bytes();
  if (request->copy_limit > 0 && n_bytes <= request->copy_limit) {
    if (step.n_bytes.fetch_add(n_bytes, std::memory_order_relaxed) + n_bytes <=
        plan.most_bytes()) {
      result->values.resize(n_bytes);
      if (n_bytes > 0) std::memcpy(result->values.data(), view.data, n_bytes);
      result->has_values = true;
    } else {
      n_lost_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  TapResult* const added = result.release();
  added->next = step.latest.load(std::memory_order_relaxed);
  while (!step.latest.compare_exchange_weak(added->next, added,
                                            std::memory_order_release,
                                            std::memory_order_relaxed)) {
  }
}

std::vector<std::unique_ptr<TapResult>> TapSteps::Close(std::int64_t ticket) {
  const MutexLock lock(mutex_);
  if (ticket <= kNoTicket) return {};
  Step& step = StepOf(ticket);
  if (step.ticket.load() != ticket) return {};
  step.ticket.store(kNoTicket);
  return Results(step);
}

std::size_t TapSteps::n_open() {
  return static_cast<std::size_t>(std::count_if(
      steps_.begin(), steps_.end(),
      [](const Step& step) { return step.ticket.load() != kNoTicket; }));
}

std::vector<std::unique_ptr<TapResult>> TapSteps::Results(Step& step) {
  std::vector<std::unique_ptr<TapResult>> results;
  TapResult* each = step.latest.exchange(nullptr, std::memory_order_acquire);
  while (each != nullptr) {
    results.emplace_back(each);
    each = each->next;
  }
  std::reverse(results.begin(), results.end());
  return results;
}

}  // namespace tdbg
