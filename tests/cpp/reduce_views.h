// What several tests of the reducers share: views, and the implementations that
// this processor can run.

#pragma once

#include <span>
#include <vector>

#include "reducers/implementation.h"
#include "tensor/tensor_view.h"

namespace tdbg::testing {

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
