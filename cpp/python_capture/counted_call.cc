#include "python_capture/counted_call.h"

#include <structmember.h>

#include <cstddef>

#include "python_capture/step_counter.h"

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

struct CountedCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  const StepCounter* counter;  // Of `owner`; null if that is None.
  PyObject* owner;             // All below are owned, and not null.
  PyObject* function;
  PyObject* followed;
};

CountedCall& Of(PyObject* self) {
  return *reinterpret_cast<CountedCall*>(self);
}

PyObject* CallEither(PyObject* self, PyObject* const* args, std::size_t flags,
                     PyObject* names) {
  const CountedCall& call = Of(self);
  const bool is_quiet = call.counter != nullptr && call.counter->is_quiet();
  // Whoever follows the call may let go of this object.
  PyObject* called = Py_NewRef(is_quiet ? call.function : call.followed);
  PyObject* result = PyObject_Vectorcall(called, args, flags, names);
  Py_DECREF(called);
  return result;
}

PyObject* NewCall(PyTypeObject* type, PyObject* args, PyObject* /*kwargs*/) {
  PyObject* function = nullptr;
  PyObject* followed = nullptr;
  if (PyArg_ParseTuple(args, "OO", &function, &followed) == 0) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  CountedCall& call = Of(self);
  call.vectorcall = CallEither;
  call.counter = nullptr;
  call.owner = Py_NewRef(Py_None);
  call.function = Py_NewRef(function);
  call.followed = Py_NewRef(followed);
  return self;
}

int TraverseCall(PyObject* self, visitproc visit, void* arg) {
  const CountedCall& call = Of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(call.owner);
  Py_VISIT(call.function);
  Py_VISIT(call.followed);
  return 0;
}

void DeallocateCall(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  CountedCall& call = Of(self);
  Py_XDECREF(call.owner);
  Py_XDECREF(call.function);
  Py_XDECREF(call.followed);
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
