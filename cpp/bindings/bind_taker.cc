#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/exchange.h"
#include "bindings/register.h"
#include "bindings/seen.h"
#include "bindings/slot.h"
#include "capture/capture.h"
#include "reducers/reduce.h"

namespace tdbg::bindings {
namespace {

// What is wanted of a tensor: the flags of tdbg.capture.wants.
constexpr long kRows = 1;
constexpr long kValues = 2;
constexpr long kSmallValues = 4;
constexpr long kHistogram = 8;
constexpr long kUnits = 16;

// Less than this is reduced without giving the GIL away: to get it back costs
// more, and beside busy threads up to 5 ms.
constexpr std::uint64_t kQuickBytes = 128 << 10;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Job {
  Exchanged read;
  std::uint32_t id = 0;
  std::uint32_t units_id = 0;
  long wanted = 0;

  [[nodiscard]] CaptureItem item() const {
    return {.definition = id, .data = read.data, .strides = read.strides()};
  }
};

// Where and how the tensors of one call are taken.
struct Occasion {
  std::int64_t step = 0;
  CallSite site;
  double scale = 1.0;
};

// Takes what is wanted of tensors that the exchange API can read, in one call
// for all of them.
class Taker {
 public:
  Taker(Capture& capture, const py::tuple& types)
      : capture_(capture), exchange_(types) {}

  [[nodiscard]] bool CanRead() const { return !exchange_.empty(); }
  [[nodiscard]] std::uint64_t n_repeated() const { return n_repeated_; }

  // Indices of the tensors that this cannot read.
  std::vector<std::size_t> Take(const Occasion& when, const py::tuple& slots,
                                const py::tuple& tensors,
                                const py::tuple& wanted, bool reuses);

 private:
  Job Prepare(Slot& slot, const Exchanged& read, long wanted);
  // Whether the row is a copy of one that the step has.
  bool Repeats(const Occasion& when, PyObject* tensor, const Job& job);
  void TakeRest(const Occasion& when, const Job& job);

  Capture& capture_;
  const Exchange exchange_;
  Seen seen_;
  std::uint64_t n_repeated_ = 0;
};

Job Taker::Prepare(Slot& slot, const Exchanged& read, long wanted) {
  Job job{.read = read, .id = slot.IdOf(read, capture_), .wanted = wanted};
  if ((wanted & kUnits) != 0 && slot.has_units() && read.n_dimensions > 0) {
    job.units_id =
        slot.UnitsOf(read.extents[UnitAxis(read.n_dimensions)], capture_);
  }
  return job;
}

bool Taker::Repeats(const Occasion& when, PyObject* tensor, const Job& job) {
  const Taken* const before =
      seen_.Find(tensor, job.read, {.definition = job.id, .site = when.site});
  const bool repeats =
      before != nullptr && capture_.Repeat(when.step, job.id, when.site,
                                           before->definition, before->site);
  if (repeats) ++n_repeated_;
  return repeats;
}

void Taker::TakeRest(const Occasion& when, const Job& job) {
  // Of several micro-batches the first one's values are kept.
  const bool takes_values =
      when.site.micro_batch == 0 &&
      ((job.wanted & kValues) != 0 ||
       ((job.wanted & kSmallValues) != 0 && job.read.count == 1));
  if (takes_values) capture_.Values(when.step, job.item(), when.site);
  if ((job.wanted & kHistogram) != 0) {
    capture_.CountHistogram(when.step, job.item(), when.site, when.scale);
  }
  if (job.units_id != 0) {
    capture_.UnitSummary(when.step, job.units_id, job.item(), when.site,
                         -kInfinity, kInfinity);
  }
}

std::vector<std::size_t> Taker::Take(const Occasion& when,
                                     const py::tuple& slots,
                                     const py::tuple& tensors,
                                     const py::tuple& wanted, bool reuses) {
  const std::size_t n = tensors.size();
  if (slots.size() != n || wanted.size() != n) {
    throw py::value_error("slots, tensors and wanted differ in length");
  }
  if (reuses) seen_.Begin(when.step, when.site.micro_batch);
  std::vector<std::size_t> left;
  std::vector<Job> jobs;
  std::vector<CaptureItem> rows;
  jobs.reserve(n);  // The items point into it.
  rows.reserve(n);
  std::uint64_t n_bytes = 0;
  bool is_quick = true;
  for (std::size_t i = 0; i < n; ++i) {
    const auto place = static_cast<Py_ssize_t>(i);
    PyObject* const tensor = PyTuple_GET_ITEM(tensors.ptr(), place);
    const long flags = PyLong_AsLong(PyTuple_GET_ITEM(wanted.ptr(), place));
    if (flags == -1 && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    auto& slot = py::handle(PyTuple_GET_ITEM(slots.ptr(), place)).cast<Slot&>();
    Exchanged read;
    if (!exchange_.Read(tensor, &read)) {
      left.push_back(i);
      continue;
    }
    const Job& job = jobs.emplace_back(Prepare(slot, read, flags));
    if ((flags & ~kRows) != 0) is_quick = false;
    if ((flags & kRows) == 0) continue;
    if (reuses && Repeats(when, tensor, job)) continue;
    n_bytes += read.n_bytes();
    rows.push_back(job.item());
  }
  if (is_quick && n_bytes <= kQuickBytes && capture_.HasRoom(rows.size())) {
    if (!rows.empty()) {
      capture_.Statistics(when.step, rows, when.site, when.scale);
    }
    return left;
  }
  const ReleaseGil released;
  if (!rows.empty()) {
    capture_.Statistics(when.step, rows, when.site, when.scale);
  }
  if (!is_quick) {
    for (const Job& job : jobs) TakeRest(when, job);
  }
  return left;
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
    const double scale = PyFloat_AsDouble(arguments[6]);
    if (scale == -1.0 && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    const Occasion when{
        .step = integer(0),
        .site = {Saturate16(integer(4)), Saturate16(integer(5))},
        .scale = scale};
    const std::vector<std::size_t> left = py::handle(self).cast<Taker&>().Take(
        when, AsTuple(arguments[1]), AsTuple(arguments[2]),
        AsTuple(arguments[3]), arguments[7] == Py_True);
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

PyMethodDef take_method = {
    "take",
    reinterpret_cast<PyCFunction>(                       // NOLINT
        reinterpret_cast<void (*)()>(&TakeByPosition)),  // NOLINT
    METH_FASTCALL, "What is wanted of these tensors, now."};

}  // namespace

void RegisterTaker(py::module_& module) {
  py::class_<Slot>(module, "Slot", PlainType())
      .def(py::init([](const py::str& name, std::uint16_t role,
                       const py::sequence& aliases, const py::str& units) {
             std::vector<std::string> others;
             for (const py::handle alias : aliases) {
               others.push_back(Utf8(alias));
             }
             return Slot(Utf8(name), static_cast<TensorRole>(role),
                         std::move(others), Utf8(units));
           }),
           py::arg("name"), py::arg("role"), py::arg("aliases") = py::tuple(),
           py::arg("units") = "");
  py::class_<Taker> taker(module, "Taker", PlainType());
  taker
      .def(py::init<Capture&, const py::tuple&>(), py::arg("capture"),
           py::arg("types"), py::keep_alive<1, 2>())
      .def_property_readonly("can_read", &Taker::CanRead)
      .def_property_readonly("n_repeated", &Taker::n_repeated);
  auto* const type = reinterpret_cast<PyTypeObject*>(taker.ptr());
  const auto method =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &take_method));
  if (!method) {
    throw py::error_already_set();
  }
  taker.attr("take") = method;
}

}  // namespace tdbg::bindings
