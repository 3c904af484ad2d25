// IndexReader reads the statistics rows of a definition from the index of a
// sealed shard, in one read.
//
// Implements docs/format.md, "The index".  The index is a cache: whatever does
// not hold is as if it were not there, and never a problem.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "format/index.h"
#include "reader/input_file.h"

namespace tdbg {

class IndexReader {
 public:
  // The index of the sealed shard `number` of `shard_length` bytes, whose
  // records hold `n_rows` rows.  Empty when there is no index that fits.
  static std::optional<IndexReader> Open(int directory, std::uint32_t number,
                                         std::uint64_t salt,
                                         std::uint64_t shard_length,
                                         std::uint64_t n_rows);

  // How many rows these definitions have.
  [[nodiscard]] std::uint64_t CountRows(
      std::span<const std::uint32_t> definitions) const;

  // Appends the rows of these definitions, one after the other.  False, and
  // nothing is appended, when the index has become damaged.
  [[nodiscard]] bool Read(int directory,
                          std::span<const std::uint32_t> definitions,
                          std::vector<ColumnRow>* rows) const;

 private:
  IndexReader(std::uint32_t number, std::uint64_t columns_offset,
              std::vector<DirectoryEntry> entries)
      : number_(number),
        columns_offset_(columns_offset),
        entries_(std::move(entries)) {}

  [[nodiscard]] const DirectoryEntry* Find(std::uint32_t definition) const;

  std::uint32_t number_;
  std::uint64_t columns_offset_;
  std::vector<DirectoryEntry> entries_;  // Ascending by definition.
};

}  // namespace tdbg
