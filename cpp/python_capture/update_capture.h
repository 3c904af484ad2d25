// UpdateCapture captures what an optimizer's step changes in parameters: the
// parameters after the step, less the parameters before it.
//
// It copies the parameters before the step, into memory of its own, and reduces
// the differences where both lie.  Parameters that BatchCapture captures in
// between Begin and Copy are copied in the pass that reduces them.  Memory is
// kept from one step to the next where the caller says so, or where it is
// little: new pages cost more than the copy.
//
// Thread safety: call with the GIL held; Copy and End release it.
//
// Errors: throws pybind11::error_already_set where Python raised.

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/huge_memory.h"
#include "python_capture/batch_capture.h"

namespace tdbg::python_capture {

class UpdateCapture {
 public:
  explicit UpdateCapture(pybind11::object batch);
  ~UpdateCapture();
  UpdateCapture(const UpdateCapture&) = delete;
  UpdateCapture& operator=(const UpdateCapture&) = delete;

  // An optimizer is about to step.  Returns the indices of the parameters that
  // cannot be copied here: not on the CPU, not dense, or of another element
  // type than the usual floats.
  std::vector<std::size_t> Begin(const pybind11::tuple& parameters);
  // Copies the parameters that nobody has copied since Begin.
  void Copy();
  // The optimizer has stepped: captures the updates of the parameters of Begin,
  // with the entries and flags of those that Begin took.  Returns the positions
  // among them of those that now have another shape, or cannot be read.
  std::vector<std::size_t> End(std::int64_t step,
                               const pybind11::tuple& entries,
                               const pybind11::tuple& flags, bool keeps_memory);
  // The step will not end.  Frees the memory.
  void Forget();

  // Memory that is held.
  [[nodiscard]] std::uint64_t n_bytes() const { return memory_.size(); }

 private:
  const pybind11::object owner_;  // Keeps `batch_` alive.
  BatchCapture& batch_;
  HugeMemory memory_;
  pybind11::tuple parameters_;      // Those of Begin.
  std::vector<std::size_t> taken_;  // Which of these, in the order of copies_.
  std::vector<TensorCopy> copies_;
};

}  // namespace tdbg::python_capture
