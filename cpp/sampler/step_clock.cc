#include "sampler/step_clock.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tdbg {
namespace {

// Rows are written about once a second.
constexpr std::int64_t kRowsNs = 1'000'000'000;
// Nobody takes them: the run cannot be written.
constexpr std::size_t kMostRows = 1 << 16;

// Differs between the threads of a process.
const void* ThisThread() {
  static thread_local char here = 0;
  return &here;
}

}  // namespace

void StepClock::Batch::Add(std::int64_t more_samples,
                           std::int64_t more_tokens) {
  if (more_samples >= 0)
    samples = std::max<std::int64_t>(samples, 0) + more_samples;
  if (more_tokens >= 0)
    tokens = std::max<std::int64_t>(tokens, 0) + more_tokens;
}

void StepClock::Start() {
  Adopt();
  is_on_ = true;
  times_ = marked_times_ = {};
  now_ns_ = step_ns_ = marked_ns_ = taken_ns_ = MonotonicNs();
}

void StepClock::Stop() {
  is_on_ = false;
  phase_.store(Phase::kOther, std::memory_order_relaxed);
}

bool StepClock::IsMine() const {
  const void* here = ThisThread();
  return is_on_ && (owner_ == here || stand_in_ == here);
}

void StepClock::StandIn() {
  stand_in_ = ThisThread();
  n_phases_of_owner_ = phases_.size;
}

void StepClock::StandDown() {
  stand_in_ = nullptr;
  n_phases_of_owner_ = 0;
}

void StepClock::Adopt() {
  owner_ = ThisThread();
  phases_.size = interruptions_.size = 0;
  ShowPhase();
}

std::int64_t StepClock::Charge() {
  const std::int64_t now_ns = MonotonicNs();
  Time(phase()) += now_ns - now_ns_;
  now_ns_ = now_ns;
  return now_ns;
}

void StepClock::ShowPhase() {
  const Stack& stack = interruptions_.size > 0 ? interruptions_ : phases_;
  phase_.store(stack.size > 0 ? stack.phases[stack.size - 1] : Phase::kOther,
               std::memory_order_relaxed);
}

void StepClock::Enter(Phase phase) {
  if (is_repeating_ || !IsMine()) return;
  if (interruptions_.size == 0) Charge();
  if (phase == Phase::kForward) is_evaluating_ = false;
  awaits_batch_ |= phase == Phase::kForward || phase == Phase::kEvaluation ||
                   phase == Phase::kCompute;
  phases_.Push(phase);
  ShowPhase();
}

void StepClock::Leave(Phase phase) {
  if (is_repeating_ || !IsMine()) return;
  std::size_t size = phases_.size;
  while (size > 0 && phases_.phases[size - 1] != phase) --size;
  if (size == 0) return;
  if (interruptions_.size == 0) Charge();
  phases_.size = size - 1;
  ShowPhase();
}

void StepClock::LeaveInnermost() {
  if (phases_.size > 0) Leave(phases_.phases[phases_.size - 1]);
}

std::int64_t StepClock::BeginInterruption(Phase phase) {
  if (!IsMine()) return MonotonicNs();
  const std::int64_t now_ns = Charge();
  interruptions_.Push(phase);
  phase_.store(phase, std::memory_order_relaxed);
  return now_ns;
}

std::int64_t StepClock::EndInterruption() {
  if (!IsMine() || interruptions_.size == 0) return MonotonicNs();
  const std::int64_t now_ns = Charge();
  --interruptions_.size;
  ShowPhase();
  return now_ns;
}

void StepClock::Spend(std::int64_t ns) {
  if (!IsMine()) return;
  Charge();
  SpendIn(phase(), ns);
}

void StepClock::SpendIn(Phase from, std::int64_t ns) {
  if (!IsMine()) return;
  const std::int64_t moved = std::clamp<std::int64_t>(ns, 0, NewTime(from));
  Time(from) -= moved;
  Time(Phase::kCapture) += moved;
}

void StepClock::Move(Phase to, std::int64_t ns) {
  if (!IsMine()) return;
  Charge();
  const std::int64_t moved = std::clamp<std::int64_t>(ns, 0, NewTime(phase()));
  Time(phase()) -= moved;
  Time(to) += moved;
}

void StepClock::AddBatch(std::int64_t samples, std::int64_t tokens) {
  if (!awaits_batch()) return;
  awaits_batch_ = false;
  const bool evaluates = phases_.size > 0 &&
                         phases_.phases[phases_.size - 1] == Phase::kEvaluation;
  (evaluates ? evaluated_ : batch_).Add(samples, tokens);
}

void StepClock::EndStep() {
  if (!is_on_) return;
  if (!IsMine()) Adopt();
  StepRow row;
  row.time = Charge();
  row.duration_ns = row.time - step_ns_;
  row.phase_ns = times_;
  const Batch batch = std::exchange(batch_, {});
  row.samples = batch.samples;
  row.tokens = batch.tokens;
  if (unnumbered_.size() < kMostRows) {
    unnumbered_.push_back(row);
  } else {
    ++n_lost_;
  }
  times_ = marked_times_ = {};
  step_ns_ = marked_ns_ = row.time;
  phases_.size = std::min(phases_.size, n_phases_of_owner_);
  is_evaluating_ = false;
  ShowPhase();
  n_unnumbered_.fetch_add(1, std::memory_order_relaxed);
  n_steps_.fetch_add(1, std::memory_order_relaxed);
}

bool StepClock::EndStep(const Number& number) {
  EndStep();
  const auto n_earlier = static_cast<std::int64_t>(unnumbered_.size()) - 1;
  if (n_earlier > 0) {
    unnumbered_.erase(unnumbered_.begin(), unnumbered_.begin() + n_earlier);
    n_lost_ += n_earlier;
  }
  return NumberSteps(1, number);
}

bool StepClock::NumberSteps(std::int64_t n, const Number& last) {
  const auto n_there = static_cast<std::int64_t>(unnumbered_.size());
  const std::int64_t n_rows = std::min(n, n_there);
  for (std::int64_t i = 0; i < n_rows; ++i) {
    StepRow& row = unnumbered_[static_cast<std::size_t>(i)];
    const std::int64_t later = n_rows - 1 - i;
    row.global_step = last.global_step - later;
    row.mode_step = last.mode_step - later;
    row.mode = last.mode;
    row.micro_batches = last.micro_batches;
    Add(row);
  }
  unnumbered_.erase(unnumbered_.begin(), unnumbered_.begin() + n_rows);
  global_step_.store(last.global_step, std::memory_order_relaxed);
  n_unnumbered_.store(n_there - n_rows, std::memory_order_relaxed);
  return IsDue(now_ns_);
}

void StepClock::EndEvaluation() {
  if (is_repeating_ || !IsMine()) return;
  evaluation_ = {};
  evaluation_.time = Charge();
  evaluation_.duration_ns = evaluation_.time - marked_ns_;
  for (std::size_t i = 0; i < kPhases; ++i) {
    evaluation_.phase_ns[i] = times_[i] - marked_times_[i];
  }
  const Batch batch = std::exchange(evaluated_, {});
  evaluation_.samples = batch.samples;
  evaluation_.tokens = batch.tokens;
  has_evaluation_ = is_evaluating_ = true;
  marked_times_ = times_;
  marked_ns_ = evaluation_.time;
}

void StepClock::KeepEvaluation(const Number& number) {
  if (!std::exchange(has_evaluation_, false)) return;
  evaluation_.global_step = number.global_step;
  evaluation_.mode_step = number.mode_step;
  evaluation_.mode = number.mode;
  evaluation_.micro_batches = number.micro_batches;
  Add(evaluation_);
}

void StepClock::ForgetEvaluation() {
  if (!std::exchange(has_evaluation_, false)) return;
  is_evaluating_ = false;
  // A step that has ended since has taken the time with it.
  const std::int64_t ns = std::clamp<std::int64_t>(
      evaluation_.phase_ns[static_cast<std::size_t>(Phase::kEvaluation)], 0,
      Time(Phase::kEvaluation));
  for (auto* times : {&times_, &marked_times_}) {
    (*times)[static_cast<std::size_t>(Phase::kEvaluation)] -= ns;
    (*times)[static_cast<std::size_t>(Phase::kForward)] += ns;
  }
  batch_.Add(evaluation_.samples, evaluation_.tokens);
}

void StepClock::Add(const StepRow& row) {
  if (rows_.size() < kMostRows) {
    rows_.push_back(row);
  } else {
    ++n_lost_;
  }
}

bool StepClock::IsDue(std::int64_t now_ns) const {
  return !rows_.empty() && now_ns - taken_ns_ >= kRowsNs;
}

std::vector<StepRow> StepClock::TakeRows() {
  taken_ns_ = now_ns_;
  return std::exchange(rows_, {});
}

}  // namespace tdbg
