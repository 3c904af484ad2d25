// IndexReader answers from the index file of a sealed shard.
//
// Implements docs/format.md, "The index".  A table is read when it is asked for
// first: its checksum is compared and everything in it that others rely on
// (offsets, order, counts).  The index is a cache: whatever does not hold is as
// if there were no index, and never a problem.
//
// Bytes are copied out of the file, not mapped: whoever may write in the
// directory may truncate the index at any time.
//
// Thread safety: none.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "format/cells.h"
#include "format/index.h"
#include "format/index_file.h"
#include "format/index_tables.h"
#include "reader/directory.h"
#include "reader/input_file.h"

namespace tdbg {

class IndexReader {
 public:
  // The length at which the shard `number` was sealed, as its index says; for a
  // shard whose header cannot be read without `salt`.  Nothing without an index
  // that holds so far.
  static std::optional<std::uint64_t> SealedLength(
      const Directory* directory, std::uint32_t number,
      std::optional<std::uint64_t> salt);

  // The index of the sealed shard `number`.  Empty when there is none that fits
  // the shard's salt and its `end`.
  static std::optional<IndexReader> Open(const Directory* directory,
                                         std::uint32_t number,
                                         std::uint64_t salt, const End& end);

  // One in memory, which outlives this; `directory_crc` stands for the one that
  // the `end` of its shard names.
  static std::optional<IndexReader> OfBytes(std::span<const std::byte> bytes,
                                            std::uint32_t number,
                                            const End& end,
                                            std::uint32_t directory_crc);

  [[nodiscard]] std::uint32_t number() const { return number_; }

  // Number of entries, and the range of their steps; null for an empty table.
  [[nodiscard]] const Section* Find(SectionKind kind) const {
    const Section& section = tables_[static_cast<std::size_t>(kind)].section;
    return section.n_entries == 0 ? nullptr : &section;
  }
  [[nodiscard]] std::uint64_t Count(SectionKind kind) const {
    return tables_[static_cast<std::size_t>(kind)].section.n_entries;
  }

  // A table; nothing when it is damaged.
  // REQUIRES: Entry is the type of `kind`, which is neither kColumns nor
  // kCells.
  template <typename Entry>
  std::optional<std::span<const Entry>> Table(SectionKind kind) {
    if (!Load(kind)) return std::nullopt;
    return Held<Entry>(kind);
  }
  // Where a table lies in the file; nothing if it is in memory or empty.
  [[nodiscard]] std::optional<FileRange> RangeOf(SectionKind kind) const;
  // Where the members of a group of columns or cells lie.
  [[nodiscard]] FileRange RangeOf(SectionKind kind, const Group& group) const;

  // Gives the memory of a table back.
  void Drop(SectionKind kind);
  void DropAll();
  // Bytes of the tables that are in memory.
  [[nodiscard]] std::uint64_t n_held() const;

  // The group of a definition in `groups`; null if it has none or it is
  // damaged. `groups` is one of the kinds of groups.
  const Group* FindGroup(SectionKind groups, std::uint32_t definition,
                         bool* is_damaged);

  // Appends the rows of a column.  False, and nothing is appended, when it is
  // damaged.
  [[nodiscard]] bool ReadColumn(const Group& column,
                                std::vector<ColumnRow>* rows);

  // Calls `visit` with each of these groups of columns or cells, which ascend,
  // reading neighbors at once.  Returns how many it was called with: fewer than
  // there are when the next one is damaged.
  template <typename Entry>
  using VisitGroup = std::function<void(const Group&, std::span<const Entry>)>;
  std::size_t VisitColumns(std::span<const Group> columns,
                           const VisitGroup<ColumnRow>& visit) {
    return Visit(SectionKind::kColumns, columns, visit);
  }
  std::size_t VisitCells(std::span<const Group> groups,
                         const VisitGroup<Cell>& visit) {
    return Visit(SectionKind::kCells, groups, visit);
  }

  // Gives up the descriptor; the next read opens the file again.
  void Close() { file_->Close(); }

 private:
  struct Loaded {
    Section section;
    std::vector<std::byte> bytes;
    bool is_loaded = false;
  };

  IndexReader() = default;

  static std::optional<IndexReader> OpenFile(std::unique_ptr<InputFile> file,
                                             std::uint32_t number,
                                             std::optional<std::uint64_t> salt,
                                             const End& end);
  bool Load(SectionKind kind);
  template <typename Entry>
  std::size_t Visit(SectionKind kind, std::span<const Group> groups,
                    const VisitGroup<Entry>& visit);
  // A table as far as it was loaded.
  template <typename Entry>
  std::span<const Entry> Held(SectionKind kind) const {
    const auto& bytes = tables_[static_cast<std::size_t>(kind)].bytes;
    return std::span(reinterpret_cast<const Entry*>(bytes.data()),  // NOLINT
                     bytes.size() / sizeof(Entry));
  }
  // Whether what was read can be relied on.
  bool Holds(SectionKind kind);
  bool GroupsHold(SectionKind groups, std::uint64_t n_members);
  template <typename Entry, typename DefinitionOf>
  bool PostingsHold(SectionKind entries, SectionKind groups,
                    DefinitionOf definition_of);
  bool SamplesHold();
  bool PlacesHold();
  bool SignaturesHold();
  bool DefinitionsHold();
  // Whether the tables have the sizes that follow from each other.
  [[nodiscard]] bool CountsAgree(const End& end) const;

  std::unique_ptr<InputFile> file_;
  std::uint64_t shard_length_ = 0;
  std::uint32_t number_ = 0;
  std::array<Loaded, kSectionKinds + 1> tables_;
};

}  // namespace tdbg
