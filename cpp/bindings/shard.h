// Where the part of a tensor that one rank holds lies in the whole.
//
// Thread safety: values; a pure function.
//
// Errors: throws ConfigurationError.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "format/record.h"

namespace tdbg::bindings {

// Empty for what is whole.
struct Shard {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> global_offset;
  std::vector<Placement> placements;
};

// As Python says it: kind, reduction, dimension, mesh size, coordinate.
using Placements = std::vector<std::array<std::uint32_t, 5>>;

// Raises what is wrong with it.
[[nodiscard]] Shard ParseShard(std::vector<std::int64_t> global_shape,
                               std::vector<std::int64_t> global_offset,
                               const Placements& placements);

}  // namespace tdbg::bindings
