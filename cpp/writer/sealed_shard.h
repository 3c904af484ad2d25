// SealedShard is a shard that was sealed, as whoever copies a part of it sees
// it: its header, its end, and its records by the `index` record.
//
// Implements docs/format.md, "Retention".
//
// Thread safety: none.
//
// Errors: Open fails where the file is no sealed shard, or anything it reads
// does not hold; Read where a payload does not.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/index.h"
#include "format/record.h"
#include "format/tensor_record.h"

namespace tdbg {

class SealedShard {
 public:
  // Errors: kNotFound where the file has no `end` record: nobody sealed it.
  static Result<SealedShard> Open(FileSystem* file_system, std::string path);

  [[nodiscard]] const FileHeader& header() const { return header_; }
  [[nodiscard]] const End& end() const { return end_; }
  // The sequence after that of `end`.
  [[nodiscard]] std::uint64_t end_sequence() const { return end_sequence_; }
  [[nodiscard]] std::uint64_t n_bytes() const { return file_.size(); }
  // All but `index` and `end`, in order.
  [[nodiscard]] const std::vector<IndexEntry>& entries() const {
    return entries_;
  }

  // The checked part of a record's payload: of a tensor, head and chunk table.
  [[nodiscard]] Result<std::vector<std::byte>> Read(
      const IndexEntry& entry) const;
  // What follows that of a tensor, from `offset` on.
  [[nodiscard]] Status ReadData(const IndexEntry& entry, std::uint64_t offset,
                                std::span<std::byte> out) const;

 private:
  explicit SealedShard(SourceFile file) : file_(std::move(file)) {}

  Status ReadEnd();
  Status ReadIndex();

  SourceFile file_;
  FileHeader header_;
  End end_;
  std::uint64_t end_sequence_ = 0;
  std::vector<IndexEntry> entries_;
};

}  // namespace tdbg
