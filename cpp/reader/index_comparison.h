// Compares the index of a shard with the one that its records make.
//
// Implements docs/format.md, "Reading": a full check believes no index, but
// every other reader does, so it says where an index tells something else.
//
// Thread safety: none.

#pragma once

#include <vector>

#include "format/index_builder.h"
#include "reader/index_reader.h"
#include "reader/problem.h"

namespace tdbg {

// The problems of `index`, which belongs to the shard that `records` were all
// taken from; one for each table.  What fails its own checks is none: readers
// pass over it.
[[nodiscard]] std::vector<Problem> CompareIndex(const End& end,
                                                IndexBuilder records,
                                                IndexReader* index);

}  // namespace tdbg
