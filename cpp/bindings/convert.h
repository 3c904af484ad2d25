// Conversions that the bindings share: Status to exception, Python values to
// C++ ones.
//
// Thread safety: call with the GIL held, unless a comment says otherwise.
//
// Errors: the only layer that throws.  A Status becomes one of the exceptions
// of tdbg.errors.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "format/record.h"
#include "python_capture/gil.h"
#include "tensor/tensor_view.h"

namespace tdbg::bindings {

namespace py = pybind11;

using python_capture::ReleaseGil;

// Makes a class an instance of `type`, as the stub says, instead of pybind11's
// own metaclass, which only static properties need.
[[nodiscard]] inline py::metaclass PlainType() {
  return py::metaclass(reinterpret_cast<PyObject*>(&PyType_Type));  // NOLINT
}

// Raises what `status` stands for.  `file` is the file or directory it is
// about. REQUIRES: !status.ok().
[[noreturn]] void Throw(const Status& status, std::string_view file = {});

inline void ThrowIfError(const Status& status, std::string_view file = {}) {
  if (!status.ok()) {
    Throw(status, file);
  }
}

template <typename T>
[[nodiscard]] T ValueOrThrow(Result<T> result, std::string_view file = {}) {
  if (!result.ok()) {
    Throw(result.status(), file);
  }
  return std::move(result).value();
}

// The element type of a definition.
struct ElementType {
  DType dtype = DType::kInvalid;
  std::uint32_t item_size = 0;
  std::string text;  // NumPy's dtype.str, for DType::kNumpy.
};

// From a name ("float32"), or a NumPy dtype.str with its `item_size`; "" has no
// elements.  Raises ConfigurationError for what cannot be stored.
[[nodiscard]] ElementType ParseElementType(const std::string& name,
                                           std::int64_t item_size);

// The named dtype, or kInvalid.
[[nodiscard]] DType DTypeNamed(std::string_view name);

// The text of `text` in UTF-8.  Surrogates, which it cannot hold, are escaped
// with backslashes.
[[nodiscard]] std::string Utf8(const py::handle& text);

// The reverse.  Names come from files: bytes that are no UTF-8 must not make
// them unreadable, and are escaped likewise.
[[nodiscard]] py::str Text(const std::string& bytes);

// A Python list or tuple of int as numbers; runs no Python code and takes no
// element twice, so that nobody can change the sequence meanwhile.
// Raises TypeError or OverflowError.  Appends to `out`.
void AppendIntegers(const py::handle& sequence, std::vector<std::int64_t>* out);

// `sequence` itself, or its elements, as a tuple that cannot change.
[[nodiscard]] py::tuple AsTuple(const py::handle& sequence);

// Raises ConfigurationError unless `bytes` has 16 of them.
[[nodiscard]] Uuid ParseUuid(const py::bytes& bytes);

// Raises ConfigurationError for NaN and for what is negative.
[[nodiscard]] std::chrono::milliseconds ParseSeconds(double seconds);

// `value` within the range of the field that holds it on disk; calls beyond
// the 65535th share one number.
[[nodiscard]] std::uint16_t Saturate16(std::int64_t value);

// A view of a NumPy array and what it points into.
struct ArrayView {
  py::array array;  // Native byte order, aligned.
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  DType dtype = DType::kInvalid;

  [[nodiscard]] TensorView view() const {
    return {.data = array.data(),
            .dtype = dtype,
            .item_size = ItemSize(dtype),
            .shape = shape,
            .strides = strides};
  }
};

// Raises TypeError, naming the dtype, where no statistics are defined.
[[nodiscard]] ArrayView ViewForStatistics(const py::object& object);

}  // namespace tdbg::bindings
