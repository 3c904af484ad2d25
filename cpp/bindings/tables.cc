#include "bindings/tables.h"

#include <pybind11/stl.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace tdbg::bindings {
namespace {

struct Field {
  const char* name;
  const char* format;
};

// Fields follow each other without padding.
py::dtype MakeDType(std::initializer_list<Field> fields, std::size_t size) {
  py::list list;
  for (const Field& field : fields) {
    list.append(py::make_tuple(field.name, std::string("<") + field.format));
  }
  py::dtype dtype = py::dtype::from_args(list);
  if (static_cast<std::size_t>(dtype.itemsize()) != size) {
    throw std::logic_error("a table's dtype does not match its entries");
  }
  return dtype;
}

}  // namespace

PackedSpan Pack(const SpanEntry& entry) {
  return {.step = entry.step,
          .definition = entry.span.definition,
          .flags = entry.span.flags,
          .start_ns = entry.span.start_ns,
          .duration_ns = entry.span.duration_ns,
          .thread = entry.span.thread,
          .depth = entry.span.depth,
          .value = entry.span.value};
}

Span Unpack(const PackedSpan& packed) {
  return {.definition = packed.definition,
          .flags = packed.flags,
          .start_ns = packed.start_ns,
          .duration_ns = packed.duration_ns,
          .thread = packed.thread,
          .depth = packed.depth,
          .value = packed.value};
}

template <>
py::dtype TableDType<ColumnRow>() {
  return MakeDType({{"step", "i8"},
                    {"definition", "u4"},
                    {"call", "u2"},
                    {"micro_batch", "u2"},
                    {"flags", "u4"},
                    {"position", "u4"},
                    {"count", "u8"},
                    {"nan", "u8"},
                    {"positive_infinity", "u8"},
                    {"negative_infinity", "u8"},
                    {"zero", "u8"},
                    {"min", "u8"},
                    {"max", "u8"},
                    {"abs_min", "f8"},
                    {"mean", "f8"},
                    {"m2", "f8"},
                    {"l1", "f8"},
                    {"l2", "f8"}},
                   sizeof(ColumnRow));
}

template <>
py::dtype TableDType<StepEntry>() {
  // Behind micro_batches stand 4 reserved bytes.
  using Names = std::vector<const char*>;
  const Names names = {
      "step",          "mode",       "flags",       "mode_step", "wall_ns",
      "monotonic_ns",  "offered",    "written",     "dropped",   "failed",
      "micro_batches", "capture_ns", "duration_ns", "sequence"};
  const Names formats = {"<i8", "<u4", "<u4", "<i8", "<i8", "<i8", "<u8",
                         "<u8", "<u8", "<u8", "<u4", "<i8", "<i8", "<u8"};
  const std::vector<int> offsets = {0,  8,  12, 16, 24, 32, 40,
                                    48, 56, 64, 72, 80, 88, 96};
  py::dict fields;
  fields["names"] = py::cast(names);
  fields["formats"] = py::cast(formats);
  fields["offsets"] = py::cast(offsets);
  fields["itemsize"] = sizeof(StepEntry);
  return py::dtype::from_args(fields);
}

template <>
py::dtype TableDType<TensorEntry>() {
  return MakeDType({{"step", "i8"},
                    {"sequence", "u8"},
                    {"offset", "u8"},
                    {"payload_length", "u8"},
                    {"definition", "u4"},
                    {"shard", "u4"},
                    {"call", "u2"},
                    {"micro_batch", "u2"},
                    {"position", "u4"}},
                   sizeof(TensorEntry));
}

template <>
py::dtype TableDType<ScalarEntry>() {
  return MakeDType({{"step", "i8"},
                    {"definition", "u4"},
                    {"flags", "u4"},
                    {"wall_ns", "i8"},
                    {"value", "f8"}},
                   sizeof(ScalarEntry));
}

template <>
py::dtype TableDType<PackedSpan>() {
  return MakeDType({{"step", "i8"},
                    {"definition", "u4"},
                    {"flags", "u4"},
                    {"start_ns", "i8"},
                    {"duration_ns", "i8"},
                    {"thread", "u8"},
                    {"depth", "u4"},
                    {"value", "i8"}},
                   sizeof(PackedSpan));
}

template <>
py::dtype TableDType<Gap>() {
  return MakeDType({{"first_step", "i8"},
                    {"last_step", "i8"},
                    {"records", "u8"},
                    {"bytes", "u8"},
                    {"reason", "u4"},
                    {"what", "u4"},
                    {"first_sequence", "u8"},
                    {"end_sequence", "u8"}},
                   sizeof(Gap));
}

template <>
py::dtype TableDType<Hole>() {
  return MakeDType({{"first_sequence", "u8"}, {"end_sequence", "u8"}},
                   sizeof(Hole));
}

template <>
py::dtype TableDType<HistogramEntry>() {
  return MakeDType({{"step", "i8"},
                    {"sequence", "u8"},
                    {"offset", "u8"},
                    {"payload_length", "u8"},
                    {"definition", "u4"},
                    {"shard", "u4"},
                    {"call", "u2"},
                    {"micro_batch", "u2"},
                    {"payload_crc", "u4"}},
                   sizeof(HistogramEntry));
}

template <>
py::dtype TableDType<Segment>() {
  return MakeDType(
      {{"step", "i8"}, {"start", "u8"}, {"n_rows", "u8"}, {"signature", "u8"}},
      sizeof(Segment));
}

}  // namespace tdbg::bindings
