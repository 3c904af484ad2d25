// RowColumns gathers fields of rows, each of them contiguous: what tables of
// other libraries are made of.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/index_tables.h"

namespace tdbg {

// Number of fields of a row, in the order of Summary.
inline constexpr std::size_t kRowFields = sizeof(Summary) / 8;

struct RowColumnsQuery {
  std::vector<std::uint32_t> definitions;  // Ascending, each once.
  std::vector<std::int64_t> steps;         // Likewise: rows of others are left.
  std::vector<std::size_t> fields;         // Each below kRowFields.
};

class RowColumns {
 public:
  // Rows of one definition that follow each other.
  struct Stretch {
    std::uint32_t definition = 0;
    std::uint64_t n = 0;
    bool ascends = true;  // Each step comes once, and none before another.
  };

  // `query` outlives this.
  explicit RowColumns(const RowColumnsQuery* query)
      : query_(query), fields_(query->fields.size()) {}

  // Makes room for so many rows more.
  void Reserve(std::size_t n);

  // Adds those of `rows`, all of this definition, whose steps are asked for.
  void Add(std::uint32_t definition, std::span<const ColumnRow> rows);

  // The rows in the order in which they were added.
  std::vector<Stretch> stretches;
  // Of each row, the place of its step among those of the query.
  std::vector<std::uint32_t> places;
  // Of each field of the query, its bits in each row.
  std::vector<std::vector<std::uint64_t>>& fields() { return fields_; }

 private:
  const RowColumnsQuery* const query_;
  std::vector<std::vector<std::uint64_t>> fields_;
  std::vector<std::uint32_t> chosen_;  // Those of Add(), to be used again.
};

}  // namespace tdbg
