// The concepts that make up tdbg._core, one function for each.
//
// Thread safety: called once, while the module is imported.

#pragma once

#include <pybind11/pybind11.h>

namespace tdbg::bindings {

void RegisterStatistics(pybind11::module_& module);
void RegisterCodec(pybind11::module_& module);
void RegisterCapture(pybind11::module_& module);
// Of Capture, what concerns devices; after RegisterCapture.
void RegisterDevices(pybind11::module_& module);
// Taker and Slot: tensors of a framework, in front of Capture.
void RegisterTaker(pybind11::module_& module);
// Definitions, events and problems, as a reader returns them.
void RegisterRecords(pybind11::module_& module);
void RegisterReader(pybind11::module_& module);

}  // namespace tdbg::bindings
