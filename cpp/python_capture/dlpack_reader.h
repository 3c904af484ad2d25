// DlpackReader describes a framework's tensor (address, element type, layout)
// through DLPack's C exchange API: one call of C that makes no Python object
// and owns nothing.  The core links to no framework, so this is the only way to
// describe a tensor without running Python code.
//
// Thread safety: call with the GIL held.
//
// Errors: none; Read returns false for a tensor that it cannot describe, and
// the caller describes it in Python, where every kind of tensor is known.

#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace tdbg::python_capture {

// The number of the CPU, where CUDA devices are numbered from 0.
inline constexpr int kHost = -1;

// One tensor as it is now.  It allocates nothing: a step has hundreds.
struct TensorDescriptor {
  static constexpr std::size_t kMaxDimensions = 8;

  const void* data = nullptr;
  int device = kHost;  // A CUDA device, or kHost.
  DType dtype = DType::kInvalid;
  std::uint64_t count = 0;
  bool is_contiguous = true;
  std::size_t n_dimensions = 0;
  std::array<std::int64_t, kMaxDimensions> extents;
  std::array<std::int64_t, kMaxDimensions> steps;  // In bytes.

  [[nodiscard]] std::span<const std::int64_t> shape() const {
    return {extents.data(), n_dimensions};
  }
  // Empty where contiguous.
  [[nodiscard]] std::span<const std::int64_t> strides() const {
    return {steps.data(), is_contiguous ? 0 : n_dimensions};
  }
  [[nodiscard]] std::uint64_t n_bytes() const {
    return count * ItemSize(dtype);
  }
};

class DlpackReader {
 public:
  // Reads tensors of these types; types without the API, or with an unknown
  // version of it, are ignored.  Subclasses are never read: they may dispatch
  // operations to code of their own.
  explicit DlpackReader(const pybind11::tuple& types);

  [[nodiscard]] bool empty() const { return types_.empty(); }

  // False if the tensor cannot be described: its type is another one, it is
  // neither on the CPU nor on CUDA, its elements have no statistics, it has no
  // memory or more than kMaxDimensions, or its sign is negated lazily.  Clears
  // the exceptions that the attempt raises.
  bool Read(PyObject* tensor, TensorDescriptor* out) const;

  // The current stream of the framework on a CUDA device; false if the
  // framework does not offer it.
  bool CurrentStream(int device, void** stream) const;

 private:
  using ReadFunction = int (*)(void* object, void* tensor);
  using StreamFunction = int (*)(std::int32_t device_type,
                                 std::int32_t device_id, void** stream);
  struct Entry {
    pybind11::object type;
    ReadFunction read;
  };
  std::vector<Entry> types_;
  StreamFunction current_stream_ = nullptr;
};

}  // namespace tdbg::python_capture
