#include "python_capture/dlpack_reader.h"

#include <array>
#include <cstddef>

namespace tdbg::python_capture {
namespace {

namespace py = pybind11;

// The structures of DLPack 1.x (dlpack.h), which promises their layout.
struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t n_dimensions;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // In elements.
  std::uint64_t byte_offset;
};

struct DLPackExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  void* previous;
  void* allocate;
  void* managed_from_object;
  void* managed_to_object;
  int (*tensor_from_object)(void* object, void* tensor);
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id,
                        void** stream);
};

constexpr std::uint32_t kMajor = 1;
constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;
constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
constexpr const char* kCapsule = "dlpack_exchange_api";

struct Kind {
  std::uint8_t code;
  std::uint8_t bits;
  DType dtype;
};

constexpr std::array kKinds = {
    Kind{2, 32, DType::kFloat32},
    Kind{4, 16, DType::kBFloat16},
    Kind{2, 16, DType::kFloat16},
    Kind{2, 64, DType::kFloat64},
    Kind{0, 64, DType::kInt64},
    Kind{0, 32, DType::kInt32},
    Kind{0, 16, DType::kInt16},
    Kind{0, 8, DType::kInt8},
    Kind{1, 8, DType::kUInt8},
    Kind{1, 16, DType::kUInt16},
    Kind{1, 32, DType::kUInt32},
    Kind{1, 64, DType::kUInt64},
    Kind{6, 8, DType::kBool},
    Kind{10, 8, DType::kFloat8E4M3Fn},
    Kind{11, 8, DType::kFloat8E4M3FnUz},
    Kind{12, 8, DType::kFloat8E5M2},
    Kind{13, 8, DType::kFloat8E5M2FnUz},
    Kind{14, 8, DType::kFloat8E8M0Fnu},
};

DType DTypeOf(DLDataType type) {
  if (type.lanes != 1) return DType::kInvalid;
  for (const Kind& kind : kKinds) {
    if (kind.code == type.code && kind.bits == type.bits) return kind.dtype;
  }
  return DType::kInvalid;
}

// Whether the elements are held with the sign to come: DLPack does not say.
bool MayBeNegated(PyObject* tensor) {
  static PyObject* const kName = PyUnicode_InternFromString("is_neg");
  PyObject* const answer = PyObject_CallMethodNoArgs(tensor, kName);
  if (answer == nullptr) {
    PyErr_Clear();
    return true;
  }
  const bool is_negated = answer != Py_False;
  Py_DECREF(answer);
  return is_negated;
}

}  // namespace

DlpackReader::DlpackReader(const py::tuple& types) {
  for (const py::handle type : types) {
    const py::object capsule = py::getattr(type, kAttribute, py::none());
    if (PyCapsule_IsValid(capsule.ptr(), kCapsule) == 0) continue;
    const auto* const api = static_cast<const DLPackExchangeApi*>(
        PyCapsule_GetPointer(capsule.ptr(), kCapsule));
    if (api->major != kMajor || api->tensor_from_object == nullptr) continue;
    types_.push_back(
        {py::reinterpret_borrow<py::object>(type), api->tensor_from_object});
    if (current_stream_ == nullptr) current_stream_ = api->current_stream;
  }
}

bool DlpackReader::Read(PyObject* tensor, TensorDescriptor* out) const {
  const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  ReadFunction read = nullptr;
  for (const Entry& entry : types_) {
    if (entry.type.ptr() == type) read = entry.read;
  }
  if (read == nullptr) return false;
  DLTensor raw{};
  if (read(tensor, &raw) != 0) {
    PyErr_Clear();
    return false;
  }
  out->dtype = DTypeOf(raw.dtype);
  if ((raw.device_type != kCpu && raw.device_type != kCuda) ||
      out->dtype == DType::kInvalid || MayBeNegated(tensor)) {
    return false;
  }
  out->device = raw.device_type == kCpu ? kHost : raw.device_id;
  const auto n = static_cast<std::size_t>(raw.n_dimensions);
  if (n > TensorDescriptor::kMaxDimensions) return false;
  const auto size = static_cast<std::int64_t>(ItemSize(out->dtype));
  out->n_dimensions = n;
  out->is_contiguous = true;
  std::int64_t expected = 1;
  for (std::size_t i = n; i-- > 0;) {
    const std::int64_t extent = raw.shape[i];
    out->extents[i] = extent;
    out->steps[i] = raw.strides[i] * size;
    if (extent != 1 && raw.strides[i] != expected) out->is_contiguous = false;
    expected *= extent;
  }
  out->count = static_cast<std::uint64_t>(expected);
  if (out->count == 0) out->is_contiguous = true;
  if (raw.data == nullptr) return out->count == 0;
  out->data = static_cast<const std::byte*>(raw.data) + raw.byte_offset;
  return true;
}

bool DlpackReader::CurrentStream(int device, void** stream) const {
  if (current_stream_ == nullptr) return false;
  if (current_stream_(kCuda, device, stream) == 0) return true;
  PyErr_Clear();
  return false;
}

}  // namespace tdbg::python_capture
