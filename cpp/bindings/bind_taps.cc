#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/register.h"
#include "bindings/tables.h"
#include "capture/tap.h"
#include "tensor/dtype.h"

namespace tdbg::bindings {
namespace {

// One of the tensors that taps show, told apart by everything that its
// definition depends on: numbered from 0 in the order of their first
// appearance.
class TapTensors {
 public:
  // Tap, part, element type, shape, global shape, global offset.
  using Key =
      std::tuple<std::int64_t, std::int32_t, DType, std::vector<std::int64_t>,
                 std::vector<std::int64_t>, std::vector<std::int64_t>>;

  std::int32_t Number(Key key) {
    const auto next = static_cast<std::int32_t>(keys_.size());
    const auto [at, is_new] = numbers_.try_emplace(std::move(key), next);
    if (is_new) keys_.push_back(&at->first);
    return at->second;
  }
  [[nodiscard]] std::size_t size() const { return keys_.size(); }
  [[nodiscard]] py::tuple Describe(std::size_t number) const {
    const auto& [tap, part, dtype, shape, global_shape, global_offset] =
        *keys_.at(number);
    return py::make_tuple(
        tap, part, std::string(DTypeName(dtype)), py::tuple(py::cast(shape)),
        py::tuple(py::cast(global_shape)), py::tuple(py::cast(global_offset)));
  }

 private:
  std::map<Key, std::int32_t> numbers_;
  std::vector<const Key*> keys_;
};

using Request =
    std::tuple<std::int64_t, bool, std::uint64_t, bool, double, double, bool>;

std::shared_ptr<TapPlan> MakePlan(const std::vector<Request>& given,
                                  bool precise, std::uint64_t most_bytes) {
  std::vector<TapRequest> requests;
  requests.reserve(given.size());
  for (const auto& [tap, row, limit, units, low, high, rows_are_units] :
       given) {
    requests.push_back(
        {.tap = tap,
         .takes_row = row,
         .takes_units = units,
         .copy_limit = limit,
         .units = {
             .low = low, .high = high, .rows_are_units = rows_are_units}});
  }
  return std::make_shared<TapPlan>(std::move(requests), precise, most_bytes);
}

// The counts of each unit, as a table that unit summaries are stored as.
py::array TableOfUnits(const std::vector<UnitCounts>& units,
                       bool rows_are_units) {
  const std::size_t n = units.size();
  std::vector<std::uint64_t> counts(3 * n);
  for (std::size_t i = 0; i < n; ++i) {
    counts[i] = units[i].active + (rows_are_units ? units[i].out_of_range : 0);
    counts[n + i] = rows_are_units ? 0 : units[i].out_of_range;
    counts[2 * n + i] = units[i].count;
  }
  return ArrayOf(std::move(counts), py::dtype::of<std::uint64_t>())
      .reshape({py::ssize_t{3}, static_cast<py::ssize_t>(n)});
}

py::object BytesOf(const TapResult& result) {
  if (!result.has_values) return py::none();
  return ArrayOf(std::vector<std::byte>(result.values),
                 py::dtype::of<std::uint8_t>());
}

// The results of a step: numbers of the tensors with rows, these rows, and all
// else as tuples of a number, bytes or None, and unit counts or None.
py::tuple CloseStep(std::int64_t ticket, const TapPlan& plan,
                    TapTensors& tensors) {
  std::vector<std::unique_ptr<TapResult>> results;
  {
    const ReleaseGil released;
    results = TapSteps::OfProcess().Close(ticket);
  }
  std::vector<std::int32_t> numbers;
  std::vector<std::uint64_t> words;
  py::list others;
  // Devices show their parts in any order.
  std::stable_sort(
      results.begin(), results.end(), [](const auto& a, const auto& b) {
        return std::tie(a->tap, a->part) < std::tie(b->tap, b->part);
      });
  for (const auto& each : results) {
    TapTensors::Key key{each->tap,   each->part,         each->dtype,
                        each->shape, each->global_shape, each->global_offset};
    const std::int32_t number = tensors.Number(std::move(key));
    if (each->has_row) {
      numbers.push_back(number);
      words.resize(words.size() + 12);
      std::memcpy(words.data() + words.size() - 12, &each->row,
                  sizeof(Summary));
    }
    if (each->has_values || !each->units.empty()) {
      const TapRequest* const request = plan.Find(each->tap);
      const bool rows_are_units =
          request != nullptr && request->units.rows_are_units;
      py::object units = py::none();
      if (!each->units.empty()) {
        units = TableOfUnits(each->units, rows_are_units);
      }
      others.append(py::make_tuple(number, BytesOf(*each), units));
    }
  }
  return py::make_tuple(
      ArrayOf(std::move(numbers), py::dtype::of<std::int32_t>()),
      ArrayOf(std::move(words), py::dtype::of<std::uint64_t>())
          .reshape({py::ssize_t{-1}, py::ssize_t{12}}),
      others);
}

// Shows a tensor that a framework has copied to the host.
void ShowTensor(std::int64_t ticket, std::int64_t tap, const py::object& object,
                std::int32_t part,
                const std::vector<std::int64_t>& global_shape,
                const std::vector<std::int64_t>& global_offset) {
  const ArrayView array = ViewForStatistics(object);
  TensorView view = array.view();
  view.strides = {};  // In C order, as the caller says.
  const ReleaseGil released;
  TapSteps::OfProcess().Take(ticket, tap,
                             {.number = part,
                              .global_shape = global_shape,
                              .global_offset = global_offset},
                             view);
}

}  // namespace

void RegisterTaps(py::module_& module) {
  py::class_<TapTensors>(module, "TapTensors", PlainType())
      .def(py::init<>())
      .def("__len__", &TapTensors::size)
      .def("describe", &TapTensors::Describe, py::arg("number"));
  py::class_<TapPlan, std::shared_ptr<TapPlan>>(module, "TapPlan", PlainType())
      .def(py::init(&MakePlan), py::arg("requests"), py::arg("precise"),
           py::arg("most_bytes"));
  module.def(
      "open_tap_step",
      [](std::shared_ptr<TapPlan> plan) {
        return TapSteps::OfProcess().Open(std::move(plan));
      },
      py::arg("plan"));
  module.def(
      "replace_tap_plan",
      [](std::int64_t ticket, std::shared_ptr<TapPlan> plan) {
        TapSteps::OfProcess().Replace(ticket, std::move(plan));
      },
      py::arg("ticket"), py::arg("plan"));
  module.def("close_tap_step", &CloseStep, py::arg("ticket"), py::arg("plan"),
             py::arg("tensors"));
  module.def("show_tensor", &ShowTensor, py::arg("ticket"), py::arg("tap"),
             py::arg("array"), py::arg("part") = 0,
             py::arg("global_shape") = std::vector<std::int64_t>(),
             py::arg("global_offset") = std::vector<std::int64_t>());
  module.def("n_taps_lost", [] { return TapSteps::OfProcess().n_lost(); });
  module.def("n_tap_steps_open", [] { return TapSteps::OfProcess().n_open(); });
}

}  // namespace tdbg::bindings
