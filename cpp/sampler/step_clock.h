// StepClock divides the time of a training's thread into steps, and each step
// into phases.  Phases nest, and each nanosecond belongs to the innermost one:
// the phases of a step add up exactly to the time since the step before it
// ended.  docs/profiler-steps.md says what the phases mean.
//
// What interrupts a phase (the garbage collector, tdbg itself) lies above all
// phases: a phase may begin or end meanwhile, and its time begins or ends with
// the interruption.
//
// Thread safety: one call at a time, of any thread; the caller sees to it (in
// Python, the GIL does).  Time is that of the owner, the thread that ended the
// latest step; others change nothing, unless they stand in for the owner.
// phase() and global_step() may be read from any thread, and from a signal
// handler, at any time.
//
// Errors: none.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tdbg {

// On disk; tdbg.run.profile_tables.Phase says what each one is.
enum class Phase : std::int32_t {
  kOther = 0,
  kDataWait = 1,
  kCopy = 2,
  kForward = 3,
  kBackward = 4,
  kCommunication = 5,
  kOptimizer = 6,
  kGc = 7,
  kCompile = 8,
  kCheckpoint = 9,
  kEvaluation = 10,
  kCapture = 11,
  kCompute = 12,
};
inline constexpr std::size_t kPhases = 13;

// A row of the table `step`, as it is on disk.
struct StepRow {
  std::int64_t time = 0;  // When the step ended.
  std::int64_t global_step = -1;
  std::int64_t mode_step = -1;
  std::int32_t mode = 0;
  std::int32_t micro_batches = 0;
  std::int64_t duration_ns = 0;
  std::array<std::int64_t, kPhases> phase_ns{};
  std::int64_t samples = -1;
  std::int64_t tokens = -1;
  std::int64_t copied_bytes = -1;
  std::int64_t gpu_ns = -1;
  std::int32_t dry_borders = -1;
  std::int32_t borders = -1;
};
static_assert(sizeof(StepRow) == 184);

class StepClock {
 public:
  // What a step is called, once its session knows.
  struct Number {
    std::int64_t global_step = -1;
    std::int64_t mode_step = -1;
    std::int32_t mode = 0;
    std::int32_t micro_batches = 0;
  };

  // Begins the first step now; the calling thread becomes the owner.
  void Start();
  // Measures nothing from now on; rows that are there stay.
  void Stop();
  [[nodiscard]] bool is_on() const { return is_on_; }

  // Begins a phase inside the present one; REQUIRES: 0 <= phase < kPhases.
  void Enter(Phase phase);
  // Ends the innermost phase of this kind, with all inside it; nothing happens
  // if there is none.
  void Leave(Phase phase);
  // Ends the innermost phase.
  void LeaveInnermost();

  // From StandIn to StandDown, the calling thread acts for the owner, which
  // waits for it: a framework calls Python from a thread of its own.  The
  // phases that are under way before go on, also beyond the end of a step.
  void StandIn();
  void StandDown();

  // What a loss is, which belongs to the forward before it: a forward, or an
  // evaluation.
  [[nodiscard]] Phase loss_phase() const {
    return is_evaluating_ ? Phase::kEvaluation : Phase::kForward;
  }

  // Begin and end what interrupts; return the time.  They must be paired.
  std::int64_t BeginInterruption(Phase phase);
  std::int64_t EndInterruption();

  // Gives time to tdbg that the present phase has taken, or `from`.
  void Spend(std::int64_t ns);
  void SpendIn(Phase from, std::int64_t ns);
  // Gives time to `to` that the present phase has just taken.
  void Move(Phase to, std::int64_t ns);

  // Adds the batch of the latest forward to the step, or to the evaluation;
  // only the first one of each forward counts.  Negative: unknown.
  void AddBatch(std::int64_t samples, std::int64_t tokens);
  [[nodiscard]] bool awaits_batch() const {
    return awaits_batch_ && !is_repeating_ && IsMine();
  }

  // Ends the step, whose number is not known yet.  No phase is under way then,
  // but for those of an owner that somebody stands in for.
  void EndStep();
  // Ends the step; returns whether rows are due to be written.  Those before it
  // that have no number get none.
  bool EndStep(const Number& number);
  // Gives numbers to the oldest steps without one: to `n` of them, consecutive
  // ones, of which `last` is the last one's.  If there are fewer steps, the
  // earliest of these numbers are left out.  Returns whether rows are due.
  bool NumberSteps(std::int64_t n, const Number& last);

  // Ends a forward of evaluation: a row begins where the latest step ended,
  // whether of training or of evaluation.
  void EndEvaluation();
  // Keeps the row of the latest evaluation, or forgets it: its forward turned
  // out to be one of training.
  void KeepEvaluation(const Number& number);
  void ForgetEvaluation();

  // While this is so, phases neither begin nor end: events are reported again.
  void set_is_repeating(bool is_repeating) { is_repeating_ = is_repeating; }

  // Returns the rows that are complete, and forgets them.
  std::vector<StepRow> TakeRows();
  // Rows that were lost because nobody took them.
  [[nodiscard]] std::int64_t n_lost() const { return n_lost_; }

  [[nodiscard]] Phase phase() const {
    return phase_.load(std::memory_order_relaxed);
  }
  // Of the step that ended last and has a number; -1: none.
  [[nodiscard]] std::int64_t global_step() const {
    return global_step_.load(std::memory_order_relaxed);
  }
  // The step under way, where others may have passed that have no number yet.
  [[nodiscard]] std::int64_t coming_step() const {
    return global_step() + n_unnumbered_.load(std::memory_order_relaxed) + 1;
  }
  // How many steps of training have ended.
  [[nodiscard]] std::int64_t n_steps() const {
    return n_steps_.load(std::memory_order_relaxed);
  }

 private:
  // Phases under way, the innermost last; those beyond the room are not noted.
  struct Stack {
    std::array<Phase, 24> phases{};
    std::size_t size = 0;

    void Push(Phase phase) {
      if (size < phases.size()) phases[size++] = phase;
    }
  };
  struct Batch {
    std::int64_t samples = -1;
    std::int64_t tokens = -1;

    void Add(std::int64_t more_samples, std::int64_t more_tokens);
  };
  using PhaseTimes = std::array<std::int64_t, kPhases>;

  [[nodiscard]] bool IsMine() const;
  void Adopt();
  // Gives the time since the last call to the phase under way.
  std::int64_t Charge();
  void ShowPhase();
  std::int64_t& Time(Phase phase) {
    return times_[static_cast<std::size_t>(phase)];
  }
  // What of it no row holds yet.
  [[nodiscard]] std::int64_t NewTime(Phase phase) const {
    const auto at = static_cast<std::size_t>(phase);
    return times_[at] - marked_times_[at];
  }
  void Add(const StepRow& row);
  [[nodiscard]] bool IsDue(std::int64_t now_ns) const;

  bool is_on_ = false;
  bool is_repeating_ = false;
  const void* owner_ = nullptr;
  const void* stand_in_ = nullptr;
  std::size_t n_phases_of_owner_ = 0;
  Stack phases_;
  Stack interruptions_;
  // Since the latest step of training ended; until `now_ns_`.
  PhaseTimes times_{};
  std::int64_t step_ns_ = 0;
  std::int64_t now_ns_ = 0;
  Batch batch_;
  bool awaits_batch_ = false;
  // The same when the latest step of evaluation ended, or of training.
  PhaseTimes marked_times_{};
  std::int64_t marked_ns_ = 0;
  Batch evaluated_;
  StepRow evaluation_;
  bool has_evaluation_ = false;
  // Whether the latest forward was one of evaluation.
  bool is_evaluating_ = false;
  // Complete rows, then those without a number.
  std::vector<StepRow> rows_;
  std::vector<StepRow> unnumbered_;
  std::int64_t taken_ns_ = 0;
  std::int64_t n_lost_ = 0;
  std::atomic<Phase> phase_{Phase::kOther};
  std::atomic<std::int64_t> global_step_{-1};
  std::atomic<std::int64_t> n_unnumbered_{0};
  std::atomic<std::int64_t> n_steps_{0};
};

}  // namespace tdbg
