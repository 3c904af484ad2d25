// Copies of sealed shards that leave records out.
//
// Implements docs/format.md, "Retention": a copy is a shard like any other.  It
// begins with a `gap` that says what was left out, and ends with the sequence
// with which its last source ended; between them, records are numbered anew.
//
// Thread safety: none.
//
// Errors: whatever reading a source or writing the copy says; the files of a
// copy that failed are to be removed.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/record.h"
#include "writer/sealed_shard.h"

namespace tdbg {

// What is left out.
struct CopyRule {
  // Everything but events, gaps, and what belongs to a step that goes on in the
  // next shard.  Otherwise values only, and of these:
  bool is_all = false;
  // Those of steps whose number in their mode is divisible by it stay; 0: none.
  std::int64_t every = 0;
};

// Which records of the sources, which follow each other, stay, and what the
// copy says of the others.
struct CopyPlan {
  std::vector<std::vector<bool>> kept;  // Of each source, by entry.
  std::uint64_t n_kept = 0;
  std::uint64_t n_bytes = 0;  // Of the payloads that are left out now.
  Gap gap;                    // With what earlier copies left out.
};
Result<CopyPlan> PlanCopy(std::span<const SealedShard> sources,
                          const CopyRule& rule);

// The `gap` by which a copy begins; nothing where the shard is none.
Result<std::optional<Gap>> RemovedFrom(const SealedShard& shard);

// Writes the copy to `shard_path`, durably, and its index to `index_path`;
// calls `progress` now and then.
// REQUIRES: `plan` was made of these sources and leaves something out.
Status WriteCopy(FileSystem* file_system, std::span<const SealedShard> sources,
                 const CopyPlan& plan, const std::string& shard_path,
                 const std::string& index_path,
                 const std::function<void()>& progress);

}  // namespace tdbg
