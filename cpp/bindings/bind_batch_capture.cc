#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/register.h"
#include "capture/capture.h"
#include "python_capture/batch_capture.h"
#include "python_capture/module_call_capture.h"
#include "python_capture/parameter_capture.h"
#include "python_capture/tensor_entry.h"
#include "python_capture/tensor_shard.h"
#include "python_capture/update_capture.h"

namespace tdbg::bindings {
namespace {

using python_capture::BatchCapture;
using python_capture::CaptureContext;
using python_capture::ModuleCallCapture;
using python_capture::ParameterCapture;
using python_capture::ParseTensorShard;
using python_capture::Placements;
using python_capture::TensorRequest;
using python_capture::UpdateCapture;
namespace capture_flags = python_capture::capture_flags;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Requests for these tensors.  The tuples keep what the requests point to.
std::vector<TensorRequest> RequestsOf(const py::tuple& entries,
                                      const py::tuple& tensors,
                                      const py::tuple& flags) {
  const std::size_t n = tensors.size();
  if (entries.size() != n || flags.size() != n) {
    throw py::value_error("entries, tensors and flags differ in length");
  }
  std::vector<TensorRequest> requests(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto place = static_cast<Py_ssize_t>(i);
    TensorRequest& request = requests[i];
    request.tensor = PyTuple_GET_ITEM(tensors.ptr(), place);
    request.flags = PyLong_AsLong(PyTuple_GET_ITEM(flags.ptr(), place));
    if (request.flags == -1 && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    request.entry = &py::handle(PyTuple_GET_ITEM(entries.ptr(), place))
                         .cast<python_capture::TensorEntry&>();
  }
  return requests;
}

// BatchCapture.take.  It takes arguments by position only, without pybind11's
// dispatch, which costs as much as reducing a small tensor.
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
    auto& batch = py::handle(self).cast<BatchCapture&>();
    CaptureContext context{
        .step = integer(0),
        .site = {Saturate16(integer(4)), Saturate16(integer(5))},
        .reuses_rows = arguments[7] == Py_True};
    bool has_scale = true;
    if (PyFloat_Check(arguments[6]) != 0) {
      context.scale = PyFloat_AS_DOUBLE(arguments[6]);
    } else {
      has_scale = batch.ReadDivisor(arguments[6], &context);
    }
    const py::tuple entries = AsTuple(arguments[1]);
    const py::tuple tensors = AsTuple(arguments[2]);
    const std::vector<TensorRequest> requests =
        RequestsOf(entries, tensors, AsTuple(arguments[3]));
    std::vector<std::size_t> unhandled;
    if (has_scale) {
      unhandled = batch.Take(context, requests);
    } else {
      unhandled.resize(requests.size());
      std::iota(unhandled.begin(), unhandled.end(), 0);
    }
    if (unhandled.empty()) {
      Py_RETURN_NONE;
    }
    return py::cast(unhandled).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

bool TakeNumbers(BatchCapture& batch, std::int64_t step,
                 const py::sequence& entries, const py::object& numbers,
                 const py::sequence& flags) {
  const py::tuple kept_entries = AsTuple(entries);
  std::vector<TensorRequest> requests(kept_entries.size());
  std::vector<std::int64_t> all_flags;
  AppendIntegers(flags, &all_flags);
  if (all_flags.size() != requests.size()) {
    throw py::value_error("entries and flags differ in length");
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].entry = &kept_entries[i].cast<python_capture::TensorEntry&>();
    requests[i].flags = static_cast<long>(all_flags[i]);
  }
  return batch.TakeNumbers({.step = step, .site = {}}, numbers.ptr(), requests);
}

// ModuleCallCapture.take: args, kwargs and output of one call of a module.
PyObject* TakeCall(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  if (n != 3) {
    PyErr_SetString(PyExc_TypeError, "take() takes 3 arguments");
    return nullptr;
  }
  const bool is_taken = py::handle(self).cast<ModuleCallCapture&>().Take(
      arguments[0], arguments[1], arguments[2]);
  return PyBool_FromLong(static_cast<long>(is_taken));
}

void BeginForward(BatchCapture& batch, py::object context, py::dict calls,
                  py::object request, std::int64_t step,
                  std::int64_t micro_batch) {
  batch.forward() = {.is_open = true,
                     .has_data = false,
                     .context = std::move(context),
                     .calls = std::move(calls),
                     .request = std::move(request),
                     .step = step,
                     .micro_batch = Saturate16(micro_batch)};
}

std::vector<std::size_t> BeginValues(BatchCapture& batch, std::int64_t step,
                                     const py::list& entries,
                                     const py::list& tensors) {
  const py::tuple flags(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    flags[i] = py::int_(capture_flags::kValues);
  }
  const auto kept_entries = py::tuple(entries);
  const auto kept_tensors = py::tuple(tensors);
  return batch.BeginValues(step, RequestsOf(kept_entries, kept_tensors, flags));
}

void EndForward(BatchCapture& batch) { batch.forward() = {}; }

using Method = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef MethodOf(Method method, const char* doc) noexcept {
  return {"take",
          reinterpret_cast<PyCFunction>(              // NOLINT
              reinterpret_cast<void (*)()>(method)),  // NOLINT
          METH_FASTCALL, doc};
}

PyMethodDef take_method =
    MethodOf(&TakeByPosition, "Captures these tensors now.");
PyMethodDef call_method = MethodOf(
    &TakeCall, "Captures one call of a module; False if nothing was captured.");

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

void RegisterBatchCapture(py::module_& module) {
  py::class_<python_capture::TensorEntry>(module, "TensorEntry", PlainType())
      .def(py::init([](const py::str& name, std::uint16_t role,
                       const py::sequence& aliases, const py::str& unit_summary,
                       std::vector<std::int64_t> global_shape,
                       std::vector<std::int64_t> global_offset,
                       const Placements& placements, double low, double high,
                       bool rows_are_units, bool units_last) {
             std::vector<std::string> names;
             for (const py::handle alias : aliases) {
               names.push_back(Utf8(alias));
             }
             return python_capture::TensorEntry(
                 Utf8(name), static_cast<TensorRole>(role), std::move(names),
                 Utf8(unit_summary),
                 ValueOrThrow(ParseTensorShard(std::move(global_shape),
                                               std::move(global_offset),
                                               placements)),
                 {.low = low,
                  .high = high,
                  .rows_are_units = rows_are_units,
                  .units_last = units_last});
           }),
           py::arg("name"), py::arg("role"), py::arg("aliases") = py::tuple(),
           py::arg("unit_summary") = "",
           py::arg("global_shape") = std::vector<std::int64_t>{},
           py::arg("global_offset") = std::vector<std::int64_t>{},
           py::arg("placements") = Placements{}, py::kw_only(),
           py::arg("low") = -kInfinity, py::arg("high") = kInfinity,
           py::arg("rows_are_units") = false, py::arg("units_last") = false)
      .def_property("raw_limit", &python_capture::TensorEntry::raw_limit,
                    &python_capture::TensorEntry::set_raw_limit)
      .def_property_readonly("too_large",
                             &python_capture::TensorEntry::too_large)
      .def("is_within_limit", &python_capture::TensorEntry::IsWithinLimit,
           py::arg("n_bytes"));
  py::class_<BatchCapture> batch_capture(module, "BatchCapture", PlainType());
  batch_capture
      .def(py::init<Capture&, const py::tuple&>(), py::arg("capture"),
           py::arg("types"), py::keep_alive<1, 2>())
      .def_property_readonly("can_read", &BatchCapture::CanRead)
      .def_property_readonly("n_repeated", &BatchCapture::n_repeated)
      .def_property_readonly("n_too_large", &BatchCapture::n_too_large)
      .def_property_readonly("spent_ns", &BatchCapture::spent_ns)
      .def_property_readonly("devices", &BatchCapture::devices)
      .def("begin_forward", &BeginForward, py::arg("context"), py::arg("calls"),
           py::arg("request"), py::arg("step"), py::arg("micro_batch"))
      .def("end_forward", &EndForward)
      .def("begin_values", &BeginValues, py::arg("step"), py::arg("entries"),
           py::arg("tensors"))
      .def("fence", &BatchCapture::Fence)
      .def("take_numbers", &TakeNumbers, py::arg("step"), py::arg("entries"),
           py::arg("numbers"), py::arg("flags"));
  AddQuick(batch_capture, &take_method);

  py::class_<ModuleCallCapture> module_call_capture(module, "ModuleCallCapture",
                                                    PlainType());
  module_call_capture
      .def(py::init<py::object, py::object, py::object>(), py::arg("batch"),
           py::arg("key"), py::arg("backward_id"))
      .def("prepare", &ModuleCallCapture::Prepare, py::arg("request"),
           py::arg("input"), py::arg("input_flags"), py::arg("output"),
           py::arg("output_flags"));
  AddQuick(module_call_capture, &call_method);

  py::class_<ParameterCapture>(module, "ParameterCapture", PlainType())
      .def(py::init<py::object, const py::iterable&>(), py::arg("batch"),
           py::arg("parameters"))
      .def("take", &ParameterCapture::Take, py::arg("step"))
      .def("found", &ParameterCapture::Found);

  py::class_<UpdateCapture>(module, "UpdateCapture", PlainType())
      .def(py::init<py::object>(), py::arg("batch"))
      .def("begin", &UpdateCapture::Begin, py::arg("parameters"))
      .def("copy", &UpdateCapture::Copy)
      .def("end", &UpdateCapture::End, py::arg("step"), py::arg("entries"),
           py::arg("flags"), py::arg("keeps_memory"))
      .def("forget", &UpdateCapture::Forget)
      .def_property_readonly("n_bytes", &UpdateCapture::n_bytes);
}

}  // namespace tdbg::bindings
