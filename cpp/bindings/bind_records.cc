#include <cstdint>
#include <string>
#include <vector>

#include "bindings/convert.h"
#include "bindings/register.h"
#include "format/record.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {
namespace {

py::tuple TupleOf(const std::vector<std::int64_t>& values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    result[i] = values[i];
  }
  return result;
}

py::tuple PlacementsOf(const Definition& definition) {
  py::tuple result(definition.placements.size());
  for (std::size_t i = 0; i < definition.placements.size(); ++i) {
    const Placement& placement = definition.placements[i];
    result[i] = py::make_tuple(static_cast<int>(placement.kind),
                               placement.reduction, placement.dimension,
                               placement.mesh_size, placement.coordinate);
  }
  return result;
}

void RegisterDefinition(py::module_& module) {
  py::class_<Definition>(module, "Definition", PlainType())
      .def_property_readonly("id", [](const Definition& d) { return d.id; })
      .def_property_readonly("name",
                             [](const Definition& d) { return Text(d.name); })
      .def_property_readonly("aliases",
                             [](const Definition& d) {
                               py::tuple result(d.aliases.size());
                               for (std::size_t i = 0; i < result.size(); ++i) {
                                 result[i] = Text(d.aliases[i]);
                               }
                               return result;
                             })
      .def_property_readonly(
          "role", [](const Definition& d) { return static_cast<int>(d.role); })
      .def_property_readonly(
          "dtype",
          [](const Definition& d) {
            return d.dtype == DType::kNumpy
                       ? Text(d.dtype_text)
                       : Text(std::string(DTypeName(d.dtype)));
          })
      .def_property_readonly("item_size",
                             [](const Definition& d) { return d.item_size; })
      .def_property_readonly("flags",
                             [](const Definition& d) { return d.flags; })
      .def_property_readonly(
          "shape", [](const Definition& d) { return TupleOf(d.shape); })
      .def_property_readonly(
          "global_shape",
          [](const Definition& d) { return TupleOf(d.global_shape); })
      .def_property_readonly(
          "global_offset",
          [](const Definition& d) { return TupleOf(d.global_offset); })
      .def_property_readonly("placements", &PlacementsOf);
}

void RegisterEvent(py::module_& module) {
  py::class_<EventEntry>(module, "Event", PlainType())
      .def_property_readonly("step", [](const EventEntry& e) { return e.step; })
      .def_property_readonly(
          "kind",
          [](const EventEntry& e) { return static_cast<int>(e.event.kind); })
      .def_property_readonly(
          "severity", [](const EventEntry& e) { return e.event.severity; })
      .def_property_readonly(
          "wall_ns", [](const EventEntry& e) { return e.event.wall_ns; })
      .def_property_readonly("sequence",
                             [](const EventEntry& e) { return e.sequence; })
      .def_property_readonly(
          "json", [](const EventEntry& e) { return py::bytes(e.event.json); });
}

void RegisterProblem(py::module_& module) {
  py::class_<Problem>(module, "Problem", PlainType())
      .def_property_readonly(
          "kind", [](const Problem& p) { return ProblemName(p.kind); })
      .def_property_readonly("file",
                             [](const Problem& p) { return Text(p.file); })
      .def_property_readonly("offset",
                             [](const Problem& p) { return p.offset; })
      .def_property_readonly("length",
                             [](const Problem& p) { return p.length; })
      .def_property_readonly("message",
                             [](const Problem& p) { return Text(p.message); });
}

}  // namespace

void RegisterRecords(py::module_& module) {
  RegisterDefinition(module);
  RegisterEvent(module);
  RegisterProblem(module);
}

}  // namespace tdbg::bindings
