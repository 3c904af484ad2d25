// Questions to a reader by step and definition.

#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/locked_reader.h"
#include "bindings/tables.h"

namespace tdbg::bindings {
namespace {

// Ids that no definition can have name nothing, and are left out.
std::vector<std::uint32_t> ParseIds(const py::object& definitions) {
  std::vector<std::int64_t> numbers;
  AppendIntegers(definitions, &numbers);
  std::vector<std::uint32_t> ids;
  for (const std::int64_t number : numbers) {
    if (number > 0 && number <= std::numeric_limits<std::uint32_t>::max()) {
      ids.push_back(static_cast<std::uint32_t>(number));
    }
  }
  return ids;
}

RunReader::DefinitionFilter ParseDefinitionFilter(
    const py::object& definitions) {
  if (definitions.is_none()) return std::nullopt;
  return ParseIds(definitions);
}

// Steps start <= step < stop; None: no bound.
StepRange ParseSteps(std::optional<std::int64_t> start,
                     std::optional<std::int64_t> stop) {
  StepRange steps = kAllSteps;
  if (start) steps.first = *start;
  if (stop) {
    if (*stop == kAllSteps.first) return {0, -1};
    steps.last = *stop - 1;
  }
  return steps;
}

py::array Column(LockedReader& reader, const py::object& definitions,
                 std::optional<std::int64_t> start,
                 std::optional<std::int64_t> stop) {
  const std::vector<std::uint32_t> ids = ParseIds(definitions);
  const StepRange steps = ParseSteps(start, stop);
  return TableOf(reader.With(
      [&](RunReader& inner) { return inner.FindRows(steps, ids); }));
}

// A copy of what numbers a caller gives, ascending and each once.
template <typename T>
std::vector<T> Ascending(const Numbers<T>& given) {
  std::vector<T> numbers = VectorOf(given);
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

py::tuple GatherRows(LockedReader& reader,
                     const Numbers<std::uint32_t>& definitions,
                     const Numbers<std::int64_t>& steps,
                     const std::vector<std::size_t>& fields) {
  const RowColumnsQuery query = {.definitions = Ascending(definitions),
                                 .steps = Ascending(steps),
                                 .fields = fields};
  if (std::any_of(fields.begin(), fields.end(),
                  [](std::size_t field) { return field >= kRowFields; })) {
    throw py::value_error("a row has no such field");
  }
  RowColumns gathered(&query);
  reader.With([&](RunReader& inner) { inner.GatherRows(query, &gathered); });
  std::vector<std::uint32_t> of;
  std::vector<std::uint64_t> counts;
  std::vector<std::uint8_t> ascend;
  for (const RowColumns::Stretch& stretch : gathered.stretches) {
    of.push_back(stretch.definition);
    counts.push_back(stretch.n);
    ascend.push_back(stretch.ascends ? 1 : 0);
  }
  py::list columns;
  for (std::vector<std::uint64_t>& field : gathered.fields()) {
    columns.append(ArrayOf(std::move(field), py::dtype::of<std::uint64_t>()));
  }
  return py::make_tuple(
      ArrayOf(std::move(of), py::dtype::of<std::uint32_t>()),
      ArrayOf(std::move(counts), py::dtype::of<std::uint64_t>()),
      ArrayOf(std::move(ascend), py::dtype::of<bool>()),
      ArrayOf(std::move(gathered.places), py::dtype::of<std::uint32_t>()),
      columns);
}

py::array Segments(LockedReader& reader, std::optional<std::int64_t> start,
                   std::optional<std::int64_t> stop) {
  const StepRange steps = ParseSteps(start, stop);
  return TableOf(
      reader.With([&](RunReader& inner) { return inner.FindSegments(steps); }));
}

py::array Signature(LockedReader& reader, std::uint64_t number) {
  return ArrayOf(reader.With([&](RunReader& inner) {
    const auto ids = inner.Signature(number);
    return std::vector<std::uint32_t>(ids.begin(), ids.end());
  }),
                 py::dtype::of<std::uint32_t>());
}

// The entries, and their places in the whole table.
template <typename Entry>
py::tuple Places(std::vector<Placed<Entry>> found) {
  std::vector<Entry> entries;
  std::vector<std::uint64_t> places;
  entries.reserve(found.size());
  places.reserve(found.size());
  for (const Placed<Entry>& one : found) {
    entries.push_back(one.entry);
    places.push_back(one.place);
  }
  return py::make_tuple(
      TableOf(std::move(entries)),
      ArrayOf(std::move(places), py::dtype::of<std::uint64_t>()));
}

py::tuple FindTensors(LockedReader& reader, std::optional<std::int64_t> start,
                      std::optional<std::int64_t> stop,
                      const py::object& definitions) {
  const auto filter = ParseDefinitionFilter(definitions);
  const StepRange steps = ParseSteps(start, stop);
  return Places(reader.With(
      [&](RunReader& inner) { return inner.FindTensors(steps, filter); }));
}

py::tuple FindScalars(LockedReader& reader, std::optional<std::int64_t> start,
                      std::optional<std::int64_t> stop,
                      const py::object& definitions) {
  const auto filter = ParseDefinitionFilter(definitions);
  const StepRange steps = ParseSteps(start, stop);
  return Places(reader.With(
      [&](RunReader& inner) { return inner.FindScalars(steps, filter); }));
}

// The rows of a table as bytes, each as long as its definition says, and the
// sequence of the last record that was looked at.
py::tuple ReadSamples(LockedReader& reader, std::uint32_t id,
                      std::optional<std::int64_t> start,
                      std::optional<std::int64_t> stop, std::uint64_t after) {
  const StepRange times = ParseSteps(start, stop);
  std::vector<std::uint8_t> rows;
  reader.With([&](RunReader& inner) {
    const auto definition = inner.definitions().Find(id);
    if (!definition) return;
    const std::size_t size = definition->item_size;
    for (const SamplesPlace& place : inner.FindSamples(
             {times.first, times.last}, std::span(&id, 1), after)) {
      after = place.sequence;
      const std::vector<std::byte> payload = inner.ReadSamples(place);
      const auto head = DecodeSamplesHead(payload);
      if (!head.ok() || head.value().row_size < size) continue;
      const std::byte* row = payload.data() + kSamplesHeadBytes;
      for (std::uint32_t i = 0; i < head.value().n_rows; ++i) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(row);
        rows.insert(rows.end(), bytes, bytes + size);
        row += head.value().row_size;
      }
    }
  });
  return py::make_tuple(ArrayOf(std::move(rows), py::dtype::of<std::uint8_t>()),
                        after);
}

py::object RecordedSteps(LockedReader& reader) {
  const auto range =
      reader.With([](RunReader& inner) { return inner.RecordedSteps(); });
  if (!range) return py::none();
  return py::make_tuple(range->first, range->last);
}

py::array SavedSteps(LockedReader& reader, std::optional<std::int64_t> start,
                     std::optional<std::int64_t> stop,
                     const py::object& definitions, bool rows, bool tensors,
                     bool scalars) {
  const auto filter = ParseDefinitionFilter(definitions);
  const StepRange steps = ParseSteps(start, stop);
  const RunReader::Kinds kinds = {
      .rows = rows, .tensors = tensors, .scalars = scalars};
  return ArrayOf(reader.With([&](RunReader& inner) {
    return inner.SavedSteps(steps, filter, kinds);
  }),
                 py::dtype::of<std::int64_t>());
}

py::array FindSteps(LockedReader& reader, std::optional<std::int64_t> start,
                    std::optional<std::int64_t> stop) {
  const StepRange steps = ParseSteps(start, stop);
  return TableOf(
      reader.With([&](RunReader& inner) { return inner.FindSteps(steps); }));
}

std::uint64_t CountSteps(LockedReader& reader,
                         std::optional<std::int64_t> start,
                         std::optional<std::int64_t> stop) {
  const StepRange steps = ParseSteps(start, stop);
  return reader.With([&](RunReader& inner) { return inner.CountSteps(steps); });
}

}  // namespace

void RegisterQueries(py::class_<LockedReader>& type) {
  using Self = LockedReader;
  type.def("column", &Column, py::arg("definitions"),
           py::arg("start") = py::none(), py::arg("stop") = py::none())
      .def("gather_rows", &GatherRows, py::arg("definitions"), py::arg("steps"),
           py::arg("fields"))
      .def("segments", &Segments, py::arg("start") = py::none(),
           py::arg("stop") = py::none())
      .def("signature", &Signature, py::arg("number"))
      .def("find_tensors", &FindTensors, py::arg("start") = py::none(),
           py::arg("stop") = py::none(), py::arg("definitions") = py::none())
      .def("find_scalars", &FindScalars, py::arg("start") = py::none(),
           py::arg("stop") = py::none(), py::arg("definitions") = py::none())
      .def("saved_steps", &SavedSteps, py::arg("start") = py::none(),
           py::arg("stop") = py::none(), py::arg("definitions") = py::none(),
           py::kw_only(), py::arg("rows") = true, py::arg("tensors") = true,
           py::arg("scalars") = true)
      .def("find_steps", &FindSteps, py::arg("start") = py::none(),
           py::arg("stop") = py::none())
      .def("count_steps", &CountSteps, py::arg("start") = py::none(),
           py::arg("stop") = py::none())
      .def("read_samples", &ReadSamples, py::arg("definition"),
           py::arg("start") = py::none(), py::arg("stop") = py::none(),
           py::arg("after") = 0)
      .def("recorded_steps", &RecordedSteps)
      .def(
          "has_data",
          [](Self& self, std::int64_t step) {
            return self.With(
                [&](RunReader& reader) { return reader.HasData(step); });
          },
          py::arg("step"))
      .def_property_readonly("n_steps",
                             [](Self& self) {
                               return self.With([](RunReader& reader) {
                                 return reader.n_steps();
                               });
                             })
      .def_property_readonly("n_scalars",
                             [](Self& self) {
                               return self.With([](RunReader& reader) {
                                 return reader.n_scalars();
                               });
                             })
      .def_property_readonly(
          "n_held",
          [](Self& self) {
            return self.With([](RunReader& reader) { return reader.n_held(); });
          })
      .def_property_readonly("n_tensors", [](Self& self) {
        return self.With([](RunReader& reader) { return reader.n_tensors(); });
      });
}

}  // namespace tdbg::bindings
