// CountedHook stands in for a hook of Python while steps are only counted, and
// spares the training its code: it reports one event to a StepCounter, and
// calls the hook as soon as anything is other than it was.  Otherwise it is the
// hook: its class, its attributes and its copies are those of what it stands
// for.
//
// A type of CPython's own, called without pybind11's dispatch: four of them are
// called in every step.
//
// Thread safety: called with the GIL held.
//
// Errors: what the hook raises.

#pragma once

#include <pybind11/pybind11.h>

namespace tdbg::python_capture {

// What a hook is called for.
enum class CountedHookKind : long {
  // Before the call of a module: the event, if it is `module`, which trains,
  // and `mode_root` too; no other exception is being handled than when the
  // counting began, and nothing is computed backwards.
  kForwardBegins = 0,
  // After it, under the same conditions.
  kForwardEnds = 1,
  // Before the step of an optimizer: the event, if it was given no closure and
  // `asks`, called with the optimizer, has no objection (False).  Where numbers
  // of some steps are noted it is called in these only.
  kOptimizerBegins = 2,
  // After it: the event, unless a scaler says that it may have been skipped.
  kOptimizerEnds = 3,
  // In the call of a module: nothing.
  kInForward = 4,
  // Before the step of an optimizer, one of `known`: nothing.
  kKnownOptimizer = 5,
};

// The exception that the calling code handles, to be compared; null: none.
const void* HandledException();

// Adds the type to a module, as CountedHook(kind, counter, event, hook,
// backward_id, references, asks).  `references` are weak: module and mode_root,
// or the known optimizers.
void AddCountedHook(pybind11::module_& module);

}  // namespace tdbg::python_capture
