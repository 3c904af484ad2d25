#include "python_capture/parameter_capture.h"

#include <cstddef>
#include <utility>

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

py::object Attribute(PyObject* object, PyObject* name) {
  auto value =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
  if (!value) throw py::error_already_set();
  return value;
}

// The parameter of this name that the module has now, or null.
py::object ParameterAt(const py::object& owner, const py::object& key) {
  static PyObject* const kParameters =
      PyUnicode_InternFromString("_parameters");
  PyObject* const module = PyWeakref_GetObject(owner.ptr());
  if (module == nullptr) throw py::error_already_set();
  if (module == Py_None) return {};
  const py::object all = Attribute(module, kParameters);
  PyObject* const found = PyDict_GetItemWithError(all.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) {
    throw py::error_already_set();
  }
  if (found == nullptr || found == Py_None) return {};
  return py::reinterpret_borrow<py::object>(found);
}

}  // namespace

ParameterCapture::ParameterCapture(py::object batch,
                                   const py::iterable& parameters)
    : owner_(std::move(batch)), batch_(owner_.cast<BatchCapture&>()) {
  for (const py::handle given : parameters) {
    const auto fields = given.cast<py::tuple>();
    if (fields.size() != 6 || PyWeakref_Check(fields[0].ptr()) == 0) {
      throw py::type_error(
          "a parameter is (weak reference, name, entry, flags, entry, flags)");
    }
    Parameter& each = parameters_.emplace_back();
    each.owner = fields[0];
    each.key = fields[1];
    each.weight_object = fields[2];
    each.weight = &each.weight_object.cast<TensorEntry&>();
    each.weight_flags = fields[3].cast<long>();
    each.gradient_object = fields[4];
    each.gradient = &each.gradient_object.cast<TensorEntry&>();
    each.gradient_flags = fields[5].cast<long>();
  }
}

py::object ParameterCapture::Take(std::int64_t step) {
  static PyObject* const kGradient = PyUnicode_InternFromString("grad");
  found_.clear();
  std::vector<std::size_t> found;
  std::vector<TensorRequest> requests;
  std::vector<py::object> tensors;  // Kept alive while the GIL is released.
  const std::size_t most = 2 * parameters_.size();
  found.reserve(most);
  requests.reserve(most);
  tensors.reserve(most);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& each = parameters_[i];
    py::object parameter = ParameterAt(each.owner, each.key);
    if (!parameter) continue;
    py::object gradient;
    if (each.gradient_flags != 0) {
      gradient = Attribute(parameter.ptr(), kGradient);
    }
    if (each.weight_flags != 0) {
      found.push_back(2 * i);
      requests.push_back({parameter.ptr(), each.weight, each.weight_flags});
      tensors.push_back(std::move(parameter));
    }
    if (gradient && !gradient.is_none()) {
      found.push_back(2 * i + 1);
      requests.push_back({gradient.ptr(), each.gradient, each.gradient_flags});
      tensors.push_back(std::move(gradient));
    }
  }
  if (requests.empty()) return py::none();
  const std::vector<std::size_t> unread =
      batch_.Take({.step = step, .site = {}}, requests);
  found_ = std::move(found);
  if (unread.empty()) return py::none();
  py::list result;
  for (const std::size_t i : unread) {
    result.append(py::make_tuple(found_[i], tensors[i]));
  }
  return result;
}

}  // namespace tdbg::python_capture
