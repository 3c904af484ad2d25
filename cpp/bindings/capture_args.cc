#include "bindings/capture_args.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <span>

#include "bindings/convert.h"
#include "tensor/summary.h"

namespace tdbg::bindings {
namespace {

const void* Address(std::uint64_t pointer) {
  // The hooks pass addresses as numbers; there is no other way.
  return reinterpret_cast<const void*>(pointer);  // NOLINT
}

}  // namespace

std::uint32_t ParseId(std::int64_t id) {
  return id < 0 || id > std::numeric_limits<std::uint32_t>::max()
             ? 0
             : static_cast<std::uint32_t>(id);
}

CaptureArgs ParseCaptureArgs(const py::handle& ids, const py::handle& pointers,
                             const py::handle& strides) {
  std::vector<std::int64_t> id_values;
  AppendIntegers(ids, &id_values);
  const py::tuple pointer_tuple = AsTuple(pointers);
  const std::size_t n = id_values.size();
  py::tuple stride_tuple;
  if (!strides.is_none()) {
    stride_tuple = AsTuple(strides);
  }
  if (pointer_tuple.size() != n ||
      (!strides.is_none() && stride_tuple.size() != n)) {
    throw py::value_error("ids, pointers and strides differ in length");
  }
  CaptureArgs result;
  result.items.resize(n);
  std::vector<std::size_t> ends(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    const auto index = static_cast<Py_ssize_t>(i);
    CaptureItem& item = result.items[i];
    item.definition = ParseId(id_values[i]);
    const unsigned long long pointer =
        PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pointer_tuple.ptr(), index));
    if (PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    item.data = Address(pointer);
    if (!strides.is_none()) {
      PyObject* const own = PyTuple_GET_ITEM(stride_tuple.ptr(), index);
      if (own != Py_None) {
        AppendIntegers(own, &result.strides);
      }
    }
    ends[i] = result.strides.size();
  }
  // Only now, when the vector no longer moves.
  std::size_t begin = 0;
  for (std::size_t i = 0; i < n; ++i) {
    result.items[i].strides =
        std::span(result.strides).subspan(begin, ends[i] - begin);
    begin = ends[i];
  }
  return result;
}

CaptureArgs ParseCaptureArg(std::int64_t id, std::uint64_t pointer,
                            const py::handle& strides) {
  CaptureArgs result;
  if (!strides.is_none()) {
    AppendIntegers(strides, &result.strides);
  }
  result.items.push_back({.definition = ParseId(id),
                          .data = Address(pointer),
                          .strides = result.strides});
  return result;
}

std::vector<Row> ParseRows(const py::handle& ids, const py::handle& calls,
                           const py::handle& micro_batches,
                           const py::handle& flags,
                           std::span<const std::uint64_t> words) {
  constexpr std::size_t kWords = sizeof(Summary) / sizeof(std::uint64_t);
  std::array<std::vector<std::int64_t>, 4> columns;
  AppendIntegers(ids, &columns[0]);
  AppendIntegers(calls, &columns[1]);
  AppendIntegers(micro_batches, &columns[2]);
  AppendIntegers(flags, &columns[3]);
  std::vector<Row> rows(columns[0].size());
  for (const auto& column : columns) {
    if (column.size() != rows.size()) {
      throw py::value_error(
          "ids, calls, micro_batches, flags differ in length");
    }
  }
  if (words.size() != kWords * rows.size()) {
    throw py::value_error("a row has 12 words");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].definition = ParseId(columns[0][i]);
    rows[i].call = Saturate16(columns[1][i]);
    rows[i].micro_batch = Saturate16(columns[2][i]);
    rows[i].flags = columns[3][i] == 0 ? 0 : kRescaled;
    std::array<std::uint64_t, kWords> own;
    std::ranges::copy(words.subspan(i * kWords, kWords), own.begin());
    rows[i].summary = std::bit_cast<Summary>(own);
  }
  return rows;
}

}  // namespace tdbg::bindings
