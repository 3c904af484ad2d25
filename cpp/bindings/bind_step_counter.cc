// StepCounter, the hooks that report to it, and the calls that it spares.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "bindings/register.h"
#include "python_capture/counted_call.h"
#include "python_capture/counted_hook.h"
#include "python_capture/fingerprints.h"
#include "python_capture/step_counter.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

using python_capture::StepCounter;

// `events` must stay alive until the counter ends: its addresses are compared.
void Begin(StepCounter& counter, const py::tuple& events, std::int64_t most,
           std::int64_t until_ns, std::int64_t first_noted,
           std::int64_t noted_every) {
  if (events.empty()) throw py::value_error("a step has an event at least");
  std::vector<const void*> pattern;
  pattern.reserve(events.size());
  for (const py::handle event : events) pattern.push_back(event.ptr());
  counter.Begin(std::move(pattern), most, until_ns,
                {.first = first_noted, .every = noted_every},
                python_capture::HandledException());
}

py::tuple End(StepCounter& counter) {
  const StepCounter::Counted counted = counter.End();
  return py::make_tuple(counted.n_steps, counted.duration_ns, counted.n_events);
}

}  // namespace

void RegisterStepCounter(py::module_& module) {
  py::class_<StepCounter>(module, "StepCounter")
      .def(py::init<>())
      .def("begin", &Begin, py::arg("events"), py::arg("most"),
           py::arg("until_ns"), py::arg("first_noted") = 0,
           py::arg("noted_every") = 0)
      .def("end", &End)
      .def_property_readonly("is_over", &StepCounter::is_over)
      .def_property_readonly("is_noted", &StepCounter::is_noted)
      .def_property_readonly("is_quiet", &StepCounter::is_quiet)
      .def_readonly("depth", &StepCounter::depth)
      .def(
          "measure_by",
          [](StepCounter& counter, StepClock* clock) { counter.clock = clock; },
          py::arg("clock").none(true), py::keep_alive<1, 2>())
      .def(
          "fingerprint_by",
          [](StepCounter& counter, python_capture::Fingerprints* given) {
            counter.fingerprints = given;
          },
          py::arg("fingerprints").none(true), py::keep_alive<1, 2>())
      .def_property_readonly("n_events", &StepCounter::n_events)
      .def_property_readonly(
          "n",
          [](const StepCounter& counter) { return counter.counted().n_steps; })
      .def_property_readonly(
          "index",
          [](const StepCounter& counter) { return counter.counted().n_events; })
      .def_property_readonly("duration_ns", [](const StepCounter& counter) {
        return counter.counted().duration_ns;
      });
  python_capture::AddCountedHook(module);
  python_capture::AddCountedCall(module);
}

}  // namespace tdbg::bindings
