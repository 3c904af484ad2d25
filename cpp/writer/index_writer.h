// Writes the index file (.tdi) beside a sealed shard.
//
// Implements docs/format.md, "The index".  It is only a cache: where it cannot
// be written it is removed, and that concerns nobody else.
//
// Thread safety: none; the writer thread calls it.

#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/file.h"
#include "base/status.h"

namespace tdbg {

// Creates `path` with these bytes.  After an error there is no such file, or
// one that readers do not take for an index: its end is missing.
Status WriteIndexFile(FileSystem* file_system, const std::string& path,
                      std::span<const std::byte> bytes);

}  // namespace tdbg
