// MappedFile is a read-only map of a file that grows no more.
//
// Implements docs/format.md, "Reading": only sealed shards are mapped.
//
// Limit: when somebody truncates a mapped file, or the disk fails to read a
// page, the kernel ends the process that touches it (SIGBUS).  tdbg never
// truncates, but others may: ReaderOptions::map_files must ask for maps.
//
// Thread safety: immutable after construction.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace tdbg {

class MappedFile {
 public:
  // Maps the first `n_bytes` of the file open at `descriptor`, which may be
  // closed afterwards.
  // REQUIRES: n_bytes > 0, and the file has as many.
  static Result<std::shared_ptr<const MappedFile>> Map(int descriptor,
                                                       std::uint64_t n_bytes);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  const std::span<const std::byte> bytes_;
};

}  // namespace tdbg
