#include "bindings/parameter_list.h"

#include <cstddef>
#include <utility>

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

py::object Attribute(PyObject* object, PyObject* name) {
  auto value =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(object, name));
  if (!value) throw py::error_already_set();
  return value;
}

// The parameter that stands at this place now, or null.
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

ParameterList::ParameterList(py::object taker, const py::iterable& entries)
    : owner_(std::move(taker)), taker_(owner_.cast<Taker&>()) {
  for (const py::handle each : entries) {
    const auto fields = each.cast<py::tuple>();
    if (fields.size() != 6 || PyWeakref_Check(fields[0].ptr()) == 0) {
      throw py::type_error(
          "an entry is (weak reference, name, slot, wanted, "
          "slot, wanted)");
    }
    Entry& entry = entries_.emplace_back();
    entry.owner = fields[0];
    entry.key = fields[1];
    entry.weight_slot = fields[2];
    entry.weight = &entry.weight_slot.cast<Slot&>();
    entry.of_weight = fields[3].cast<long>();
    entry.gradient_slot = fields[4];
    entry.gradient = &entry.gradient_slot.cast<Slot&>();
    entry.of_gradient = fields[5].cast<long>();
  }
}

py::object ParameterList::Take(std::int64_t step) {
  static PyObject* const kGradient = PyUnicode_InternFromString("grad");
  found_.clear();
  std::vector<std::size_t> found;
  std::vector<Request> requests;
  std::vector<py::object> tensors;  // Kept while the GIL is away.
  const std::size_t most = 2 * entries_.size();
  found.reserve(most);
  requests.reserve(most);
  tensors.reserve(most);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    py::object parameter = ParameterAt(entry.owner, entry.key);
    if (!parameter) continue;
    py::object gradient;
    if (entry.of_gradient != 0) {
      gradient = Attribute(parameter.ptr(), kGradient);
    }
    if (entry.of_weight != 0) {
      found.push_back(2 * i);
      requests.push_back({parameter.ptr(), entry.weight, entry.of_weight});
      tensors.push_back(std::move(parameter));
    }
    if (gradient && !gradient.is_none()) {
      found.push_back(2 * i + 1);
      requests.push_back({gradient.ptr(), entry.gradient, entry.of_gradient});
      tensors.push_back(std::move(gradient));
    }
  }
  if (requests.empty()) return py::none();
  const std::vector<std::size_t> left =
      taker_.Take({.step = step, .site = {}}, requests);
  found_ = std::move(found);
  if (left.empty()) return py::none();
  py::list result;
  for (const std::size_t i : left) {
    result.append(py::make_tuple(found_[i], tensors[i]));
  }
  return result;
}

}  // namespace tdbg::bindings
