// Takes what is wanted of a framework's tensors, in one call for all of them,
// where the exchange API can read them; what it cannot read it hands back.
// Tensors on CUDA devices are put on the stream on which the framework works.
//
// Thread safety: call with the GIL held.  It is given away while much is read,
// so that another thread may call meanwhile.
//
// Errors: throws pybind11::error_already_set where Python did.

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "bindings/exchange.h"
#include "bindings/seen.h"
#include "bindings/slot.h"
#include "capture/capture.h"

namespace tdbg::bindings {

// What is wanted of a tensor: the flags of tdbg.capture.wants (a test compares
// them).
namespace want {
inline constexpr long kRows = 1;
inline constexpr long kValues = 2;
inline constexpr long kSmallValues = 4;
inline constexpr long kHistogram = 8;
inline constexpr long kUnits = 16;
inline constexpr long kLimitedValues = 32;
}  // namespace want

// Where and how the tensors of one call are taken.
struct Occasion {
  std::int64_t step = 0;
  CallSite site;
  double scale = 1.0;
  // Divides instead: a float32 on the CUDA device `divisor_device`, which no
  // one else can read.
  const void* divisor = nullptr;
  int divisor_device = kHost;
  // Whether rows of memory that this step has reduced already are copied.
  bool reuses = false;
};

// One tensor of a call; the caller keeps both objects alive.
struct Request {
  PyObject* tensor = nullptr;
  Slot* slot = nullptr;
  long wanted = 0;
};

// The forward under way, as far as hooks of modules need it.
struct Forward {
  bool is_open = false;
  bool has_data = false;     // Whether the context was told so.
  pybind11::object context;  // The step's, in Python.
  pybind11::object calls;    // A dict: how often each module was called.
  pybind11::object wants;    // What is wanted at the step.
  std::int64_t step = 0;
  std::uint16_t micro_batch = 0;
};

class Taker {
 public:
  // Of `types`, the first is that of plain tensors.
  Taker(Capture& capture, const pybind11::tuple& types);

  [[nodiscard]] bool CanRead() const { return !exchange_.empty(); }
  [[nodiscard]] std::uint64_t n_repeated() const { return n_repeated_; }
  // Values that were not kept because their slots have a limit.
  [[nodiscard]] std::uint64_t n_too_large() const { return n_too_large_; }
  [[nodiscard]] bool IsPlain(PyObject* object) const {
    return reinterpret_cast<PyObject*>(Py_TYPE(object)) == plain_.ptr();
  }

  // Reads a scale that lies on a device: a tensor of one float32.
  bool ReadDivisor(PyObject* tensor, Occasion* when) const;

  // Indices of the requests that this cannot read, or that their device leaves
  // to the framework.  If there are any of the first and `all_or_none`, nothing
  // is taken, and what a device leaves is refused.
  std::vector<std::size_t> Take(const Occasion& when,
                                std::span<const Request> requests,
                                bool all_or_none = false);

  // Begins to copy the values of those requests that lie, contiguous, on a
  // device with kernels; nothing else of them is taken.  Returns their indices.
  // Until Fence the caller keeps their memory, and what changes it while a copy
  // is under way spoils that copy.
  std::vector<std::size_t> BeginValues(std::int64_t step,
                                       std::span<const Request> requests);
  // Lets the current streams wait, on their devices, for the copies begun.
  void Fence();

  [[nodiscard]] Forward& forward() { return forward_; }

  // CUDA devices of which there were tensors.
  [[nodiscard]] const std::set<int>& devices() const { return devices_; }

  // Time spent in calls that nobody in Python measures.
  void Spend(std::int64_t nanoseconds) { spent_ns_ += nanoseconds; }
  [[nodiscard]] std::int64_t spent_ns() const { return spent_ns_; }

 private:
  struct Job {
    Exchanged read;
    std::uint32_t id = 0;
    std::uint32_t units_id = 0;
    UnitQuestion question;
    long wanted = 0;
    std::size_t request = 0;

    [[nodiscard]] CaptureItem item() const {
      return {.definition = id, .data = read.data, .strides = read.strides()};
    }
  };
  // Memory of a call, used again by the next one.
  struct Scratch {
    std::vector<Job> jobs;
    std::vector<PyObject*> tensors;  // Of the jobs.
    std::vector<CaptureItem> rows;
  };

  // Whether a tensor that was read can be taken here now.
  bool CanTake(const Occasion& when, const Job& job);
  void TakeAll(const Occasion& when, Scratch* scratch,
               std::vector<std::size_t>* left);
  // All that lie on one device.
  void TakeOnDevice(const Occasion& when, const Scratch& scratch, int device,
                    std::vector<std::size_t>* left);
  // Whether the row is a copy of one that the step has.
  bool Repeats(const Occasion& when, PyObject* tensor, const Job& job,
               void* stream = nullptr);
  static bool WantsValues(const Occasion& when, const Job& job);
  // Wants the values of a job if they are small enough for its slot.
  void Limit(const Occasion& when, Slot* slot, Job* job);
  void TakeRest(const Occasion& when, const Job& job);

  Capture& capture_;
  const Exchange exchange_;
  const pybind11::object plain_;
  Seen seen_;
  Forward forward_;
  Scratch spare_;
  std::set<int> devices_;
  std::set<int> unfenced_;  // Devices with copies of BeginValues.
  std::uint64_t n_repeated_ = 0;
  std::uint64_t n_too_large_ = 0;
  std::int64_t spent_ns_ = 0;
};

}  // namespace tdbg::bindings
