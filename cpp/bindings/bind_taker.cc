#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bindings/call_taker.h"
#include "bindings/convert.h"
#include "bindings/parameter_list.h"
#include "bindings/register.h"
#include "bindings/shard.h"
#include "bindings/slot.h"
#include "bindings/taker.h"
#include "capture/capture.h"

namespace tdbg::bindings {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Slots and tensors as requests, which they keep alive.
std::vector<Request> RequestsOf(const py::tuple& slots,
                                const py::tuple& tensors,
                                const py::tuple& wanted) {
  const std::size_t n = tensors.size();
  if (slots.size() != n || wanted.size() != n) {
    throw py::value_error("slots, tensors and wanted differ in length");
  }
  std::vector<Request> requests(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto place = static_cast<Py_ssize_t>(i);
    Request& request = requests[i];
    request.tensor = PyTuple_GET_ITEM(tensors.ptr(), place);
    request.wanted = PyLong_AsLong(PyTuple_GET_ITEM(wanted.ptr(), place));
    if (request.wanted == -1 && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    request.slot =
        &py::handle(PyTuple_GET_ITEM(slots.ptr(), place)).cast<Slot&>();
  }
  return requests;
}

// The arguments of one call, by position: this is called for every module at
// every step, and pybind11's own dispatch costs as much as reducing a small
// tensor.
PyObject* TakeByPosition(PyObject* self, PyObject* const* arguments,
                         Py_ssize_t n) {
  constexpr Py_ssize_t kArguments = 8;
  if (n != kArguments) {
    PyErr_SetString(PyExc_TypeError, "take() takes 8 arguments");
    return nullptr;
  }
  try {
    const auto integer = [&](Py_ssize_t i) {
      const long long value = PyLong_AsLongLong(arguments[i]);
      if (value == -1 && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
      }
      return static_cast<std::int64_t>(value);
    };
    auto& taker = py::handle(self).cast<Taker&>();
    Occasion when{.step = integer(0),
                  .site = {Saturate16(integer(4)), Saturate16(integer(5))},
                  .reuses = arguments[7] == Py_True};
    bool has_scale = true;
    if (PyFloat_Check(arguments[6]) != 0) {
      when.scale = PyFloat_AS_DOUBLE(arguments[6]);
    } else {
      has_scale = taker.ReadDivisor(arguments[6], &when);
    }
    const py::tuple slots = AsTuple(arguments[1]);
    const py::tuple tensors = AsTuple(arguments[2]);
    const std::vector<Request> requests =
        RequestsOf(slots, tensors, AsTuple(arguments[3]));
    std::vector<std::size_t> left;
    if (has_scale) {
      left = taker.Take(when, requests);
    } else {
      left.resize(requests.size());
      std::iota(left.begin(), left.end(), 0);
    }
    if (left.empty()) {
      Py_RETURN_NONE;
    }
    return py::cast(left).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// args, kwargs, output: of one call of a module.
PyObject* TakeCall(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  if (n != 3) {
    PyErr_SetString(PyExc_TypeError, "take() takes 3 arguments");
    return nullptr;
  }
  const bool is_taken = py::handle(self).cast<CallTaker&>().Take(
      arguments[0], arguments[1], arguments[2]);
  return PyBool_FromLong(static_cast<long>(is_taken));
}

void BeginForward(Taker& taker, py::object context, py::dict calls,
                  py::object wants, std::int64_t step,
                  std::int64_t micro_batch) {
  taker.forward() = {.is_open = true,
                     .has_data = false,
                     .context = std::move(context),
                     .calls = std::move(calls),
                     .wants = std::move(wants),
                     .step = step,
                     .micro_batch = Saturate16(micro_batch)};
}

std::vector<std::size_t> BeginValues(Taker& taker, std::int64_t step,
                                     const py::list& slots,
                                     const py::list& tensors) {
  const py::tuple wanted(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    wanted[i] = py::int_(want::kValues);
  }
  const auto kept_slots = py::tuple(slots);
  const auto kept_tensors = py::tuple(tensors);
  return taker.BeginValues(step, RequestsOf(kept_slots, kept_tensors, wanted));
}

void EndForward(Taker& taker) { taker.forward() = {}; }

using Method = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef MethodOf(Method method, const char* doc) noexcept {
  return {"take",
          reinterpret_cast<PyCFunction>(              // NOLINT
              reinterpret_cast<void (*)()>(method)),  // NOLINT
          METH_FASTCALL, doc};
}

PyMethodDef take_method =
    MethodOf(&TakeByPosition, "What is wanted of these tensors, now.");
PyMethodDef call_method =
    MethodOf(&TakeCall, "What is wanted of a call; whether it was taken.");

// Adds a method that is called without pybind11's dispatch.
void AddQuick(const py::object& type, PyMethodDef* method) {
  const auto descriptor = py::reinterpret_steal<py::object>(PyDescr_NewMethod(
      reinterpret_cast<PyTypeObject*>(type.ptr()), method));  // NOLINT
  if (!descriptor) {
    throw py::error_already_set();
  }
  type.attr(method->ml_name) = descriptor;
}

}  // namespace

void RegisterTaker(py::module_& module) {
  py::class_<Slot>(module, "Slot", PlainType())
      .def(py::init([](const py::str& name, std::uint16_t role,
                       const py::sequence& aliases, const py::str& units,
                       std::vector<std::int64_t> global_shape,
                       std::vector<std::int64_t> global_offset,
                       const Placements& placements, double low, double high,
                       bool of_rows) {
             std::vector<std::string> others;
             for (const py::handle alias : aliases) {
               others.push_back(Utf8(alias));
             }
             return Slot(Utf8(name), static_cast<TensorRole>(role),
                         std::move(others), Utf8(units),
                         ParseShard(std::move(global_shape),
                                    std::move(global_offset), placements),
                         {.low = low, .high = high, .of_rows = of_rows});
           }),
           py::arg("name"), py::arg("role"), py::arg("aliases") = py::tuple(),
           py::arg("units") = "",
           py::arg("global_shape") = std::vector<std::int64_t>{},
           py::arg("global_offset") = std::vector<std::int64_t>{},
           py::arg("placements") = Placements{}, py::kw_only(),
           py::arg("low") = -kInfinity, py::arg("high") = kInfinity,
           py::arg("of_rows") = false)
      .def_property("raw_limit", &Slot::raw_limit, &Slot::set_raw_limit)
      .def_property_readonly("too_large", &Slot::too_large);
  py::class_<Taker> taker(module, "Taker", PlainType());
  taker
      .def(py::init<Capture&, const py::tuple&>(), py::arg("capture"),
           py::arg("types"), py::keep_alive<1, 2>())
      .def_property_readonly("can_read", &Taker::CanRead)
      .def_property_readonly("n_repeated", &Taker::n_repeated)
      .def_property_readonly("n_too_large", &Taker::n_too_large)
      .def_property_readonly("spent_ns", &Taker::spent_ns)
      .def_property_readonly("devices", &Taker::devices)
      .def("begin_forward", &BeginForward, py::arg("context"), py::arg("calls"),
           py::arg("wants"), py::arg("step"), py::arg("micro_batch"))
      .def("end_forward", &EndForward)
      .def("begin_values", &BeginValues, py::arg("step"), py::arg("slots"),
           py::arg("tensors"))
      .def("fence", &Taker::Fence);
  AddQuick(taker, &take_method);
  taker.attr("WANTED") = py::dict(
      py::arg("ROWS") = want::kRows, py::arg("VALUES") = want::kValues,
      py::arg("SMALL_VALUES") = want::kSmallValues,
      py::arg("HISTOGRAM") = want::kHistogram, py::arg("UNITS") = want::kUnits,
      py::arg("LIMITED_VALUES") = want::kLimitedValues);

  py::class_<CallTaker> call_taker(module, "CallTaker", PlainType());
  call_taker
      .def(py::init<py::object, py::object, py::object>(), py::arg("taker"),
           py::arg("key"), py::arg("backward_id"))
      .def("prepare", &CallTaker::Prepare, py::arg("wants"), py::arg("input"),
           py::arg("of_input"), py::arg("output"), py::arg("of_output"));
  AddQuick(call_taker, &call_method);

  py::class_<ParameterList>(module, "ParameterList", PlainType())
      .def(py::init<py::object, const py::iterable&>(), py::arg("taker"),
           py::arg("entries"))
      .def("take", &ParameterList::Take, py::arg("step"))
      .def("found", &ParameterList::Found);
}

}  // namespace tdbg::bindings
