#include "python_capture/tensor_shard.h"

#include <utility>

#include "base/status.h"

namespace tdbg::python_capture {

Result<TensorShard> ParseTensorShard(std::vector<std::int64_t> global_shape,
                                     std::vector<std::int64_t> global_offset,
                                     const Placements& placements) {
  if (global_shape.size() != global_offset.size()) {
    return Status::InvalidArgument(
        "a global shape or offset has as many dimensions as the shape");
  }
  TensorShard shard{.global_shape = std::move(global_shape),
                    .global_offset = std::move(global_offset),
                    .placements = {}};
  for (const auto& [kind, reduction, dimension, mesh_size, coordinate] :
       placements) {
    if (kind < 1 || kind > 3 || reduction > 5 || dimension > 63) {
      return Status::InvalidArgument(
          "a placement is (kind 1-3, reduction 0-5, "
          "dimension, mesh size, coordinate)");
    }
    shard.placements.push_back(
        {.kind = static_cast<PlacementKind>(kind),
         .reduction = static_cast<std::uint8_t>(reduction),
         .dimension = static_cast<std::uint16_t>(dimension),
         .mesh_size = mesh_size,
         .coordinate = coordinate});
  }
  return shard;
}

}  // namespace tdbg::python_capture
