// Taps: tensors that a compiled program shows while it runs, at places that
// were marked when it was compiled.
//
// A compiled program calls TapSteps::Take on threads of its own, later than the
// call that started it returned, several parts of a tensor at once.  What that
// reduces or copies waits in the program's step, a list for each execution,
// until whoever opened the step takes it.  Nothing here knows the framework.
//
// An execution is told apart by its ticket, which travels through the program
// as an operand: no flag could say "now", since the program may run behind.
//
// Thread safety: all methods may be called from any thread.  Take takes no lock
// and waits for nobody; Open and Close share a lock that Take does not know.
//
// Errors: Take reports none.  What it cannot keep (no memory, a bound, a step
// that is closed) is counted.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "capture/unit_summary_spec.h"
#include "reducers/reduce.h"
#include "tensor/dtype.h"
#include "tensor/summary.h"
#include "tensor/tensor_view.h"

namespace tdbg {

// What is taken of the tensors that one tap shows.
struct TapRequest {
  std::int64_t tap = 0;
  bool takes_row = false;
  bool takes_units = false;
  // Elements are copied if all together have at most so many bytes; 0: none
  // are.
  std::uint64_t copy_limit = 0;
  UnitSummarySpec units = {};
};

// What is taken at a step; constant after construction.
class TapPlan {
 public:
  // Of each tap there is one request at most; the others show nothing.
  // `most_bytes` bounds what the copies of one step may occupy.
  TapPlan(std::vector<TapRequest> requests, bool precise,
          std::uint64_t most_bytes);

  // Null where nothing is taken.
  [[nodiscard]] const TapRequest* Find(std::int64_t tap) const;
  [[nodiscard]] bool precise() const { return precise_; }
  [[nodiscard]] std::uint64_t most_bytes() const { return most_bytes_; }

 private:
  std::vector<TapRequest> requests_;  // By tap, ascending.
  bool precise_;
  std::uint64_t most_bytes_;
};

// Which part of a tensor a device shows.
struct TapPart {
  // Tells apart the parts of a tensor of which nobody knows the places.
  std::int32_t number = 0;
  // Where the part lies in the whole; empty: it is the whole, or nobody knows.
  std::span<const std::int64_t> global_shape = {};
  std::span<const std::int64_t> global_offset = {};
};

// What was taken of one part of a tensor that a tap showed.
struct TapResult {
  std::int64_t tap = 0;
  std::int32_t part = 0;
  DType dtype = DType::kInvalid;
  std::vector<std::int64_t> shape, global_shape, global_offset;

  bool has_row = false;
  Summary row;
  bool has_values = false;
  std::vector<std::byte> values;  // In C order.
  std::vector<UnitCounts> units;  // Empty: not asked for, or no dimension.

  TapResult* next = nullptr;  // In the list of its step.
};

class TapSteps {
 public:
  // So many steps may be open at once; a training is never that far behind.
  static constexpr std::size_t kMaxOpen = 64;
  static constexpr std::int64_t kNoTicket = 0;

  // The steps of this process.  Never destroyed: a program may still run while
  // the process ends.
  static TapSteps& OfProcess();

  TapSteps() = default;
  ~TapSteps();
  TapSteps(const TapSteps&) = delete;
  TapSteps& operator=(const TapSteps&) = delete;

  // Opens a step; kNoTicket if too many are open.  REQUIRES: `plan` is not
  // null.
  [[nodiscard]] std::int64_t Open(std::shared_ptr<const TapPlan> plan);

  // Opens the step with another plan.  REQUIRES: its program does not run yet.
  void Replace(std::int64_t ticket, std::shared_ptr<const TapPlan> plan);

  // Called by the program: takes what the plan of the step says.
  // REQUIRES: the memory of `view` does not change during the call; it lies in
  // C order, on the CPU.
  void Take(std::int64_t ticket, std::int64_t tap, const TapPart& part,
            const TensorView& view) noexcept;

  // Closes the step and returns its results, in the order in which they came.
  // REQUIRES: the execution is over: what a call that is still under way takes
  // is lost.
  std::vector<std::unique_ptr<TapResult>> Close(std::int64_t ticket);

  // How many tensors could not be kept.
  [[nodiscard]] std::uint64_t n_lost() const {
    return n_lost_.load(std::memory_order_relaxed);
  }
  // How many steps are open.
  [[nodiscard]] std::size_t n_open();

 private:
  struct Step {
    std::atomic<std::int64_t> ticket{kNoTicket};
    std::atomic<std::int32_t> n_takers{0};
    std::atomic<std::uint64_t> n_bytes{0};
    std::atomic<TapResult*> latest{nullptr};
    // Written while no ticket stands and nobody takes.
    std::shared_ptr<const TapPlan> plan;
  };

  Step& StepOf(std::int64_t ticket) {
    return steps_[static_cast<std::size_t>(ticket) % kMaxOpen];
  }
  void TakeInto(Step& step, std::int64_t tap, const TapPart& part,
                const TensorView& view);
  std::vector<std::unique_ptr<TapResult>> Results(Step& step);

  std::array<Step, kMaxOpen> steps_;
  std::atomic<std::uint64_t> n_lost_{0};
  Mutex mutex_;  // Of those who open and close.
  std::int64_t latest_ticket_ TDBG_GUARDED_BY(mutex_) = kNoTicket;
};

}  // namespace tdbg
