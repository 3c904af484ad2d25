// Envelopes: the grid, and the questions to a reader that fill it.

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/locked_reader.h"
#include "bindings/tables.h"
#include "reader/envelope.h"

namespace tdbg::bindings {
namespace {

std::unique_ptr<EnvelopeGrid> MakeGrid(std::size_t n_names,
                                       const Numbers<std::int64_t>& edges,
                                       const std::vector<unsigned>& fields) {
  std::vector<std::int64_t> bounds = VectorOf(edges);
  if (bounds.empty() || !std::is_sorted(bounds.begin(), bounds.end())) {
    throw py::value_error("edges must ascend");
  }
  std::vector<CellField> chosen;
  for (const unsigned field : fields) {
    if (field >= kCellFields) throw py::value_error("no such field");
    chosen.push_back(static_cast<CellField>(field));
  }
  return std::make_unique<EnvelopeGrid>(n_names, std::move(bounds),
                                        std::move(chosen));
}

// As names x columns.
template <typename Value>
py::array Table(const EnvelopeGrid& grid, std::vector<Value> values) {
  const auto n_names = static_cast<py::ssize_t>(grid.n_names());
  const auto n_columns = static_cast<py::ssize_t>(grid.n_columns());
  return ArrayOf(std::move(values), py::dtype::of<Value>())
      .reshape({n_names, n_columns});
}

py::array Values(const EnvelopeGrid& grid, std::size_t field,
                 std::vector<float> (EnvelopeGrid::*values)(std::size_t)
                     const) {
  if (field >= grid.fields().size()) throw py::index_error("no such field");
  return Table(grid, (grid.*values)(field));
}

py::array FirstBad(const EnvelopeGrid& grid) {
  std::vector<std::int64_t> steps = grid.first_bad();
  std::replace(steps.begin(), steps.end(), EnvelopeGrid::kNone,
               std::int64_t{-1});
  return ArrayOf(std::move(steps), py::dtype::of<std::int64_t>());
}

// Steps start <= step < stop.
StepRange Steps(std::int64_t start, std::int64_t stop) {
  if (stop == std::numeric_limits<std::int64_t>::min()) return {};
  return {start, stop - 1};
}

std::size_t AddToEnvelope(LockedReader& reader, EnvelopeGrid& grid,
                          const Numbers<std::uint32_t>& definitions,
                          const Numbers<std::uint32_t>& names,
                          std::int64_t start, std::int64_t stop,
                          std::optional<std::uint32_t> mode,
                          std::optional<std::size_t> n_shards) {
  const EnvelopeIds asked = {.definitions = VectorOf(definitions),
                             .names = VectorOf(names),
                             .steps = Steps(start, stop),
                             .mode = mode};
  if (asked.names.size() != asked.definitions.size() ||
      std::any_of(asked.names.begin(), asked.names.end(),
                  [&](std::uint32_t name) { return name >= grid.n_names(); })) {
    throw py::value_error("each definition needs a name of the grid");
  }
  return reader.With([&](RunReader& inner) {
    return inner.AddToEnvelope(
        asked, n_shards.value_or(std::numeric_limits<std::size_t>::max()),
        &grid);
  });
}

std::vector<std::pair<std::int64_t, std::uint64_t>> FindBuckets(
    LockedReader& reader, std::int64_t start, std::int64_t stop) {
  std::vector<std::pair<std::int64_t, std::uint64_t>> found;
  for (const CellBuckets& of_shard : reader.With([&](RunReader& inner) {
         return inner.FindBuckets(Steps(start, stop));
       })) {
    found.emplace_back(of_shard.steps, of_shard.n_rows);
  }
  return found;
}

}  // namespace

void RegisterEnvelope(py::module_& module, py::class_<LockedReader>& reader) {
  using Self = EnvelopeGrid;
  py::class_<Self>(module, "EnvelopeGrid", PlainType())
      .def(py::init(&MakeGrid), py::arg("n_names"), py::arg("edges"),
           py::arg("fields"))
      .def(
          "low",
          [](const Self& self, std::size_t field) {
            return Values(self, field, &Self::Low);
          },
          py::arg("field"))
      .def(
          "high",
          [](const Self& self, std::size_t field) {
            return Values(self, field, &Self::High);
          },
          py::arg("field"))
      .def(
          "mean",
          [](const Self& self, std::size_t field) {
            return Values(self, field, &Self::Mean);
          },
          py::arg("field"))
      .def("rows", [](const Self& self) { return Table(self, self.rows()); })
      .def("bad", [](const Self& self) { return Table(self, self.bad()); })
      .def("first_bad", &FirstBad)
      .def_property_readonly("n_rows", &Self::n_rows);
  reader
      .def("add_to_envelope", &AddToEnvelope, py::arg("grid"),
           py::arg("definitions"), py::arg("names"), py::arg("start"),
           py::arg("stop"), py::arg("mode") = py::none(),
           py::arg("n_shards") = py::none())
      .def("cell_buckets", &FindBuckets, py::arg("start"), py::arg("stop"));
}

}  // namespace tdbg::bindings
