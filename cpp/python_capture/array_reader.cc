#include "python_capture/array_reader.h"

#include <pybind11/numpy.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

// NumPy numbers the types that libraries register from here on.
constexpr int kRegistered = 256;

struct Plain {
  char kind;
  py::ssize_t item_size;
  DType dtype;
};

constexpr std::array kPlain = {
    Plain{'f', 4, DType::kFloat32}, Plain{'f', 8, DType::kFloat64},
    Plain{'f', 2, DType::kFloat16}, Plain{'i', 8, DType::kInt64},
    Plain{'i', 4, DType::kInt32},   Plain{'i', 2, DType::kInt16},
    Plain{'i', 1, DType::kInt8},    Plain{'u', 1, DType::kUInt8},
    Plain{'u', 2, DType::kUInt16},  Plain{'u', 4, DType::kUInt32},
    Plain{'u', 8, DType::kUInt64},  Plain{'b', 1, DType::kBool},
};

// Those of ml_dtypes, whose names are NumPy's.
constexpr std::array kNamed = {
    DType::kBFloat16,       DType::kFloat8E4M3Fn,   DType::kFloat8E5M2,
    DType::kFloat8E4M3FnUz, DType::kFloat8E5M2FnUz, DType::kFloat8E8M0Fnu,
};

DType ElementsOf(const py::dtype& type) {
  constexpr char kForeign =
      std::endian::native == std::endian::little ? '>' : '<';
  if (type.byteorder() == kForeign) return DType::kInvalid;
  if (type.num() >= kRegistered) {
    const auto name = py::str(type.attr("name")).cast<std::string>();
    for (const DType dtype : kNamed) {
      if (DTypeName(dtype) == name) return dtype;
    }
    return DType::kInvalid;
  }
  for (const Plain& plain : kPlain) {
    if (plain.kind == type.kind() && plain.item_size == type.itemsize()) {
      return plain.dtype;
    }
  }
  return DType::kInvalid;
}

}  // namespace

ArrayReader::ArrayReader()
    : type_(py::module_::import("numpy").attr("ndarray")) {}

bool ArrayReader::Read(PyObject* object, TensorDescriptor* out) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != type_.ptr()) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const auto n = static_cast<std::size_t>(array.ndim());
  constexpr int kAligned = py::detail::npy_api::NPY_ARRAY_ALIGNED_;
  if (n > TensorDescriptor::kMaxDimensions || (array.flags() & kAligned) == 0) {
    return false;
  }
  out->dtype = ElementsOf(array.dtype());
  if (out->dtype == DType::kInvalid) return false;
  out->device = kHost;
  out->n_dimensions = n;
  out->is_contiguous = true;
  std::int64_t expected = static_cast<std::int64_t>(ItemSize(out->dtype));
  std::int64_t count = 1;
  for (std::size_t i = n; i-- > 0;) {
    const std::int64_t extent = array.shape()[i];
    out->extents[i] = extent;
    out->steps[i] = array.strides()[i];
    if (extent != 1 && out->steps[i] != expected) out->is_contiguous = false;
    expected *= extent;
    count *= extent;
  }
  out->count = static_cast<std::uint64_t>(count);
  if (count == 0) out->is_contiguous = true;
  out->data = array.data();
  return true;
}

}  // namespace tdbg::python_capture
