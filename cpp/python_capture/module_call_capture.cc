#include "python_capture/module_call_capture.h"

#include <array>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>

#include "base/clock.h"

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

TensorEntry* EntryOf(const py::object& entry) {
  return entry.is_none() ? nullptr : &entry.cast<TensorEntry&>();
}

// Whether autograd is running: it is recomputing a checkpointed forward.
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

ModuleCallCapture::ModuleCallCapture(py::object batch, py::object key,
                                     py::object backward_id)
    : owner_(std::move(batch)),
      batch_(owner_.cast<BatchCapture&>()),
      key_(std::move(key)),
      backward_id_(std::move(backward_id)) {}

void ModuleCallCapture::Prepare(const py::object& request,
                                const py::object& input, long input_flags,
                                const py::object& output, long output_flags) {
  if (Find(request.ptr()) != nullptr) return;
  if (choices_.size() >= kMaxChoices) choices_.clear();
  choices_.push_back({.request = request,
                      .input_object = input,
                      .output_object = output,
                      .input = EntryOf(input),
                      .input_flags = input_flags,
                      .output = EntryOf(output),
                      .output_flags = output_flags});
}

const ModuleCallCapture::Choice* ModuleCallCapture::Find(
    PyObject* request) const {
  for (const Choice& choice : choices_) {
    if (choice.request.ptr() == request) return &choice;
  }
  return nullptr;
}

bool ModuleCallCapture::Take(PyObject* args, PyObject* kwargs,
                             PyObject* output) noexcept {
  if (!batch_.forward().is_open) return false;
  const std::int64_t start = MonotonicNs();
  bool is_taken = false;
  try {
    is_taken = TakeFirst(args, kwargs, output);
  } catch (const std::exception&) {
    PyErr_Clear();  // Left by a conversion.
  }
  batch_.Spend(MonotonicNs() - start);
  return is_taken;
}

bool ModuleCallCapture::TakeFirst(PyObject* args, PyObject* kwargs,
                                  PyObject* output) {
  ForwardState& forward = batch_.forward();
  const Choice* const choice = Find(forward.request.ptr());
  if (choice == nullptr) return false;
  std::array<TensorRequest, 2> requests;
  std::size_t n = 0;
  if (args != Py_None) {
    PyObject* const tensor = OnlyArgument(args, kwargs);
    if (tensor == nullptr || !batch_.IsPlain(tensor)) return false;
    if (choice->input != nullptr) {
      requests[n++] = {tensor, choice->input, choice->input_flags};
    }
  }
  if (output != Py_None || args == Py_None) {
    if (!batch_.IsPlain(output)) return false;
    if (choice->output != nullptr) {
      requests[n++] = {output, choice->output, choice->output_flags};
    }
  }
  const int was_called = PyDict_Contains(forward.calls.ptr(), key_.ptr());
  if (was_called < 0) throw py::error_already_set();
  if (was_called != 0 || IsInBackward(backward_id_.ptr())) return false;
  // Another forward may be open after Take released the GIL.
  const py::object calls = forward.calls;
  if (n > 0) {
    const CaptureContext context{
        .step = forward.step,
        .site = {.call = 0, .micro_batch = forward.micro_batch},
        .scale = 1.0,
        .reuses_rows = true};
    if (!forward.has_data) {
      // Set even if nothing can be captured: that is counted at this step.
      py::setattr(forward.context, "has_data", py::bool_(true));
      forward.has_data = true;
    }
    if (!batch_.Take(context, std::span(requests).first(n), true).empty()) {
      return false;
    }
  }
  static PyObject* const kOne = PyLong_FromLong(1);
  if (PyDict_SetItem(calls.ptr(), key_.ptr(), kOne) != 0) {
    throw py::error_already_set();
  }
  return true;
}

}  // namespace tdbg::python_capture
