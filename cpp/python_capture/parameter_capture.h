// ParameterCapture captures a module's parameters and their gradients in one
// call.  It looks each parameter up in its module at every step, since a module
// may replace it.
//
// Thread safety: call with the GIL held.
//
// Errors: throws pybind11::error_already_set where Python raised (a property
// that raises); then nothing was captured.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "python_capture/batch_capture.h"

namespace tdbg::python_capture {

class ParameterCapture {
 public:
  // Each of `parameters` is a tuple: a weak reference to the module, the name
  // of the parameter in it, the entry and the flags of the parameter, and the
  // entry and the flags of its gradient.  Raises TypeError for anything else.
  ParameterCapture(pybind11::object batch,
                   const pybind11::iterable& parameters);

  // Captures the parameters and gradients that exist now.  Returns None, or a
  // list of those that cannot be read: tuples (number, tensor), where number is
  // twice the position in `parameters`, plus one for a gradient.
  pybind11::object Take(std::int64_t step);

  // The numbers of the tensors that existed at the last Take.
  [[nodiscard]] std::vector<std::size_t> Found() const { return found_; }

 private:
  struct Parameter {
    pybind11::object owner;
    pybind11::object key;
    pybind11::object weight_object;  // Keeps `weight` alive.
    pybind11::object gradient_object;
    TensorEntry* weight = nullptr;
    long weight_flags = 0;
    TensorEntry* gradient = nullptr;
    long gradient_flags = 0;
  };

  const pybind11::object owner_;  // Keeps `batch_` alive.
  BatchCapture& batch_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> found_;
};

}  // namespace tdbg::python_capture
