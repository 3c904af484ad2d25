// The directory of one writer process: its name, and its creation.
//
// Implements docs/format.md, "A run".
//
// Thread safety: pure functions over the file system; two processes that ask
// for the same role and rank get different generations.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/record.h"

namespace tdbg {

struct WriterDirectory {
  std::string path;
  std::uint32_t generation = 0;
};

// Creates run/w/<role>-<rank>-<generation> exclusively.
Result<WriterDirectory> CreateWriterDirectory(FileSystem* file_system,
                                              const std::string& run_directory,
                                              WriterRole role,
                                              std::uint32_t rank);

// The directories of a role and rank in a run, oldest generation first.
Result<std::vector<std::string>> ListWriterDirectories(
    FileSystem* file_system, const std::string& run_directory, WriterRole role,
    std::uint32_t rank);

}  // namespace tdbg
