#include "bindings/register.h"

// Nothing here relies on the GIL: what Python passes is copied to tuples first,
// Capture is safe to call from any thread, and a RunReader holds a lock.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The C++ core: capture, storage and statistics.";
  module.attr("__version__") = TDBG_VERSION;
  tdbg::bindings::RegisterSchema(module);
  tdbg::bindings::RegisterStatistics(module);
  tdbg::bindings::RegisterCodec(module);
  tdbg::bindings::RegisterCapture(module);
  tdbg::bindings::RegisterDevices(module);
  tdbg::bindings::RegisterBatchCapture(module);
  tdbg::bindings::RegisterStepClock(module);
  tdbg::bindings::RegisterFingerprints(module);
  tdbg::bindings::RegisterStepCounter(module);
  tdbg::bindings::RegisterSystemSampler(module);
  tdbg::bindings::RegisterTaps(module);
  tdbg::bindings::RegisterFfi(module);
  tdbg::bindings::RegisterSignals(module);
  tdbg::bindings::RegisterObjects(module);
  tdbg::bindings::RegisterRecords(module);
  tdbg::bindings::RegisterRemoteFiles(module);
  tdbg::bindings::RegisterReader(module);
  tdbg::bindings::RegisterRetention(module);
}
