// StepClock, and the callback that times Python's garbage collector by it.

#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bindings/register.h"
#include "python_capture/batch_size.h"
#include "sampler/step_clock.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

Phase PhaseOf(int phase) {
  if (phase < 0 || phase >= static_cast<int>(kPhases)) {
    throw py::value_error("phase must be a Phase, not " +
                          std::to_string(phase));
  }
  return static_cast<Phase>(phase);
}

void AddBatch(StepClock& clock, const py::tuple& args,
              const py::object& kwargs) {
  if (!clock.awaits_batch()) return;
  const python_capture::BatchSize size = python_capture::ReadBatchSize(
      args.ptr(), kwargs.is_none() ? nullptr : kwargs.ptr());
  clock.AddBatch(size.samples, size.tokens);
}

// The rows as bytes of the table `step`.
py::bytes TakeRows(StepClock& clock) {
  const std::vector<StepRow> rows = clock.TakeRows();
  return {reinterpret_cast<const char*>(rows.data()),
          rows.size() * sizeof(StepRow)};
}

StepClock::Number NumberOf(std::int64_t global_step, std::int64_t mode_step,
                           std::int32_t mode, std::int32_t micro_batches) {
  return {.global_step = global_step,
          .mode_step = mode_step,
          .mode = mode,
          .micro_batches = micro_batches};
}

// Called by Python's collector, as one of gc.callbacks.
void Collects(StepClock& clock, const char* phase, const py::object& /*info*/) {
  if (std::strcmp(phase, "start") == 0) {
    clock.BeginInterruption(Phase::kGc);
  } else {
    clock.EndInterruption();
  }
}

}  // namespace

void RegisterStepClock(py::module_& module) {
  py::class_<StepClock, std::shared_ptr<StepClock>>(module, "StepClock")
      .def(py::init<>())
      .def("start", &StepClock::Start)
      .def("stop", &StepClock::Stop)
      .def_property_readonly("is_on", &StepClock::is_on)
      .def(
          "enter",
          [](StepClock& clock, int phase) { clock.Enter(PhaseOf(phase)); },
          py::arg("phase"))
      .def(
          "leave",
          [](StepClock& clock, int phase) {
            if (phase < 0) {
              clock.LeaveInnermost();
            } else {
              clock.Leave(PhaseOf(phase));
            }
          },
          py::arg("phase") = -1)
      .def("stand_in", &StepClock::StandIn)
      .def("stand_down", &StepClock::StandDown)
      .def("loss_begins",
           [](StepClock& clock) { clock.Enter(clock.loss_phase()); })
      .def("loss_ends",
           [](StepClock& clock) { clock.Leave(clock.loss_phase()); })
      .def("tdbg_begins",
           [](StepClock& clock) {
             return clock.BeginInterruption(Phase::kCapture);
           })
      .def("tdbg_ends",
           [](StepClock& clock) { return clock.EndInterruption(); })
      .def("collects", &Collects, py::arg("phase"), py::arg("info"))
      .def("spend", &StepClock::Spend, py::arg("ns"))
      .def(
          "spend_in",
          [](StepClock& clock, int phase, std::int64_t ns) {
            clock.SpendIn(PhaseOf(phase), ns);
          },
          py::arg("phase"), py::arg("ns"))
      .def(
          "move",
          [](StepClock& clock, int to, std::int64_t ns) {
            clock.Move(PhaseOf(to), ns);
          },
          py::arg("to"), py::arg("ns"))
      .def("add_batch", &AddBatch, py::arg("args"),
           py::arg("kwargs") = py::none())
      .def("add_samples", &StepClock::AddBatch, py::arg("samples"),
           py::arg("tokens") = -1)
      .def("step_passes", [](StepClock& clock) { clock.EndStep(); })
      .def(
          "end_step",
          [](StepClock& clock, std::int64_t global_step, std::int64_t mode_step,
             std::int32_t mode, std::int32_t micro_batches) {
            return clock.EndStep(
                NumberOf(global_step, mode_step, mode, micro_batches));
          },
          py::arg("global_step"), py::arg("mode_step"), py::arg("mode"),
          py::arg("micro_batches"))
      .def(
          "number_steps",
          [](StepClock& clock, std::int64_t n, std::int64_t global_step,
             std::int64_t mode_step, std::int32_t mode,
             std::int32_t micro_batches) {
            return clock.NumberSteps(
                n, NumberOf(global_step, mode_step, mode, micro_batches));
          },
          py::arg("n"), py::arg("global_step"), py::arg("mode_step"),
          py::arg("mode"), py::arg("micro_batches"))
      .def("end_evaluation", &StepClock::EndEvaluation)
      .def(
          "keep_evaluation",
          [](StepClock& clock, std::int64_t global_step, std::int64_t mode_step,
             std::int32_t mode, std::int32_t micro_batches) {
            clock.KeepEvaluation(
                NumberOf(global_step, mode_step, mode, micro_batches));
          },
          py::arg("global_step"), py::arg("mode_step"), py::arg("mode"),
          py::arg("micro_batches"))
      .def("forget_evaluation", &StepClock::ForgetEvaluation)
      .def("set_is_repeating", &StepClock::set_is_repeating,
           py::arg("is_repeating"))
      .def("take_rows", &TakeRows)
      .def_property_readonly("n_lost", &StepClock::n_lost)
      .def_property_readonly("phase",
                             [](const StepClock& clock) {
                               return static_cast<int>(clock.phase());
                             })
      .def_property_readonly("global_step", &StepClock::global_step)
      .def_property_readonly("coming_step", &StepClock::coming_step)
      .def_property_readonly("n_steps", &StepClock::n_steps);
}

}  // namespace tdbg::bindings
