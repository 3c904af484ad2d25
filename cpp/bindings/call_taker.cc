#include "bindings/call_taker.h"

#include <array>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>

#include "base/clock.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

Slot* SlotOf(const py::object& slot) {
  return slot.is_none() ? nullptr : &slot.cast<Slot&>();
}

// Whether autograd is calling: a checkpointed forward that is computed anew.
bool IsInBackward(PyObject* backward_id) {
  const auto answer =
      py::reinterpret_steal<py::object>(PyObject_CallNoArgs(backward_id));
  if (!answer) throw py::error_already_set();
  return PyLong_AsLong(answer.ptr()) != -1;
}

// The only argument of a call without keywords, or null.
PyObject* OnlyArgument(PyObject* args, PyObject* kwargs) {
  const bool has_keywords =
      kwargs != Py_None && (!PyDict_Check(kwargs) || PyDict_Size(kwargs) != 0);
  if (has_keywords || PyTuple_CheckExact(args) == 0 ||
      PyTuple_GET_SIZE(args) != 1) {
    return nullptr;
  }
  return PyTuple_GET_ITEM(args, 0);
}

}  // namespace

CallTaker::CallTaker(py::object taker, py::object key, py::object backward_id)
    : owner_(std::move(taker)),
      taker_(owner_.cast<Taker&>()),
      key_(std::move(key)),
      backward_id_(std::move(backward_id)) {}

void CallTaker::Prepare(const py::object& wants, const py::object& input,
                        long of_input, const py::object& output,
                        long of_output) {
  if (Find(wants.ptr()) != nullptr) return;
  if (choices_.size() >= kMaxChoices) choices_.clear();
  choices_.push_back({.wants = wants,
                      .input_slot = input,
                      .output_slot = output,
                      .input = SlotOf(input),
                      .of_input = of_input,
                      .output = SlotOf(output),
                      .of_output = of_output});
}

const CallTaker::Choice* CallTaker::Find(PyObject* wants) const {
  for (const Choice& choice : choices_) {
    if (choice.wants.ptr() == wants) return &choice;
  }
  return nullptr;
}

bool CallTaker::Take(PyObject* args, PyObject* kwargs,
                     PyObject* output) noexcept {
  if (!taker_.forward().is_open) return false;
  const std::int64_t start = MonotonicNs();
  bool is_taken = false;
  try {
    is_taken = TakeFirst(args, kwargs, output);
  } catch (const std::exception&) {
    PyErr_Clear();  // What a conversion left; `error_already_set` took its own.
  }
  taker_.Spend(MonotonicNs() - start);
  return is_taken;
}

bool CallTaker::TakeFirst(PyObject* args, PyObject* kwargs, PyObject* output) {
  Forward& forward = taker_.forward();
  const Choice* const choice = Find(forward.wants.ptr());
  if (choice == nullptr) return false;
  std::array<Request, 2> requests;
  std::size_t n = 0;
  if (args != Py_None) {
    PyObject* const tensor = OnlyArgument(args, kwargs);
    if (tensor == nullptr || !taker_.IsPlain(tensor)) return false;
    if (choice->input != nullptr) {
      requests[n++] = {tensor, choice->input, choice->of_input};
    }
  }
  if (output != Py_None || args == Py_None) {
    if (!taker_.IsPlain(output)) return false;
    if (choice->output != nullptr) {
      requests[n++] = {output, choice->output, choice->of_output};
    }
  }
  const int was_called = PyDict_Contains(forward.calls.ptr(), key_.ptr());
  if (was_called < 0) throw py::error_already_set();
  if (was_called != 0 || IsInBackward(backward_id_.ptr())) return false;
  // The forward may be another one after the GIL was away.
  const py::object calls = forward.calls;
  if (n > 0) {
    const Occasion when{.step = forward.step,
                        .site = {.call = 0, .micro_batch = forward.micro_batch},
                        .scale = 1.0,
                        .reuses = true};
    if (!forward.has_data) {
      // Also where nothing can be taken: that is counted, and so of the step.
      py::setattr(forward.context, "has_data", py::bool_(true));
      forward.has_data = true;
    }
    if (!taker_.Take(when, std::span(requests).first(n), true).empty()) {
      return false;
    }
  }
  static PyObject* const kOne = PyLong_FromLong(1);
  if (PyDict_SetItem(calls.ptr(), key_.ptr(), kOne) != 0) {
    throw py::error_already_set();
  }
  return true;
}

}  // namespace tdbg::bindings
