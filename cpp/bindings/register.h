// The concepts that make up tdbg._core, one function for each.
//
// Thread safety: called once, while the module is imported.

#pragma once

#include <pybind11/pybind11.h>

namespace tdbg::bindings {

// The numbers that Python shares with the core: of the file format, and of
// calls.
void RegisterSchema(pybind11::module_& module);
void RegisterStatistics(pybind11::module_& module);
void RegisterCodec(pybind11::module_& module);
void RegisterCapture(pybind11::module_& module);
// The methods of Capture that concern devices; call it after RegisterCapture.
void RegisterDevices(pybind11::module_& module);
// BatchCapture and TensorEntry: tensors of a framework, in front of Capture.
void RegisterBatchCapture(pybind11::module_& module);
// Phases of steps.
void RegisterStepClock(pybind11::module_& module);
// Steps that are only counted, and the hooks of them.
void RegisterFingerprints(pybind11::module_& module);
void RegisterStepCounter(pybind11::module_& module);
// What samples the machine; call it after RegisterCapture.
void RegisterSystemSampler(pybind11::module_& module);
// Taps of compiled programs, and what XLA calls of them.
void RegisterTaps(pybind11::module_& module);
void RegisterFfi(pybind11::module_& module);
// Threads that send signals to their own process.
void RegisterSignals(pybind11::module_& module);
// Objects of the process.
void RegisterObjects(pybind11::module_& module);
// Definitions, events and problems, as a reader returns them.
void RegisterRecords(pybind11::module_& module);
// Files of a writer that lie in an object store.
void RegisterRemoteFiles(pybind11::module_& module);
// Call it last of these.
void RegisterReader(pybind11::module_& module);
// What removes data of runs that exist.
void RegisterRetention(pybind11::module_& module);

}  // namespace tdbg::bindings
