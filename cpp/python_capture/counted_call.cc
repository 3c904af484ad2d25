#include "python_capture/counted_call.h"

#include <structmember.h>

#include <cstddef>

#include "python_capture/step_counter.h"
#include "sampler/step_clock.h"

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

struct CountedCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  const StepCounter* counter;  // Of `owner`; null if that is None.
  PyObject* owner;             // All below are owned, and not null.
  PyObject* function;
  PyObject* followed;
  Phase phase;
  PyObject* clocks;  // A tuple of StepClock.
};

CountedCall& Of(PyObject* self) {
  return *reinterpret_cast<CountedCall*>(self);
}

StepClock& ClockAt(PyObject* clocks, Py_ssize_t i) {
  return py::handle(PyTuple_GET_ITEM(clocks, i)).cast<StepClock&>();
}

// A function that is a forward by itself is a loss.
Phase PhaseIn(const StepClock& clock, Phase phase) {
  return phase == Phase::kForward ? clock.loss_phase() : phase;
}

PyObject* CallEither(PyObject* self, PyObject* const* args, std::size_t flags,
                     PyObject* names) {
  const CountedCall& call = Of(self);
  const bool is_quiet = call.counter != nullptr && call.counter->is_quiet();
  // Whoever follows the call may let go of this object.
  PyObject* called = Py_NewRef(is_quiet ? call.function : call.followed);
  PyObject* clocks = Py_NewRef(call.clocks);
  const Phase phase = call.phase;
  const Py_ssize_t n_clocks = PyTuple_GET_SIZE(clocks);
  for (Py_ssize_t i = 0; i < n_clocks; ++i) {
    StepClock& clock = ClockAt(clocks, i);
    clock.Enter(PhaseIn(clock, phase));
  }
  PyObject* result = PyObject_Vectorcall(called, args, flags, names);
  for (Py_ssize_t i = 0; i < n_clocks; ++i) {
    StepClock& clock = ClockAt(clocks, i);
    clock.Leave(PhaseIn(clock, phase));
  }
  Py_DECREF(clocks);
  Py_DECREF(called);
  return result;
}

PyObject* NewCall(PyTypeObject* type, PyObject* args, PyObject* /*kwargs*/) {
  PyObject* function = nullptr;
  PyObject* followed = nullptr;
  int phase = 0;
  if (PyArg_ParseTuple(args, "OO|i", &function, &followed, &phase) == 0) {
    return nullptr;
  }
  if (phase < 0 || phase >= static_cast<int>(kPhases)) {
    PyErr_Format(PyExc_ValueError, "phase must be a Phase, not %d", phase);
    return nullptr;
  }
  PyObject* clocks = PyTuple_New(0);
  if (clocks == nullptr) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) {
    Py_DECREF(clocks);
    return nullptr;
  }
  CountedCall& call = Of(self);
  call.vectorcall = CallEither;
  call.counter = nullptr;
  call.owner = Py_NewRef(Py_None);
  call.function = Py_NewRef(function);
  call.followed = Py_NewRef(followed);
  call.phase = static_cast<Phase>(phase);
  call.clocks = clocks;
  return self;
}

int TraverseCall(PyObject* self, visitproc visit, void* arg) {
  const CountedCall& call = Of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(call.owner);
  Py_VISIT(call.function);
  Py_VISIT(call.followed);
  Py_VISIT(call.clocks);
  return 0;
}

void DeallocateCall(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  CountedCall& call = Of(self);
  Py_XDECREF(call.owner);
  Py_XDECREF(call.function);
  Py_XDECREF(call.followed);
  Py_XDECREF(call.clocks);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* GetCounter(PyObject* self, void* /*closure*/) {
  return Py_NewRef(Of(self).owner);
}

int SetCounter(PyObject* self, PyObject* value, void* /*closure*/) {
  PyObject* given = value == nullptr ? Py_None : value;
  CountedCall& call = Of(self);
  if (given == Py_None) {
    call.counter = nullptr;
  } else if (py::isinstance<StepCounter>(given)) {
    call.counter = &py::handle(given).cast<StepCounter&>();
  } else {
    PyErr_SetString(PyExc_TypeError, "counter must be a StepCounter or None");
    return -1;
  }
  PyObject* before = call.owner;
  call.owner = Py_NewRef(given);
  Py_DECREF(before);
  return 0;
}

PyObject* GetClocks(PyObject* self, void* /*closure*/) {
  return Py_NewRef(Of(self).clocks);
}

int SetClocks(PyObject* self, PyObject* value, void* /*closure*/) {
  bool are_clocks = value != nullptr && PyTuple_Check(value) != 0;
  for (Py_ssize_t i = 0; are_clocks && i < PyTuple_GET_SIZE(value); ++i) {
    are_clocks = py::isinstance<StepClock>(PyTuple_GET_ITEM(value, i));
  }
  if (!are_clocks) {
    PyErr_SetString(PyExc_TypeError, "clocks must be a tuple of StepClock");
    return -1;
  }
  CountedCall& call = Of(self);
  PyObject* before = call.clocks;
  call.clocks = Py_NewRef(value);
  Py_DECREF(before);
  return 0;
}

}  // namespace

void AddCountedCall(py::module_& module) {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(CountedCall, vectorcall),
       READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyGetSetDef attributes[] = {
      {"counter", GetCounter, SetCounter,
       "Says which steps are only counted; None: none is.", nullptr},
      {"clocks", GetClocks, SetClocks,
       "The clocks in which each call is a phase.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("Calls a function that somebody follows.")},
      {Py_tp_new, reinterpret_cast<void*>(NewCall)},
      {Py_tp_dealloc, reinterpret_cast<void*>(DeallocateCall)},
      {Py_tp_traverse, reinterpret_cast<void*>(TraverseCall)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {Py_tp_getset, attributes},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      .name = "tdbg._core.CountedCall",
      .basicsize = sizeof(CountedCall),
      .itemsize = 0,
      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
               Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
      .slots = slots,
  };
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module.attr("CountedCall") = py::reinterpret_steal<py::object>(type);
}

}  // namespace tdbg::python_capture
