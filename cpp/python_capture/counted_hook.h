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

// What a hook is called for.  Python names a kind by a word, which only the
// table in the source maps to it.
enum class CountedHookKind {
  // "forward_begins", before the call of a module: the event, if it is
  // `module`,
  // which trains, and `mode_root` too; no other exception is being handled than
  // when the counting began, and nothing is computed backwards.
  kForwardBegins,
  // "forward_ends", after it, under the same conditions.
  kForwardEnds,
  // "optimizer_begins", before the step of an optimizer: the event, if it was
  // given no closure and `asks`, called with the optimizer, has no objection
  // (False).  Where numbers of some steps are noted it is called in these only.
  kOptimizerBegins,
  // "optimizer_ends", after it: the event, unless a scaler says that it may
  // have
  // been skipped.
  kOptimizerEnds,
  // "in_forward", in the call of a module: nothing.
  kInForward,
  // "known_optimizer", before the step of an optimizer, one of `known`:
  // nothing.
  kKnownOptimizer,
};

// The exception that the calling code handles, to be compared; null: none.
const void* HandledException();

// Adds the type to a module, as CountedHook(kind, counter, event, hook,
// backward_id, references, asks).  `references` are weak: module and mode_root,
// or the known optimizers.
void AddCountedHook(pybind11::module_& module);

}  // namespace tdbg::python_capture
