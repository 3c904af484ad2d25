#include "reader/saved_steps.h"

#include <algorithm>

namespace tdbg {

std::vector<std::int64_t> FindSavedSteps(ShardList* list, StepRange steps,
                                         Shard::DefinitionFilter filter,
                                         RunReader::Kinds kinds) {
  std::vector<std::int64_t> found;
  std::size_t begin = 0;  // Of the entries of a shard.
  std::size_t run = 0;    // Of those of one kind, which mostly ascend.
  const auto note = [&](std::int64_t step) {
    if (found.size() == run || found.back() != step) found.push_back(step);
  };
  const auto merge = [&] {
    const auto at = [&](std::size_t i) {
      return found.begin() + static_cast<std::ptrdiff_t>(i);
    };
    if (!std::is_sorted(at(run), found.end())) std::sort(at(run), found.end());
    std::inplace_merge(at(begin), at(run), found.end());
    found.erase(std::unique(at(begin), found.end()), found.end());
    run = found.size();
  };
  for (ListedShard& listed : list->shards()) {
    Shard& shard = *listed.shard;
    begin = run = found.size();
    if (kinds.rows) {
      shard.FindRowsPlaces(steps, filter,
                           [&](const RowsPlace& place) { note(place.step); });
      merge();
    }
    if (kinds.tensors) {
      shard.FindTensors(steps, filter, [&](std::uint64_t i) {
        note(shard.Tensors()[i].step);
      });
      merge();
    }
    if (kinds.scalars) {
      shard.FindScalars(steps, filter, [&](std::uint64_t i) {
        note(shard.Scalars()[i].step);
      });
      merge();
    }
    list->Retire(&listed);
  }
  begin = run = 0;
  merge();  // A later shard may go back to earlier steps.
  return found;
}

}  // namespace tdbg
