// ModuleCallCapture captures the input and the output of a module's call as its
// hook receives them, without running Python code.  It handles the common case:
// the first call of the module in a forward pass, with one plain tensor each,
// after Prepare.  Every other call it leaves to Python, untouched.
//
// Thread safety: call with the GIL held.
//
// Errors: none.  A call that fails is left to Python, which meets the same
// error and counts it.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "python_capture/batch_capture.h"

namespace tdbg::python_capture {

class ModuleCallCapture {
 public:
  // `key` names the module in the dict of calls.  `backward_id` is called
  // without arguments and returns -1 unless autograd is running.
  ModuleCallCapture(pybind11::object batch, pybind11::object key,
                    pybind11::object backward_id);

  // Sets what to capture of input and output at the steps with this capture
  // request (compared by identity): an entry, or None for nothing, and flags.
  void Prepare(const pybind11::object& request, const pybind11::object& input,
               long input_flags, const pybind11::object& output,
               long output_flags);

  // Captures the call; false if nothing was captured.  `args` and `kwargs`, or
  // `output`, are None for a hook that does not receive them.
  bool Take(PyObject* args, PyObject* kwargs, PyObject* output) noexcept;

 private:
  struct Choice {
    pybind11::object request;
    pybind11::object input_object;  // Keeps `input` alive.
    pybind11::object output_object;
    TensorEntry* input = nullptr;
    long input_flags = 0;
    TensorEntry* output = nullptr;
    long output_flags = 0;
  };
  // More than a schedule has.
  static constexpr std::size_t kMaxChoices = 64;

  bool TakeFirst(PyObject* args, PyObject* kwargs, PyObject* output);
  [[nodiscard]] const Choice* Find(PyObject* request) const;

  const pybind11::object owner_;  // Keeps `batch_` alive.
  BatchCapture& batch_;
  const pybind11::object key_;
  const pybind11::object backward_id_;
  std::vector<Choice> choices_;
};

}  // namespace tdbg::python_capture
