#include "reducers/element_walk.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tdbg {
namespace {

template <typename T>
void Gather(const std::byte* in, std::int64_t stride, std::size_t n,
            std::byte* out) {
  for (std::size_t i = 0; i < n; ++i) {
    std::memcpy(out + i * sizeof(T), in + stride * static_cast<std::int64_t>(i),
                sizeof(T));
  }
}

}  // namespace

std::int64_t StrideOf(const TensorView& view, std::size_t dim) {
  if (!view.strides.empty()) return view.strides[dim];
  std::int64_t stride = view.item_size;
  for (std::size_t i = view.shape.size(); i-- > dim + 1;) {
    stride *= view.shape[i];
  }
  return stride;
}

ElementWalk::ElementWalk(const TensorView& view, std::size_t left_out)
    : first_(static_cast<const std::byte*>(view.data)) {
  TDBG_DCHECK(view.shape.size() <= kMaxDimensions);
  TDBG_DCHECK(std::ranges::find(view.shape, 0) == view.shape.end());
  extents_[0] = 1;
  strides_[0] = view.item_size;
  std::int64_t dense_stride = view.item_size;
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    std::int64_t stride = view.strides.empty() ? dense_stride : view.strides[i];
    dense_stride *= view.shape[i];
    if (i == left_out || view.shape[i] == 1) continue;
    const auto extent = static_cast<std::size_t>(view.shape[i]);
    if (stride < 0) {
      first_ += stride * (view.shape[i] - 1);
      stride = -stride;
    }
    // Insertion: few dimensions, and mostly in order.
    std::size_t at = n_dims_;
    for (; at > 0 && strides_[at - 1] > stride; --at) {
      strides_[at] = strides_[at - 1];
      extents_[at] = extents_[at - 1];
    }
    strides_[at] = stride;
    extents_[at] = extent;
    ++n_dims_;
  }
  std::size_t kept = 0;
  for (std::size_t i = 1; i < n_dims_; ++i) {
    const std::int64_t end =
        strides_[kept] * static_cast<std::int64_t>(extents_[kept]);
    if (strides_[kept] > 0 && strides_[i] == end) {
      extents_[kept] *= extents_[i];
    } else {
      ++kept;
      strides_[kept] = strides_[i];
      extents_[kept] = extents_[i];
    }
  }
  if (n_dims_ > 0) n_dims_ = kept + 1;
}

void GatherElements(const std::byte* in, std::int64_t stride, std::size_t n,
                    std::size_t item_size, std::byte* out) {
  if (stride == static_cast<std::int64_t>(item_size)) {
    std::memcpy(out, in, n * item_size);
    return;
  }
  switch (item_size) {
    case 1:
      return Gather<std::uint8_t>(in, stride, n, out);
    case 2:
      return Gather<std::uint16_t>(in, stride, n, out);
    case 4:
      return Gather<std::uint32_t>(in, stride, n, out);
    default:
      return Gather<std::uint64_t>(in, stride, n, out);
  }
}

}  // namespace tdbg
