#include "tensor/tensor_view.h"

#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/stream_copy.h"

namespace tdbg {

bool IsContiguous(const TensorView& view) {
  if (view.strides.empty() || view.count() == 0) return true;
  std::int64_t expected = view.item_size;
  for (std::size_t i = view.shape.size(); i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != expected) return false;
    expected *= view.shape[i];
  }
  return true;
}

void CopyContiguous(const TensorView& view, std::byte* out) {
  TDBG_DCHECK(view.device == DeviceKind::kCpu);
  const std::uint64_t n = view.count();
  if (n == 0) return;
  const auto* base = static_cast<const std::byte*>(view.data);
  if (IsContiguous(view)) {
    const std::size_t n_bytes = n * view.item_size;
    if (n_bytes < kMinStream) {
      std::memcpy(out, base, n_bytes);
    } else {
      StreamCopy(out, base, n_bytes);
    }
    return;
  }
  // Walks all dimensions but the last with an odometer.
  const std::size_t last = view.shape.size() - 1;
  const std::int64_t inner = view.shape[last];
  const std::int64_t stride = view.strides[last];
  std::vector<std::int64_t> at(view.shape.size(), 0);
  const std::byte* row = base;
  for (;;) {
    if (stride == static_cast<std::int64_t>(view.item_size)) {
      const std::size_t n_bytes =
          static_cast<std::size_t>(inner) * view.item_size;
      std::memcpy(out, row, n_bytes);
      out += n_bytes;
    } else {
      const std::byte* element = row;
      for (std::int64_t i = 0; i < inner; ++i, element += stride) {
        std::memcpy(out, element, view.item_size);
        out += view.item_size;
      }
    }
    std::size_t dim = last;
    for (;;) {
      if (dim == 0) return;
      --dim;
      row += view.strides[dim];
      if (++at[dim] < view.shape[dim]) break;
      row -= view.strides[dim] * view.shape[dim];
      at[dim] = 0;
    }
  }
}

}  // namespace tdbg
