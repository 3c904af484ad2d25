// ElementWalk visits the elements of a strided tensor in the order in which
// they lie in memory, as far as strides alone determine it.
//
// Statistics do not depend on the order of elements.  So dimensions are sorted
// by stride, negative strides are turned round, and dimensions that lie
// seamlessly in one another are merged: a dense tensor becomes one row in
// whichever order its dimensions are (transposed, channels last).
//
// Thread safety: a value.

#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "reducers/moments.h"
#include "tensor/tensor_view.h"

namespace tdbg {

class ElementWalk {
 public:
  // The largest number that NumPy and PyTorch allow.
  static constexpr std::size_t kMaxDimensions = 64;
  static constexpr std::size_t kNoAxis =
      std::numeric_limits<std::size_t>::max();

  // Walks all dimensions but `left_out`.
  // REQUIRES: view.shape.size() <= kMaxDimensions; no extent is zero.
  explicit ElementWalk(const TensorView& view, std::size_t left_out = kNoAxis);

  // The innermost dimension: its elements, and bytes from one to the next.
  [[nodiscard]] std::size_t row_extent() const { return extents_[0]; }
  [[nodiscard]] std::int64_t row_stride() const { return strides_[0]; }
  // Whether the elements, of `item_size` bytes each, lie side by side.
  [[nodiscard]] bool is_contiguous(std::size_t item_size) const {
    return n_dims_ <= 1 && has_contiguous_rows(item_size);
  }
  // Whether those of a row do.
  [[nodiscard]] bool has_contiguous_rows(std::size_t item_size) const {
    return strides_[0] == static_cast<std::int64_t>(item_size) ||
           extents_[0] == 1;
  }
  // All dimensions, innermost first; none where there is one element.
  [[nodiscard]] std::size_t n_dims() const { return n_dims_; }
  [[nodiscard]] std::size_t extent(std::size_t dim) const {
    return extents_[dim];
  }
  [[nodiscard]] std::int64_t stride(std::size_t dim) const {
    return strides_[dim];
  }
  // Where the first row begins.
  [[nodiscard]] const std::byte* first() const { return first_; }

  // Calls visit(const std::byte*) with the beginning of each row.
  template <typename Visit>
  void ForEachRow(Visit visit) const {
    std::array<std::size_t, kMaxDimensions> at{};
    const std::byte* row = first_;
    for (;;) {
      visit(row);
      std::size_t dim = 1;
      for (;; ++dim) {
        if (dim >= n_dims_) return;
        row += strides_[dim];
        if (++at[dim] < extents_[dim]) break;
        row -= strides_[dim] * static_cast<std::int64_t>(extents_[dim]);
        at[dim] = 0;
      }
    }
  }

 private:
  // Innermost first; extents_[0] == 1 where there is no dimension.
  std::array<std::size_t, kMaxDimensions> extents_;
  std::array<std::int64_t, kMaxDimensions> strides_;
  std::size_t n_dims_ = 0;
  const std::byte* first_;
};

// Bytes from an element of `view` to its successor in dimension `dim`.
[[nodiscard]] std::int64_t StrideOf(const TensorView& view, std::size_t dim);

// Copies `n` elements of `item_size` bytes (1, 2, 4 or 8), `stride` bytes
// apart, to `out`.
void GatherElements(const std::byte* in, std::int64_t stride, std::size_t n,
                    std::size_t item_size, std::byte* out);

// REQUIRES: item_size is a power of two.
[[nodiscard]] inline bool IsAligned(const void* p, std::size_t item_size) {
  TDBG_DCHECK(item_size != 0 && (item_size & (item_size - 1)) == 0);
  return (reinterpret_cast<std::uintptr_t>(p) & (item_size - 1)) == 0;
}

// Calls use(const std::byte*, std::size_t n) with parts of `n` contiguous
// elements that are aligned: all of them, or else copies of a block each, which
// is where kernels divide them, too.
template <typename Use>
void ForEachAlignedPart(const std::byte* data, std::size_t n,
                        std::size_t item_size, Use use) {
  if (IsAligned(data, item_size)) {
    use(data, n);
    return;
  }
  alignas(64) std::array<std::byte, kBlockBytes> block;
  while (n > 0) {
    const std::size_t n_now = std::min(n, BlockElements(item_size));
    std::memcpy(block.data(), data, n_now * item_size);
    use(block.data(), n_now);
    data += n_now * item_size;
    n -= n_now;
  }
}

// Rows of at least this many contiguous bytes are used where they lie.
inline constexpr std::size_t kLeastRowBytes = 1024;

// Calls use(const std::byte*, std::size_t n) with runs of contiguous, aligned
// elements: where they lie, or else gathered in blocks on the stack.
// REQUIRES: item_size, which is 1, 2, 4 or 8, is that of the walk's tensor.
template <typename Use>
void ForEachRun(const ElementWalk& walk, std::size_t item_size, Use use) {
  TDBG_DCHECK(item_size == 1 || item_size == 2 || item_size == 4 ||
              item_size == 8);
  const std::size_t extent = walk.row_extent();
  if (walk.is_contiguous(item_size) || (walk.has_contiguous_rows(item_size) &&
                                        extent * item_size >= kLeastRowBytes)) {
    walk.ForEachRow([&](const std::byte* row) {
      ForEachAlignedPart(row, extent, item_size, use);
    });
    return;
  }
  alignas(64) std::array<std::byte, kBlockBytes> block;
  const std::size_t most = BlockElements(item_size);
  std::size_t n_block = 0;
  walk.ForEachRow([&](const std::byte* row) {
    std::size_t left = extent;
    while (left > 0) {
      const std::size_t n = std::min(left, most - n_block);
      GatherElements(row, walk.row_stride(), n, item_size,
                     block.data() + n_block * item_size);
      row += walk.row_stride() * static_cast<std::int64_t>(n);
      left -= n;
      n_block += n;
      if (n_block == most) {
        use(block.data(), n_block);
        n_block = 0;
      }
    }
  });
  if (n_block > 0) use(block.data(), n_block);
}

}  // namespace tdbg
