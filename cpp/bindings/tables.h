// The tables of a reader as NumPy structured arrays.
//
// Each entry type below has the layout of its NumPy dtype, so that a vector of
// entries becomes an array without a copy.
//
// Thread safety: call with the GIL held; the entry types are values.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "format/index_tables.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {

namespace py = pybind11;

#pragma pack(push, 1)
struct PackedSpan {
  std::int64_t step;
  std::uint32_t definition;
  std::uint32_t flags;
  std::int64_t start_ns;
  std::int64_t duration_ns;
  std::uint64_t thread;
  std::uint32_t depth;
  std::int64_t value;
};
#pragma pack(pop)

[[nodiscard]] PackedSpan Pack(const SpanEntry& entry);
// Without its step.
[[nodiscard]] Span Unpack(const PackedSpan& packed);

// The dtype of an entry: ROW_DTYPE for ColumnRow, ...
template <typename Entry>
[[nodiscard]] py::dtype TableDType();
template <>
py::dtype TableDType<ColumnRow>();
template <>
py::dtype TableDType<StepEntry>();
template <>
py::dtype TableDType<TensorEntry>();
template <>
py::dtype TableDType<ScalarEntry>();
template <>
py::dtype TableDType<PackedSpan>();
template <>
py::dtype TableDType<Gap>();
template <>
py::dtype TableDType<Hole>();
template <>
py::dtype TableDType<HistogramEntry>();
template <>
py::dtype TableDType<Segment>();

// Numbers that Python gives, and a copy of them.
template <typename T>
using Numbers = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
[[nodiscard]] std::vector<T> VectorOf(const Numbers<T>& array) {
  return {array.data(), array.data() + array.size()};
}

// An array that owns `values`, without copying them.
template <typename Value>
[[nodiscard]] py::array ArrayOf(std::vector<Value> values,
                                const py::dtype& dtype) {
  auto owner = std::make_unique<std::vector<Value>>(std::move(values));
  const auto* const data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  const py::capsule base(owner.release(), [](void* pointer) {
    delete static_cast<std::vector<Value>*>(pointer);
  });
  return {dtype, {size}, {static_cast<py::ssize_t>(sizeof(Value))}, data, base};
}

template <typename Entry>
[[nodiscard]] py::array TableOf(std::vector<Entry> entries) {
  return ArrayOf(std::move(entries), TableDType<Entry>());
}

}  // namespace tdbg::bindings
