// Fingerprints: hashes of the samples that a training is given.

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "bindings/register.h"
#include "python_capture/fingerprints.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

using python_capture::Fingerprints;

PyObject* OrNull(const py::object& object) {
  return object.is_none() ? nullptr : object.ptr();
}

}  // namespace

void RegisterFingerprints(py::module_& module) {
  py::class_<Fingerprints>(module, "Fingerprints")
      .def(py::init<py::object, std::int64_t, std::int64_t, int>(),
           py::arg("batch"), py::arg("most_trained"), py::arg("most_others"),
           py::arg("training_mode"))
      .def("add_root", &Fingerprints::AddRoot, py::arg("event"),
           py::arg("name"))
      .def("add_loss", &Fingerprints::AddLoss, py::arg("name"))
      .def("begin_counting", &Fingerprints::BeginCounting, py::arg("step"))
      .def(
          "take_inputs",
          [](Fingerprints& prints, const py::object& event, std::int64_t step,
             int mode, const py::object& args, const py::object& kwargs) {
            prints.TakeInputs(event.ptr(), step, mode, args.ptr(),
                              OrNull(kwargs));
            return prints.IsDue();
          },
          py::arg("event"), py::arg("step"), py::arg("mode"), py::arg("args"),
          py::arg("kwargs") = py::none())
      .def(
          "take_labels",
          [](Fingerprints& prints, std::size_t loss, const py::object& args,
             const py::object& kwargs) {
            prints.TakeLabels(loss, args.ptr(), OrNull(kwargs));
            return prints.IsDue();
          },
          py::arg("loss"), py::arg("args"), py::arg("kwargs") = py::none())
      .def("take", &Fingerprints::Take)
      .def("is_full", &Fingerprints::is_full, py::arg("is_training"))
      .def("n_hashed", &Fingerprints::n_hashed, py::arg("is_training"))
      .def_property_readonly("n_beyond", &Fingerprints::n_beyond)
      .def_property_readonly("n_on_devices", &Fingerprints::n_on_devices)
      .def_property_readonly("spent_ns", &Fingerprints::spent_ns);
}

}  // namespace tdbg::bindings
