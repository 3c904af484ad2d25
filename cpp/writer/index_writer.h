// IndexWriter writes the index cache (.tdi) beside a shard.
//
// Implements docs/format.md, "The index".  It is only a cache: its first
// failure ends it, removes the file, and concerns nobody else.
//
// Thread safety: none; the writer thread owns it.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/index.h"

namespace tdbg {

class IndexWriter {
 public:
  // An index that writes nothing.
  IndexWriter() = default;

  // Creates `path`; after a failure the index writes nothing.
  Status Open(FileSystem* file_system, const std::string& path,
              const IndexHeader& header);

  // Appends entries.  Does nothing when the index was given up.
  Status Append(std::span<const IndexEntry> entries);

  // Completes the index of a sealed shard of `shard_length` bytes.  Reorders
  // `rows`.
  Status Finish(std::vector<ColumnRow>* rows, std::uint64_t shard_length);

  // Removes the file, if this is still open.
  void GiveUp();

  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  [[nodiscard]] std::uint64_t n_bytes() const { return n_bytes_; }

 private:
  Status Write(std::span<const std::byte> bytes);

  FileSystem* file_system_ = nullptr;
  File file_;
  IndexHeader header_;
  std::uint64_t n_bytes_ = 0;
  std::uint64_t n_entries_ = 0;
};

}  // namespace tdbg
