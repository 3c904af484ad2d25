#include "bindings/convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "base/check.h"

namespace tdbg::bindings {
namespace {

constexpr std::array kNamedDTypes = {
    DType::kBool,           DType::kUInt8,          DType::kInt8,
    DType::kUInt16,         DType::kInt16,          DType::kUInt32,
    DType::kInt32,          DType::kUInt64,         DType::kInt64,
    DType::kFloat16,        DType::kFloat32,        DType::kFloat64,
    DType::kBFloat16,       DType::kFloat8E4M3Fn,   DType::kFloat8E5M2,
    DType::kFloat8E4M3FnUz, DType::kFloat8E5M2FnUz, DType::kFloat8E8M0Fnu,
    DType::kComplex64,      DType::kComplex128};

struct ErrorKind {
  const char* exception;
  const char* kind;
};

ErrorKind KindOf(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      break;
    case StatusCode::kInvalidArgument:
      return {"ConfigurationError", ""};
    case StatusCode::kIoError:
      return {"StorageError", "io"};
    case StatusCode::kCorruption:
      return {"CorruptionError", "damage"};
    case StatusCode::kUnsupported:
      return {"UnsupportedFeature", "unsupported"};
    case StatusCode::kLimitExceeded:
      return {"CorruptionError", "limit"};
    case StatusCode::kNotFound:
      return {"StorageError", "missing"};
    case StatusCode::kResourceExhausted:
      return {"StorageError", "full"};
    case StatusCode::kDeadlineExceeded:
      return {"StorageError", "timeout"};
    case StatusCode::kClosed:
      return {"StorageError", "closed"};
  }
  return {"StorageError", "unknown"};
}

[[noreturn]] void ThrowTypeError(const std::string& message) {
  throw py::type_error(message);
}

void RefuseDType(const std::string& name) {
  Throw(Status::InvalidArgument("elements of dtype '" + name +
                                "' cannot be stored: of NumPy's, all but "
                                "objects, fields and types of no size can"));
}

}  // namespace

void Throw(const Status& status, std::string_view file) {
  TDBG_DCHECK(!status.ok());
  const ErrorKind kind = KindOf(status.code());
  const py::object type =
      py::module_::import("tdbg.errors").attr(kind.exception);
  py::object error;
  if (status.code() == StatusCode::kInvalidArgument) {
    error = type(status.message());
  } else {
    py::object offset = py::none();
    if (status.offset().has_value()) {
      offset = py::int_(*status.offset());
    }
    error =
        type(status.message(),
             py::arg("file") =
                 file.empty() ? py::object(py::none())
                              : py::object(py::str(file.data(), file.size())),
             py::arg("offset") = offset, py::arg("kind") = kind.kind);
    if (status.system_error() != 0) {
      error.attr("errno") = status.system_error();
    }
  }
  PyErr_SetObject(type.ptr(), error.ptr());
  throw py::error_already_set();
}

DType DTypeNamed(std::string_view name) {
  const auto* const found =
      std::find_if(kNamedDTypes.begin(), kNamedDTypes.end(),
                   [&](DType dtype) { return DTypeName(dtype) == name; });
  return found == kNamedDTypes.end() ? DType::kInvalid : *found;
}

ElementType ParseElementType(const std::string& name, std::int64_t item_size) {
  if (name.empty()) {
    return {};
  }
  const DType named = DTypeNamed(name);
  if (named != DType::kInvalid) {
    return {named, ItemSize(named), {}};
  }
  // "|O" objects, "|V8" fields or bare memory; the rest is plain bytes.
  const bool is_text_of_dtype = name.size() > 2 &&
                                std::strchr("<>|=", name[0]) != nullptr &&
                                std::strchr("biufcmMSU", name[1]) != nullptr;
  if (!is_text_of_dtype || item_size <= 0 ||
      item_size > std::numeric_limits<std::int32_t>::max()) {
    RefuseDType(name);
  }
  return {DType::kNumpy, static_cast<std::uint32_t>(item_size), name};
}

std::string Utf8(const py::handle& text) {
  if (PyUnicode_Check(text.ptr()) == 0) {
    ThrowTypeError("a name must be a str");
  }
  const auto bytes = py::reinterpret_steal<py::object>(
      PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) {
    throw py::error_already_set();
  }
  return py::reinterpret_borrow<py::bytes>(bytes);
}

py::tuple AsTuple(const py::handle& sequence) {
  auto tuple =
      py::reinterpret_steal<py::tuple>(PySequence_Tuple(sequence.ptr()));
  if (!tuple) {
    throw py::error_already_set();
  }
  return tuple;
}

py::str Text(const std::string& bytes) {
  auto text = py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
      bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace"));
  if (!text) {
    throw py::error_already_set();
  }
  return text;
}

void AppendIntegers(const py::handle& sequence,
                    std::vector<std::int64_t>* out) {
  const py::tuple tuple = AsTuple(sequence);
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple.ptr());
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const item = PyTuple_GET_ITEM(tuple.ptr(), i);
    if (PyLong_Check(item) == 0) {
      ThrowTypeError(std::string("expected an int, not ") +
                     Py_TYPE(item)->tp_name);
    }
    const long long value = PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred() != nullptr) {
      throw py::error_already_set();
    }
    out->push_back(value);
  }
}

Uuid ParseUuid(const py::bytes& bytes) {
  const std::string_view view = bytes;
  Uuid uuid;
  if (view.size() != uuid.size()) {
    Throw(Status::InvalidArgument("a uuid has 16 bytes, not " +
                                  std::to_string(view.size())));
  }
  std::memcpy(uuid.data(), view.data(), uuid.size());
  return uuid;
}

std::chrono::milliseconds ParseSeconds(double seconds) {
  if (!(seconds >= 0.0)) {
    Throw(Status::InvalidArgument("a timeout must be at least 0 s, not " +
                                  std::to_string(seconds)));
  }
  constexpr double kLongest = 86400.0 * 365.0;
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(std::ceil(std::min(seconds, kLongest) * 1e3)));
}

std::uint16_t Saturate16(std::int64_t value) {
  return static_cast<std::uint16_t>(std::clamp<std::int64_t>(
      value, 0, std::numeric_limits<std::uint16_t>::max()));
}

ArrayView ViewForStatistics(const py::object& object) {
  ArrayView result;
  result.array = py::array::ensure(object);
  if (!result.array) {
    PyErr_Clear();
    ThrowTypeError("expected an array or what can become one, not " +
                   std::string(Py_TYPE(object.ptr())->tp_name));
  }
  const py::dtype type = result.array.dtype();
  const auto name = type.attr("name").cast<std::string>();
  result.dtype = DTypeNamed(name);
  if (result.dtype == DType::kInvalid || !HasStatistics(result.dtype)) {
    ThrowTypeError("no statistics are defined for dtype '" + name +
                   "': bool, integers and real floats of up to 64 bits have "
                   "them");
  }
  if (!type.attr("isnative").cast<bool>() ||
      !result.array.attr("flags").attr("aligned").cast<bool>()) {
    result.array = result.array.attr("astype")(type.attr("newbyteorder")("="));
  }
  for (py::ssize_t i = 0; i < result.array.ndim(); ++i) {
    result.shape.push_back(result.array.shape(i));
    result.strides.push_back(result.array.strides(i));
  }
  return result;
}

}  // namespace tdbg::bindings
