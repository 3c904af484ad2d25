// The size of a batch, from the arguments of the module that gets it.
//
// Thread safety: call with the GIL held.
//
// Errors: none; what cannot be told is unknown.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

namespace tdbg::python_capture {

struct BatchSize {
  std::int64_t samples = -1;  // -1: unknown.
  std::int64_t tokens = -1;   // -1: unknown, or there are none.
};

// Reads the size from the first tensor among `args` (a tuple) and the values of
// `kwargs` (a dict, or null): its first dimension are the samples.  If it is of
// two dimensions and of signed integers of 32 bits or more, its elements are
// tokens.
BatchSize ReadBatchSize(PyObject* args, PyObject* kwargs);

}  // namespace tdbg::python_capture
