// EnvelopeReader asks the shards of a writer what they add to an envelope.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "reader/definitions.h"
#include "reader/envelope.h"
#include "reader/shard_list.h"

namespace tdbg {

class EnvelopeReader {
 public:
  // Both outlive this.
  EnvelopeReader(ShardList* list, const Definitions* definitions)
      : list_(list), definitions_(definitions) {}

  // RunReader::AddToEnvelope, and RunReader::FindBuckets.
  std::size_t Add(const EnvelopeIds& asked, std::size_t n_shards,
                  EnvelopeGrid* grid);
  std::vector<CellBuckets> FindBuckets(StepRange steps);

 private:
  [[nodiscard]] EnvelopeQuery QueryOf(const EnvelopeIds& asked) const;
  void AddLoose(const EnvelopeQuery& query, const std::vector<LooseCell>& loose,
                EnvelopeGrid* grid);
  // The mode of a step that was ended; kModeUnknown of others.
  std::uint32_t ModeOf(std::int64_t step);
  // Bounds the cells that shards have made, after a question to one.
  void CountMade(ListedShard* listed);

  ShardList* const list_;
  const Definitions* const definitions_;
  // Modes of steps whose records lie in several shards.
  std::unordered_map<std::int64_t, std::uint32_t> modes_;
  std::uint64_t n_made_ = 0;  // Bytes of cells that shards have made.
};

}  // namespace tdbg
