// DefinitionTable gives out the ids of definitions and remembers them, for the
// lifetime of a writer.
//
// Implements docs/format.md, "definition".  Equal definitions share an id; what
// differs in anything but the aliases gets a new one.
//
// Thread safety: all of it.
//
// Errors: a definition that no reader would accept has the id 0.

#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "format/record.h"

namespace tdbg {

class DefinitionTable {
 public:
  // A name above limits::kName is cut and completed with its SHA-256, an alias,
  // too; aliases that do not fit into the definition are left out.
  std::uint32_t Define(Definition definition);

  // Null for an id never given out.  The pointer stays valid.
  [[nodiscard]] const Definition* Find(std::uint32_t id);
  // How many there are: the largest id given out.
  [[nodiscard]] std::uint32_t size();

 private:
  Mutex mutex_;
  // Id n is at n - 1.  A deque, because its elements never move.
  std::deque<Definition> definitions_ TDBG_GUARDED_BY(mutex_);
  // From the encoding without id and aliases.
  std::unordered_map<std::string, std::uint32_t> ids_ TDBG_GUARDED_BY(mutex_);
};

}  // namespace tdbg
