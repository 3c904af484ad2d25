#include "python_capture/counted_hook.h"

#include <structmember.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "python_capture/batch_size.h"
#include "python_capture/fingerprints.h"
#include "python_capture/step_counter.h"

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

struct Hook {
  PyObject_HEAD vectorcallfunc vectorcall;
  CountedHookKind kind;
  StepCounter* counter;  // Of `owner`.
  PyObject* owner;       // All below are owned, and not null.
  PyObject* event;
  PyObject* hook;
  PyObject* backward_id;  // Returns -1 unless autograd is running.
  PyObject* references;   // A tuple of weak references.
  PyObject* asks;         // Or None.
};

// The words by which Python names the kinds.
using NamedKind = std::pair<std::string_view, CountedHookKind>;
constexpr std::array kHookKinds = {
    NamedKind{"forward_begins", CountedHookKind::kForwardBegins},
    NamedKind{"forward_ends", CountedHookKind::kForwardEnds},
    NamedKind{"optimizer_begins", CountedHookKind::kOptimizerBegins},
    NamedKind{"optimizer_ends", CountedHookKind::kOptimizerEnds},
    NamedKind{"in_forward", CountedHookKind::kInForward},
    NamedKind{"known_optimizer", CountedHookKind::kKnownOptimizer},
};

// The kind that a word names; none, with an exception set, for other words.
std::optional<CountedHookKind> HookKindOf(std::string_view word) {
  std::string words;
  for (const auto& [name, kind] : kHookKinds) {
    if (name == word) return kind;
    words.append(words.empty() ? "" : ", ").append(name);
  }
  PyErr_Format(PyExc_ValueError, "kind must be one of %s, not '%s'",
               words.c_str(), std::string(word).c_str());
  return std::nullopt;
}

PyObject* HookOf(PyObject* self) { return reinterpret_cast<Hook*>(self)->hook; }

// What a weak reference of the tuple refers to, borrowed; null: nothing.
PyObject* Referent(const Hook& hook, Py_ssize_t i) {
  PyObject* found = PyWeakref_GetObject(PyTuple_GET_ITEM(hook.references, i));
  return found == Py_None ? nullptr : found;
}

// An error on the way means that the answer is no.
bool IsInBackward(const Hook& hook) {
  PyObject* answer = PyObject_CallNoArgs(hook.backward_id);
  const long number = answer == nullptr ? 0 : PyLong_AsLong(answer);
  Py_XDECREF(answer);
  PyErr_Clear();
  return number != -1;
}

// Whether another exception is being handled than when the counting began: the
// training may have caught one of its own.
bool IsRaising(const StepCounter& counter) {
  return HandledException() != counter.handled();
}

// Whether an attribute in the dict of the object is what it is to be; there is
// none if `expected` is null.
bool HasInDict(PyObject* object, const char* name, PyObject* expected) {
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return false;
  }
  PyObject* found = PyDict_GetItemString(dict, name);
  Py_DECREF(dict);
  return found == expected || (expected == nullptr && found == Py_None);
}

// Whether an optimizer steps without a closure.
bool IsPlainStep(PyObject* optimizer, PyObject* args, PyObject* kwargs) {
  if (PyTuple_CheckExact(args) == 0 || PyDict_CheckExact(kwargs) == 0 ||
      PyDict_GET_SIZE(kwargs) != 0) {
    return false;
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(args);
  return n == 0 || (n == 1 && PyTuple_GET_ITEM(args, 0) == optimizer);
}

// Where numbers are noted those of the optimizer matter in these steps only.
bool HasObjection(const Hook& hook, PyObject* optimizer) {
  const StepCounter& counter = *hook.counter;
  if (hook.asks == Py_None || (counter.has_noted() && !counter.is_noted())) {
    return false;
  }
  PyObject* answer = PyObject_CallOneArg(hook.asks, optimizer);
  const bool objects = answer != Py_False;
  Py_XDECREF(answer);
  PyErr_Clear();
  return objects;
}

// Notes what a root is called with, in a step that is counted.
void TakeBatch(const Hook& hook, PyObject* const* args, Py_ssize_t n) {
  const StepCounter& counter = *hook.counter;
  StepClock* const clock = counter.clock;
  PyObject* const kwargs = n < 3 ? nullptr : args[2];
  if (clock != nullptr && clock->is_on()) {
    clock->Enter(Phase::kForward);
    const BatchSize size = n < 2 ? BatchSize{} : ReadBatchSize(args[1], kwargs);
    clock->AddBatch(size.samples, size.tokens);
  }
  if (counter.fingerprints != nullptr && n >= 2) {
    counter.fingerprints->TakeCounted(hook.event, counter.counted().n_steps,
                                      args[1], kwargs);
  }
}

// Whether a step that is counted goes on with the call; its phases do, too.
bool GoesOn(const Hook& hook, PyObject* const* args, Py_ssize_t n) {
  StepCounter& counter = *hook.counter;
  if (!counter.GoesOn(hook.event)) return false;
  StepClock* clock = counter.clock;
  const bool is_on = clock != nullptr && clock->is_on();
  switch (hook.kind) {
    case CountedHookKind::kForwardBegins:
      if (counter.depth++ == 0) TakeBatch(hook, args, n);
      break;
    case CountedHookKind::kForwardEnds:
      if (--counter.depth == 0 && is_on) clock->Leave(Phase::kForward);
      break;
    case CountedHookKind::kOptimizerBegins:
      if (is_on) clock->Enter(Phase::kOptimizer);
      break;
    case CountedHookKind::kOptimizerEnds:
      if (!is_on) break;
      clock->Leave(Phase::kOptimizer);
      if (counter.is_between_steps()) clock->EndStep();
      break;
    default:
      break;
  }
  return true;
}

// Whether the call is that of a step that is only counted.
bool IsCounted(const Hook& hook, PyObject* const* args, Py_ssize_t n) {
  StepCounter& counter = *hook.counter;
  if (!counter.is_on() || n < 1) return false;
  switch (hook.kind) {
    case CountedHookKind::kForwardBegins: {
      if (IsInBackward(hook)) return true;  // It is computed once more.
      PyObject* root = Referent(hook, 1);
      if (args[0] != Referent(hook, 0) || root == nullptr ||
          IsRaising(counter) || !HasInDict(args[0], "training", Py_True) ||
          !HasInDict(root, "training", Py_True)) {
        return false;
      }
      return GoesOn(hook, args, n);
    }
    case CountedHookKind::kForwardEnds:
      if (IsInBackward(hook)) return true;
      return !IsRaising(counter) && GoesOn(hook, args, n);
    case CountedHookKind::kOptimizerBegins:
      return n == 3 && IsPlainStep(args[0], args[1], args[2]) &&
             !HasObjection(hook, args[0]) && GoesOn(hook, args, n);
    case CountedHookKind::kOptimizerEnds:
      return HasInDict(args[0], "found_inf", nullptr) && GoesOn(hook, args, n);
    case CountedHookKind::kInForward:
      return counter.depth > 0;
    case CountedHookKind::kKnownOptimizer:
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(hook.references); ++i) {
        if (Referent(hook, i) == args[0]) return true;
      }
      return false;
  }
  return false;
}

PyObject* Call(PyObject* self, PyObject* const* args, std::size_t flags,
               PyObject* names) {
  const auto& hook = *reinterpret_cast<const Hook*>(self);
  if (IsCounted(hook, args, PyVectorcall_NARGS(flags))) Py_RETURN_NONE;
  // It may take this object off, and with it the last reference.
  PyObject* original = Py_NewRef(hook.hook);
  PyObject* result = PyObject_Vectorcall(original, args, flags, names);
  Py_DECREF(original);
  return result;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* /*kwargs*/) {
  const char* word = nullptr;
  PyObject* parts[6] = {};
  if (PyArg_ParseTuple(args, "sOOOOO!O", &word, &parts[0], &parts[1], &parts[2],
                       &parts[3], &PyTuple_Type, &parts[4], &parts[5]) == 0) {
    return nullptr;
  }
  const std::optional<CountedHookKind> kind = HookKindOf(word);
  if (!kind.has_value()) return nullptr;
  if (!py::isinstance<StepCounter>(parts[0])) {
    PyErr_SetString(PyExc_TypeError, "counter must be a StepCounter");
    return nullptr;
  }
  auto* counter = &py::handle(parts[0]).cast<StepCounter&>();
  const Py_ssize_t n = PyTuple_GET_SIZE(parts[4]);
  bool are_right = kind != CountedHookKind::kForwardBegins || n == 2;
  for (Py_ssize_t i = 0; i < n; ++i) {
    are_right &= PyWeakref_Check(PyTuple_GET_ITEM(parts[4], i)) != 0;
  }
  if (!are_right) {
    PyErr_Format(PyExc_ValueError,
                 "references of a hook for %s must be weak, and two for "
                 "forward_begins",
                 word);
    return nullptr;
  }
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto& hook = *reinterpret_cast<Hook*>(self);
  hook.vectorcall = Call;
  hook.kind = *kind;
  hook.counter = counter;
  hook.owner = Py_NewRef(parts[0]);
  hook.event = Py_NewRef(parts[1]);
  hook.hook = Py_NewRef(parts[2]);
  hook.backward_id = Py_NewRef(parts[3]);
  hook.references = Py_NewRef(parts[4]);
  hook.asks = Py_NewRef(parts[5]);
  return self;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  const auto& hook = *reinterpret_cast<const Hook*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(hook.owner);
  Py_VISIT(hook.event);
  Py_VISIT(hook.hook);
  Py_VISIT(hook.backward_id);
  Py_VISIT(hook.references);
  Py_VISIT(hook.asks);
  return 0;
}

void Deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  auto& hook = *reinterpret_cast<Hook*>(self);
  Py_XDECREF(hook.owner);
  Py_XDECREF(hook.event);
  Py_XDECREF(hook.hook);
  Py_XDECREF(hook.backward_id);
  Py_XDECREF(hook.references);
  Py_XDECREF(hook.asks);
  type->tp_free(self);
  Py_DECREF(type);
}

// All attributes are those of the hook, but the hook itself.
PyObject* GetAttribute(PyObject* self, PyObject* name) {
  if (PyUnicode_CompareWithASCIIString(name, "stands_for") == 0) {
    return Py_NewRef(HookOf(self));
  }
  return PyObject_GetAttr(HookOf(self), name);
}

}  // namespace

const void* HandledException() {
  PyObject* error = PyErr_GetHandledException();
  Py_XDECREF(error);
  return error == Py_None ? nullptr : error;
}

void AddCountedHook(py::module_& module) {
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(Hook, vectorcall), READONLY,
       nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>("Stands in for a hook while steps are only "
                                    "counted.")},
      {Py_tp_new, reinterpret_cast<void*>(New)},
      {Py_tp_dealloc, reinterpret_cast<void*>(Deallocate)},
      {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
      {Py_tp_getattro, reinterpret_cast<void*>(GetAttribute)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_members, members},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      .name = "tdbg._core.CountedHook",
      .basicsize = sizeof(Hook),
      .itemsize = 0,
      .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
               Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE,
      .slots = slots,
  };
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) throw py::error_already_set();
  module.attr("CountedHook") = py::reinterpret_steal<py::object>(type);
}

}  // namespace tdbg::python_capture
