// ExpectedReads tells a directory that is far away what all shards will read
// for a question, so that it gets everything at once.
//
// Does nothing where the directory is near.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <span>

#include "format/index_file.h"
#include "reader/directory.h"
#include "reader/shard_list.h"
#include "reader/step_range.h"

namespace tdbg {

class ExpectedReads {
 public:
  // Both outlive this.
  ExpectedReads(ShardList* list, const Directory* directory)
      : list_(list), directory_(directory) {}

  // The tables of the indexes of shards with entries of this kind and of these
  // steps.
  void Tables(SectionKind about, StepRange steps = kAllSteps) const;
  // The columns of these definitions (ascending).
  void Columns(StepRange steps, std::span<const std::uint32_t> ids) const;
  // The records of which indexes have only the places.
  void Records() const;
  // These tensors; those that are not there are passed over.
  void Tensors(std::span<const std::uint64_t> tensors) const;

 private:
  ShardList* const list_;
  const Directory* const directory_;
};

}  // namespace tdbg
