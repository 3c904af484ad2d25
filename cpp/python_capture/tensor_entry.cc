#include "python_capture/tensor_entry.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tdbg::python_capture {

std::uint32_t TensorEntry::IdOf(const TensorDescriptor& tensor,
                                Capture& capture) {
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].dtype != tensor.dtype ||
        !std::ranges::equal(known_[i].shape, tensor.shape())) {
      continue;
    }
    if (i > 0) std::swap(known_[i], known_.front());
    return known_.front().id;
  }
  const std::span<const std::int64_t> shape = tensor.shape();
  Known known{tensor.dtype, {shape.begin(), shape.end()}, 0};
  known.id = capture.writer().Define({.role = role_,
                                      .dtype = tensor.dtype,
                                      .item_size = ItemSize(tensor.dtype),
                                      .name = name_,
                                      .dtype_text = {},
                                      .shape = known.shape,
                                      .global_shape = shard_.global_shape,
                                      .global_offset = shard_.global_offset,
                                      .placements = shard_.placements,
                                      .aliases = aliases_});
  known_.insert(known_.begin(), std::move(known));
  return known_.front().id;
}

std::uint32_t TensorEntry::UnitSummaryIdOf(std::int64_t n_units,
                                           Capture& capture) {
  for (const auto& [n, id] : known_units_) {
    if (n == n_units) return id;
  }
  const std::uint32_t id =
      capture.writer().Define({.role = TensorRole::kUnitSummary,
                               .dtype = DType::kUInt64,
                               .item_size = ItemSize(DType::kUInt64),
                               .name = unit_summary_,
                               .dtype_text = {},
                               .shape = {3, n_units},
                               .global_shape = {},
                               .global_offset = {},
                               .placements = {},
                               .aliases = {}});
  known_units_.emplace_back(n_units, id);
  return id;
}

}  // namespace tdbg::python_capture
