// The names that files and directories of a run are made of.
//
// Implements docs/format.md, "A run".
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <string>

#include "format/record.h"

namespace tdbg {

// `000001.tds` for (1, ".tds"), `000001.tdi` for (1, ".tdi").
[[nodiscard]] inline std::string ShardName(std::uint32_t number,
                                           const char* extension) {
  std::string name = std::to_string(number);
  if (name.size() < 6) name.insert(0, 6 - name.size(), '0');
  return name + extension;
}

// Behind a shard's or an index's name: a copy that is not complete, and what
// the copy replaced, for those who read it.
inline constexpr const char* kNewEnding = ".new";
inline constexpr const char* kOldEnding = ".old";

// How a writer directory's name begins.
[[nodiscard]] inline const char* RoleName(WriterRole role) {
  switch (role) {
    case WriterRole::kTrain:
      return "train";
    case WriterRole::kEngine:
      return "engine";
    case WriterRole::kProfiler:
      return "profiler";
  }
  return "unknown";
}

}  // namespace tdbg
