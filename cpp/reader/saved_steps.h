// The steps at which a writer saved anything.
//
// Thread safety: pure functions of what they are given.

#pragma once

#include <cstdint>
#include <vector>

#include "reader/run_reader.h"
#include "reader/shard_list.h"
#include "reader/step_range.h"

namespace tdbg {

// RunReader::SavedSteps over these shards.
std::vector<std::int64_t> FindSavedSteps(ShardList* list, StepRange steps,
                                         Shard::DefinitionFilter filter,
                                         RunReader::Kinds kinds);

}  // namespace tdbg
