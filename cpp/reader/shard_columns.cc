// Gathering fields of the rows of a shard.

#include <algorithm>

#include "reader/row_columns.h"
#include "reader/shard.h"

namespace tdbg {

void Shard::GatherRows(const RowColumnsQuery& query, RowColumns* gathered) {
  if (query.steps.empty() || query.definitions.empty()) return;
  const StepRange steps = {query.steps.front(), query.steps.back()};
  if (!MayHave(SectionKind::kRowsPlaces, steps)) return;
  std::span<const std::uint32_t> rest = query.definitions;
  OpenColumns();
  const auto columns = ChooseColumns(steps, rest, [](std::size_t) {
    return ColumnCost{.per_column = 200, .per_row = 5};
  });
  if (columns) {
    std::size_t n_rows = 0;
    for (const Group& column : *columns) n_rows += column.n;
    gathered->Reserve(n_rows);
    const std::size_t n = index_->VisitColumns(
        *columns, [&](const Group& column, std::span<const ColumnRow> rows) {
          gathered->Add(column.definition, rows);
        });
    if (n == columns->size()) return;
    // Those before were added.
    rest = rest.subspan(static_cast<std::size_t>(
        std::ranges::lower_bound(rest, (*columns)[n].definition) -
        rest.begin()));
    Demote();
  }
  GatherRecords(steps, rest, gathered);
}

void Shard::GatherRecords(StepRange steps,
                          std::span<const std::uint32_t> definitions,
                          RowColumns* gathered) {
  std::vector<ColumnRow> rows;
  FindRowsInRecords(steps, definitions, &rows);
  std::ranges::stable_sort(rows, {}, &ColumnRow::definition);
  for (auto begin = rows.begin(); begin != rows.end();) {
    const auto end = std::ranges::upper_bound(
        begin, rows.end(), begin->definition, {}, &ColumnRow::definition);
    gathered->Add(begin->definition, std::span(begin, end));
    begin = end;
  }
}

}  // namespace tdbg
