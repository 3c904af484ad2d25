// CountedCall is a function whose calls somebody follows, but for those in
// steps that are only counted: then it calls the function and nothing else.
//
// A type of CPython's own, as CountedHook is: the loss and the backward pass of
// every step call one.
//
// Thread safety: called with the GIL held.
//
// Errors: what the function, or whoever follows its calls, raises.

#pragma once

#include <pybind11/pybind11.h>

namespace tdbg::python_capture {

// Adds the type to a module, as CountedCall(function, followed).  `followed` is
// called in the place of `function` while the attribute `counter`, a
// StepCounter or None, has no step under way of which nothing is noted.
void AddCountedCall(pybind11::module_& module);

}  // namespace tdbg::python_capture
