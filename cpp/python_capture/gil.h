// Releasing the GIL for a scope.
//
// Thread safety: call with the GIL held.

#pragma once

#include <pybind11/pybind11.h>

namespace tdbg::python_capture {

// Releases the GIL for a scope.  Declare it before any lock, so that the lock
// is released first: a thread never waits for the GIL while it holds one.
//
// Unlike pybind11's own, it survives the end of the interpreter: CPython ends a
// daemon thread that asks for the GIL too late by unwinding its stack, which a
// destructor turns into std::terminate.  Here such a thread sleeps instead
// until the process is gone.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil();
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace tdbg::python_capture
