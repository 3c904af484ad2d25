// What several tests of the reducers share: element types, views, and the
// implementations that this processor can run.

#pragma once

#include <span>
#include <vector>

#include "reducers/implementation.h"
#include "tensor/tensor_view.h"

namespace tdbg::testing {

// All that have statistics.
inline constexpr DType kDTypes[] = {
    DType::kBool,           DType::kUInt8,          DType::kInt8,
    DType::kUInt16,         DType::kInt16,          DType::kUInt32,
    DType::kInt32,          DType::kUInt64,         DType::kInt64,
    DType::kFloat16,        DType::kFloat32,        DType::kFloat64,
    DType::kBFloat16,       DType::kFloat8E4M3Fn,   DType::kFloat8E5M2,
    DType::kFloat8E4M3FnUz, DType::kFloat8E5M2FnUz, DType::kFloat8E8M0Fnu};

inline std::vector<const Implementation*> Supported() {
  std::vector<const Implementation*> supported;
  for (const Implementation& implementation : Implementations()) {
    if (implementation.supported()) supported.push_back(&implementation);
  }
  return supported;
}

inline TensorView ViewOf(const void* data, DType dtype,
                         std::span<const std::int64_t> shape,
                         std::span<const std::int64_t> strides = {}) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.item_size = ItemSize(dtype);
  view.shape = shape;
  view.strides = strides;
  return view;
}

}  // namespace tdbg::testing
