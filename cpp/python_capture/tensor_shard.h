// Where the part of a tensor that one rank holds lies in the whole tensor.
//
// Thread safety: values; a pure function.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "format/record.h"

namespace tdbg::python_capture {

// Empty for a tensor that is whole.
struct TensorShard {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> global_offset;
  std::vector<Placement> placements;
};

// As Python passes them: kind, reduction, dimension, mesh size, coordinate.
using Placements = std::vector<std::array<std::uint32_t, 5>>;

// Fails (kInvalidArgument) if shape and offset differ in length or a placement
// is out of range.
[[nodiscard]] Result<TensorShard> ParseTensorShard(
    std::vector<std::int64_t> global_shape,
    std::vector<std::int64_t> global_offset, const Placements& placements);

}  // namespace tdbg::python_capture
