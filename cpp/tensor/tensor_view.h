// TensorView says where a tensor's elements lie; it owns nothing.
//
// Thread safety: a value.  The memory it points to belongs to the caller, who
// keeps it alive and unchanged for the duration of the call it is passed to.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace tdbg {

enum class DeviceKind : std::uint8_t { kCpu = 0, kCuda = 1 };

struct TensorView {
  const void* data = nullptr;  // The first element; may be null when empty.
  DType dtype = DType::kInvalid;
  std::uint32_t item_size = 0;  // ItemSize(dtype), or kNumpy's own.
  // One extent per dimension; empty for a scalar, which has one element.
  std::span<const std::int64_t> shape;
  // Bytes from an element to its successor in each dimension; may be zero or
  // negative.  Empty means contiguous in C order.
  std::span<const std::int64_t> strides;
  DeviceKind device = DeviceKind::kCpu;
  int device_index = 0;

  // REQUIRES: the product of `shape` fits (true for anything in memory).
  [[nodiscard]] std::uint64_t count() const {
    std::uint64_t n = 1;
    for (const std::int64_t extent : shape) {
      n *= static_cast<std::uint64_t>(extent);
    }
    return n;
  }
  [[nodiscard]] std::uint64_t n_bytes() const { return count() * item_size; }
};

// True when the elements lie in C order without gaps.
[[nodiscard]] bool IsContiguous(const TensorView& view);

// Copies the elements in C order to `out`, which holds view.n_bytes() bytes.
// REQUIRES: view.device == DeviceKind::kCpu.
void CopyContiguous(const TensorView& view, std::byte* out);

}  // namespace tdbg
