#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/crc32c.h"
#include "bindings/convert.h"
#include "bindings/register.h"
#include "bindings/tables.h"
#include "reducers/histogram.h"
#include "reducers/implementation.h"
#include "reducers/reduce.h"

namespace tdbg::bindings {
namespace {

std::string ActiveName() {
  return std::string(ValueOrThrow(ActiveImplementation())->name);
}

std::vector<std::string> SupportedNames() {
  std::vector<std::string> names;
  for (const Implementation& implementation : Implementations()) {
    if (implementation.supported()) {
      names.emplace_back(implementation.name);
    }
  }
  return names;
}

void CheckScale(DType dtype, double scale) {
  if (scale != 1.0 && ExtremeClassOf(dtype) != ExtremeClass::kFloat64) {
    Throw(Status::InvalidArgument("integers and bool cannot be scaled"));
  }
}

py::object ReduceArray(const py::object& object, double scale, bool precise,
                       unsigned threads, const std::string& implementation) {
  const ArrayView array = ViewForStatistics(object);
  CheckScale(array.dtype, scale);
  const Implementation* chosen =
      implementation.empty()
          ? &ImplementationInUse()
          : ValueOrThrow(SelectImplementation(implementation));
  ColumnRow row;
  {
    const ReleaseGil released;
    row.summary = ReduceWith(
        array.view(),
        {.scale = scale, .precise = precise, .n_threads = threads}, *chosen);
  }
  return TableOf(std::vector<ColumnRow>{row}).attr("reshape")(py::tuple());
}

py::tuple CountArrayBins(const py::object& object, double scale) {
  const ArrayView array = ViewForStatistics(object);
  CheckScale(array.dtype, scale);
  BinCounts bins;
  {
    const ReleaseGil released;
    bins = CountBins(array.view(), scale);
  }
  return py::make_tuple(
      ArrayOf(std::move(bins.keys), py::dtype::of<std::uint16_t>()),
      ArrayOf(std::move(bins.counts), py::dtype::of<std::uint64_t>()));
}

py::array CountArrayUnits(const py::object& object, py::ssize_t axis,
                          double low, double high) {
  const ArrayView array = ViewForStatistics(object);
  const py::ssize_t n_dims = array.array.ndim();
  if (axis < 0 || axis >= n_dims) {
    Throw(Status::InvalidArgument("an array of " + std::to_string(n_dims) +
                                  " dimensions has no axis " +
                                  std::to_string(axis)));
  }
  const auto n_units = static_cast<std::size_t>(array.array.shape(axis));
  std::vector<std::uint64_t> counts(3 * n_units);
  {
    const ReleaseGil released;
    std::vector<UnitCounts> units(n_units);
    CountUnits(array.view(), static_cast<std::size_t>(axis), low, high, units);
    for (std::size_t i = 0; i < n_units; ++i) {
      counts[i] = units[i].active;
      counts[n_units + i] = units[i].out_of_range;
      counts[2 * n_units + i] = units[i].count;
    }
  }
  return ArrayOf(std::move(counts), py::dtype::of<std::uint64_t>())
      .reshape({py::ssize_t{3}, static_cast<py::ssize_t>(n_units)});
}

std::uint32_t MaskedCrc(const py::bytes& data) {
  const std::string_view view = data;
  const ReleaseGil released;
  return MaskedCrc32c(view.data(), view.size());
}

}  // namespace

void RegisterStatistics(py::module_& module) {
  module.attr("ROW_DTYPE") = TableDType<ColumnRow>();
  module.def("implementation", &ActiveName);
  module.def("implementations", &SupportedNames);
  module.def("reduce", &ReduceArray, py::arg("array"), py::arg("scale") = 1.0,
             py::arg("precise") = false, py::arg("threads") = 1,
             py::arg("implementation") = "");
  module.def("count_bins", &CountArrayBins, py::arg("array"),
             py::arg("scale") = 1.0);
  module.def("count_units", &CountArrayUnits, py::arg("array"), py::arg("axis"),
             py::arg("low"), py::arg("high"));
  module.def("masked_crc32c", &MaskedCrc, py::arg("data"));
}

}  // namespace tdbg::bindings
