// Reads where a framework's tensor lies through DLPack's C exchange API: one
// call of C, no Python object made, nothing owned.  The core links to no
// framework, so this is the only way to ask without an interpreter's detour.
//
// Thread safety: call with the GIL held.
//
// Errors: what cannot be read is a plain "no": the caller asks in Python then,
// where every kind of tensor is known.

#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace tdbg::bindings {

// The memory of the CPU, among devices.
inline constexpr int kHost = -1;

// One tensor as it is now.  Without memory of its own: there are hundreds a
// step.
struct Exchanged {
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

// Types of tensors with their way of being read.
class Exchange {
 public:
  // Types without the API, or with a version of it that is not known, are left
  // out.  Subclasses are never read: they may dispatch what they are asked.
  explicit Exchange(const pybind11::tuple& types);

  [[nodiscard]] bool empty() const { return types_.empty(); }

  // False for what this cannot read: another type, another device than the CPU
  // and CUDA's, an element type without statistics, no memory, more dimensions
  // than Exchanged holds, or lazily negated. Clears the exceptions of its own
  // making.
  bool Read(PyObject* tensor, Exchanged* out) const;

  // The stream on which the framework of these types now works on a CUDA
  // device; false where it does not say.
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

}  // namespace tdbg::bindings
