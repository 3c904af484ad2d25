// DumpListener and SignalTimer: threads that send signals to their own process.

#include <pybind11/pybind11.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/dump_listener.h"
#include "base/signal_timer.h"
#include "bindings/register.h"
#include "sampler/step_clock.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

std::chrono::nanoseconds Interval(double seconds) {
  if (!(seconds >= 0.001 && seconds <= 3600.0)) {
    throw py::value_error("an interval is 0.001 to 3600 seconds");
  }
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

// What a training does, for those who ask; it may be asked after Python has
// ended.
std::string StateOf(const StepClock& clock) {
  if (!clock.is_on()) return {};
  return "phase=" + std::to_string(static_cast<int>(clock.phase())) +
         " step=" + std::to_string(clock.coming_step());
}

}  // namespace

void RegisterSignals(py::module_& module) {
  py::class_<DumpListener>(module, "DumpListener")
      .def(py::init([](const std::string& folder, const std::string& name,
                       const std::string& identity, int signal, int dump_fd,
                       double interval,
                       const std::shared_ptr<StepClock>& clock) {
             std::function<std::string()> state;
             if (clock != nullptr) state = [clock] { return StateOf(*clock); };
             return std::make_unique<DumpListener>(
                 DumpListener::Options{.folder = folder,
                                       .name = name,
                                       .identity = identity,
                                       .signal = signal,
                                       .dump_fd = dump_fd,
                                       .state = std::move(state)},
                 Interval(interval));
           }),
           py::arg("folder"), py::arg("name"), py::arg("identity"),
           py::arg("signal"), py::arg("dump_fd"), py::arg("interval") = 1.0,
           py::arg("clock") = nullptr)
      .def_property_readonly("n_answered", &DumpListener::n_answered);
  py::class_<SignalTimer>(module, "SignalTimer")
      .def(py::init([](int signal, double interval) {
             return std::make_unique<SignalTimer>(signal, Interval(interval));
           }),
           py::arg("signal"), py::arg("interval"))
      .def("handled", &SignalTimer::Handled)
      .def_property_readonly("n_sent", &SignalTimer::n_sent)
      .def_property_readonly("is_taken", &SignalTimer::is_taken);
  module.def(
      "is_signal_free", [](int signal) { return IsSignalFree(signal); },
      py::arg("signal"),
      "Whether a signal has its default action: nobody handles or ignores it.");
}

}  // namespace tdbg::bindings
