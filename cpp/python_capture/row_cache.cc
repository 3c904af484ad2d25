#include "python_capture/row_cache.h"

#include <algorithm>
#include <utility>

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

// The attribute, or null (tensors of inference mode have no version).
py::object AttributeOrNull(PyObject* tensor, PyObject* name) {
  auto value =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, name));
  if (!value) PyErr_Clear();
  return value;
}

}  // namespace

void RowCache::Begin(std::int64_t step, std::uint16_t micro_batch) {
  if (step == step_ && micro_batch == micro_batch_) return;
  step_ = step;
  micro_batch_ = micro_batch;
  ++epoch_;
}

const CachedRow* RowCache::FindOrAdd(PyObject* tensor,
                                     const TensorDescriptor& descriptor,
                                     CachedRow row) {
  static PyObject* const kVersion = PyUnicode_InternFromString("_version");
  static PyObject* const kBase = PyUnicode_InternFromString("_base");
  if (descriptor.n_bytes() < kLeastBytes) return nullptr;
  const py::object version = AttributeOrNull(tensor, kVersion);
  py::object root = AttributeOrNull(tensor, kBase);
  if (!version || !root || PyLong_Check(version.ptr()) == 0) return nullptr;
  if (root.is_none()) root = py::reinterpret_borrow<py::object>(tensor);
  const long number = PyLong_AsLong(version.ptr());

  Entry& entry = EntryOf(descriptor.data);
  const TensorDescriptor& before = entry.descriptor;
  if (entry.epoch == epoch_ && before.data == descriptor.data &&
      before.dtype == descriptor.dtype && before.count == descriptor.count &&
      before.is_contiguous == descriptor.is_contiguous &&
      (descriptor.is_contiguous ||
       (std::ranges::equal(before.shape(), descriptor.shape()) &&
        std::ranges::equal(before.strides(), descriptor.strides()))) &&
      entry.version == number &&
      PyWeakref_GetObject(entry.weak.ptr()) == root.ptr()) {
    return &entry.row;
  }
  auto weak =
      py::reinterpret_steal<py::object>(PyWeakref_NewRef(root.ptr(), nullptr));
  if (!weak) {
    PyErr_Clear();
    return nullptr;
  }
  entry.epoch = epoch_;
  entry.weak = std::move(weak);
  entry.version = number;
  entry.descriptor = descriptor;
  entry.row = row;
  return nullptr;
}

RowCache::Entry& RowCache::EntryOf(const void* data) {
  // Addresses of tensors are multiples of 64.
  const auto number = reinterpret_cast<std::uintptr_t>(data) >> 6U;  // NOLINT
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  return entries_[((number * kOdd) >> 32U) & (kEntries - 1)];
}

}  // namespace tdbg::python_capture
