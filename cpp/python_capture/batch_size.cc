#include "python_capture/batch_size.h"

#include <string>
#include <string_view>
#include <unordered_map>

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

// Whether a type of elements is that of tokens, by its name in any framework
// ("torch.int64", "int32", "<dtype: 'int64'>").  There are few; they live on.
bool IsTokenType(py::handle dtype) {
  static auto* known = new std::unordered_map<PyObject*, bool>;
  if (const auto found = known->find(dtype.ptr()); found != known->end()) {
    return found->second;
  }
  const std::string name = py::str(dtype);
  const std::size_t at = name.find("int");
  const bool is_signed =
      at != std::string::npos && (at == 0 || name[at - 1] != 'u') &&
      (name.compare(at, 5, "int64") == 0 || name.compare(at, 5, "int32") == 0);
  dtype.inc_ref();
  known->emplace(dtype.ptr(), is_signed);
  return is_signed;
}

// The shape of an object, a tuple; null if it has none, with no error set.
py::object ShapeOf(PyObject* object) {
  py::object shape = py::reinterpret_steal<py::object>(
      PyObject_GetAttrString(object, "shape"));
  if (shape && PyTuple_Check(shape.ptr()) == 0) {
    // TensorFlow's is no tuple, but has the sizes.
    const std::string_view type = Py_TYPE(shape.ptr())->tp_name;
    const bool has_sizes = type == "TensorShape";
    shape = py::reinterpret_steal<py::object>(
        has_sizes ? PySequence_Tuple(shape.ptr()) : nullptr);
  }
  if (!shape) PyErr_Clear();
  return shape;
}

// Whether an object is a tensor of one dimension or more; its size, if so.
bool ReadSize(PyObject* object, BatchSize* size) {
  const py::object owned = ShapeOf(object);
  if (!owned) return false;
  PyObject* shape = owned.ptr();
  const Py_ssize_t n = PyTuple_GET_SIZE(shape);
  if (n == 0) return false;
  std::int64_t sizes[2] = {-1, -1};
  for (Py_ssize_t i = 0; i < n && i < 2; ++i) {
    sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i));
    if (sizes[i] < 0) {
      PyErr_Clear();
      return false;
    }
  }
  size->samples = sizes[0];
  if (n == 2 && IsTokenType(py::getattr(object, "dtype"))) {
    size->tokens = sizes[0] * sizes[1];
  }
  return true;
}

bool ReadFirst(PyObject* object, BatchSize* size, int depth) {
  if (ReadSize(object, size)) return true;
  if (depth == 0) return false;
  if (PyTuple_Check(object) != 0 || PyList_Check(object) != 0) {
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(object);
    for (Py_ssize_t i = 0; i < n; ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(object, i);
      if (ReadFirst(item, size, depth - 1)) return true;
    }
  } else if (PyDict_Check(object) != 0) {
    Py_ssize_t position = 0;
    PyObject* value = nullptr;
    while (PyDict_Next(object, &position, nullptr, &value) != 0) {
      if (ReadFirst(value, size, depth - 1)) return true;
    }
  }
  return false;
}

}  // namespace

BatchSize ReadBatchSize(PyObject* args, PyObject* kwargs) {
  BatchSize size;
  // A class of the user's may have a `shape` of its own that raises anything.
  try {
    if (!ReadFirst(args, &size, 2) && kwargs != nullptr) {
      ReadFirst(kwargs, &size, 2);
    }
  } catch (...) {
    PyErr_Clear();
    size = {};
  }
  return size;
}

}  // namespace tdbg::python_capture
