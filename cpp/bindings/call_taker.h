// Takes inputs and output of a module's call, as its hook is given them,
// without a detour through Python: the first call in a forward, with a single
// plain tensor each, of which it is known what is wanted.  Everything else it
// leaves to Python, untouched.
//
// Thread safety: call with the GIL held.
//
// Errors: none; what goes wrong is left to Python, which meets it again and
// counts it.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "bindings/taker.h"

namespace tdbg::bindings {

class CallTaker {
 public:
  // `key` names the module in the dict of calls; `is_in_backward` is called
  // without arguments and answers -1, or that autograd is at work.
  CallTaker(pybind11::object taker, pybind11::object key,
            pybind11::object backward_id);

  // What is wanted of input and output where the step wants `wants`: a slot, or
  // None for nothing, and flags.
  void Prepare(const pybind11::object& wants, const pybind11::object& input,
               long of_input, const pybind11::object& output, long of_output);

  // Whether it was taken.  `args` and `kwargs`, or `output`, are None in hooks
  // that are not given them.
  bool Take(PyObject* args, PyObject* kwargs, PyObject* output) noexcept;

 private:
  struct Choice {
    pybind11::object wants;
    pybind11::object input_slot;  // Keeps what `input` points to.
    pybind11::object output_slot;
    Slot* input = nullptr;
    long of_input = 0;
    Slot* output = nullptr;
    long of_output = 0;
  };
  // More than a schedule has.
  static constexpr std::size_t kMaxChoices = 64;

  bool TakeFirst(PyObject* args, PyObject* kwargs, PyObject* output);
  [[nodiscard]] const Choice* Find(PyObject* wants) const;

  const pybind11::object owner_;  // Keeps the taker.
  Taker& taker_;
  const pybind11::object key_;
  const pybind11::object backward_id_;
  std::vector<Choice> choices_;
};

}  // namespace tdbg::bindings
