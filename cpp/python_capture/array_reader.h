// ArrayReader describes arrays of NumPy, which frameworks without DLPack's C
// exchange API have their tensors in: the array's own fields are read, and no
// Python code runs.
//
// Thread safety: call with the GIL held.
//
// Errors: none; Read returns false for what it cannot describe, and the caller
// describes it in Python.

#pragma once

#include <pybind11/pybind11.h>

#include "python_capture/dlpack_reader.h"

namespace tdbg::python_capture {

class ArrayReader {
 public:
  // Imports NumPy; throws pybind11::error_already_set where that fails.
  ArrayReader();

  // False if `object` is no array (or of a subclass, which may mean something
  // else by its elements), if they are not aligned, of another byte order or
  // have no statistics, or if it has more than kMaxDimensions.
  bool Read(PyObject* object, TensorDescriptor* out) const;

 private:
  pybind11::object type_;  // numpy.ndarray
};

}  // namespace tdbg::python_capture
