// Objects of the process by their types: a million in some milliseconds.

#include <pybind11/pybind11.h>

#include <unordered_set>

#include "bindings/register.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

// Objects lie all over the memory: types are fetched so far ahead.
constexpr Py_ssize_t kAhead = 16;

// The objects whose type is one of `kinds`, in their order.  By type: to ask an
// object for its class would wake lazy proxies.
py::list InstancesOf(const py::list& objects, const py::set& kinds) {
  std::unordered_set<const PyTypeObject*> chosen;
  for (const py::handle kind : kinds) {
    chosen.insert(reinterpret_cast<const PyTypeObject*>(kind.ptr()));
  }
  py::list found;
  const Py_ssize_t n = PyList_GET_SIZE(objects.ptr());
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      __builtin_prefetch(&PyList_GET_ITEM(objects.ptr(), i + kAhead)->ob_type);
    }
    PyObject* object = PyList_GET_ITEM(objects.ptr(), i);
    if (chosen.contains(Py_TYPE(object))) found.append(py::handle(object));
  }
  return found;
}

}  // namespace

void RegisterObjects(py::module_& module) {
  module.def("instances_of", &InstancesOf, py::arg("objects"),
             py::arg("kinds"));
}

}  // namespace tdbg::bindings
