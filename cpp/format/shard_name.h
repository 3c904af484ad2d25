// The name of a shard's file, or of its index's.
//
// Implements docs/format.md, "A run".
//
// Thread safety: a pure function.

#pragma once

#include <cstdint>
#include <string>

namespace tdbg {

// `000001.tds` for (1, ".tds"), `000001.tdi` for (1, ".tdi").
[[nodiscard]] inline std::string ShardName(std::uint32_t number,
                                           const char* extension) {
  std::string name = std::to_string(number);
  if (name.size() < 6) name.insert(0, 6 - name.size(), '0');
  return name + extension;
}

}  // namespace tdbg
