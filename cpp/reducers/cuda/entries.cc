#include "reducers/cuda/entries.h"

#include "base/check.h"
#include "reducers/element_walk.h"

namespace tdbg::cuda {
namespace {

std::uint64_t Address(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p);
}

// Sets what says where the elements lie.
template <typename Entry>
bool SetLayout(const TensorView& view, std::size_t left_out,
               std::uint64_t count, Entry* entry) {
  TDBG_DCHECK(HasStatistics(view.dtype));
  TDBG_DCHECK(view.shape.size() <= ElementWalk::kMaxDimensions);
  entry->dtype = static_cast<std::uint32_t>(view.dtype);
  entry->n_dims = 0;
  entry->address = Address(view.data);
  if (count == 0) return true;
  const ElementWalk walk(view, left_out);
  entry->address = Address(walk.first());
  if (entry->address % view.item_size != 0) return false;
  if (walk.is_contiguous(view.item_size)) {
    // Of units, the kernel wants the dimension itself.
    if (left_out == ElementWalk::kNoAxis || walk.row_extent() == 1) return true;
  }
  if (walk.n_dims() > kMaxDims || count > kMaxStridedCount) return false;
  entry->n_dims = static_cast<std::uint32_t>(walk.n_dims());
  for (std::uint32_t i = 0; i < entry->n_dims; ++i) {
    // The walk's first is the innermost.
    const std::size_t dim = entry->n_dims - 1 - i;
    entry->extents[i] = static_cast<std::int64_t>(walk.extent(dim));
    entry->strides[i] = walk.stride(dim);
    if (walk.stride(dim) % static_cast<std::int64_t>(view.item_size) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool ToTensorEntry(const TensorView& view, double scale, const void* divisor,
                   TensorEntry* entry) {
  *entry = {};
  entry->count = view.count();
  entry->scale = scale;
  entry->divisor_address = Address(divisor);
  return SetLayout(view, ElementWalk::kNoAxis, entry->count, entry) &&
         TilesOf(*entry) <= kMaxTiles;
}

bool ToUnitEntry(const TensorView& view, std::size_t axis, double low,
                 double high, UnitEntry* entry) {
  *entry = {};
  entry->n_units = static_cast<std::uint64_t>(view.shape[axis]);
  const std::uint64_t count = view.count();
  entry->count_per_unit = count == 0 ? 0 : count / entry->n_units;
  entry->unit_stride = StrideOf(view, axis);
  entry->low = low;
  entry->high = high;
  return SetLayout(view, axis, count, entry) &&
         entry->count_per_unit <= kMaxStridedCount;
}

bool ToBinEntry(const TensorView& view, double scale, const void* divisor,
                BinEntry* entry) {
  *entry = {};
  entry->count = view.count();
  entry->scale = scale;
  entry->divisor_address = Address(divisor);
  return SetLayout(view, ElementWalk::kNoAxis, entry->count, entry) &&
         entry->count <= kMaxStridedCount;
}

std::uint64_t TilesOf(const TensorEntry& entry) {
  return TileCount(entry.count, ItemSize(static_cast<DType>(entry.dtype)));
}

}  // namespace tdbg::cuda
