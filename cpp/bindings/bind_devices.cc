// What a Capture says of CUDA devices, and is told of CUDA graphs.

#include <cstdint>

#include "bindings/convert.h"
#include "bindings/register.h"
#include "capture/capture.h"
#include "capture/device_capture.h"

namespace tdbg::bindings {
namespace {

DeviceStream StreamAt(int device, std::uint64_t stream) {
  // The framework's handle, which Python has as a number.
  return {device, reinterpret_cast<void*>(stream)};  // NOLINT
}

py::dict StateOf(Capture& capture, int device) {
  py::dict result;
  if (capture.writer().inert()) return result;
  const DeviceState state = capture.devices().state(device);
  result["is_usable"] = state.is_usable;
  result["reason"] = state.reason;
  result["values_reason"] = state.values_reason;
  result["launches"] = state.launches;
  result["rows"] = state.rows;
  result["copies"] = state.copies;
  result["copied_bytes"] = state.copied_bytes;
  result["refused"] = state.refused;
  result["uploads"] = state.uploads;
  result["failures"] = state.failures;
  result["device_bytes"] = state.device_bytes;
  return result;
}

std::uint64_t GraphId(Capture& capture, int device, std::uint64_t stream) {
  if (capture.writer().inert() || !capture.devices().usable(device)) return 0;
  return capture.devices().CaptureId(StreamAt(device, stream));
}

bool GraphReplayed(Capture& capture, std::uint64_t graph, std::int64_t step,
                   int device, std::uint64_t stream) {
  if (capture.writer().inert()) return false;
  const ReleaseGil released;
  return capture.devices().Replayed(graph, step, StreamAt(device, stream));
}

}  // namespace

void RegisterDevices(py::module_& module) {
  auto capture = py::reinterpret_borrow<py::class_<Capture>>(
      py::object(module.attr("Capture")));
  capture.def("device_state", &StateOf, py::arg("device"))
      .def("graph_id", &GraphId, py::arg("device"), py::arg("stream"))
      .def("graph_replayed", &GraphReplayed, py::arg("graph"), py::arg("step"),
           py::arg("device"), py::arg("stream"));
}

}  // namespace tdbg::bindings
