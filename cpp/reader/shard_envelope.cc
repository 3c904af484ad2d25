// What a shard adds to an envelope.

#include <algorithm>
#include <utility>

#include "reader/shard.h"

namespace tdbg {
namespace {

constexpr auto kDefinitionOf = [](const auto& entry) {
  return entry.definition;
};

// The groups of these tensors, which ascend as the groups do.
std::vector<Group> Choose(std::span<const Group> groups,
                          std::span<const EnvelopeQuery::Tensor> tensors) {
  std::vector<Group> chosen;
  auto group = groups.begin();
  for (const EnvelopeQuery::Tensor& tensor : tensors) {
    group = std::lower_bound(
        group, groups.end(), tensor.definition,
        [](const Group& g, std::uint32_t d) { return g.definition < d; });
    if (group == groups.end()) break;
    if (group->definition == tensor.definition) chosen.push_back(*group);
  }
  return chosen;
}

}  // namespace

// Puts rows and cells of a shard into their columns.
class Shard::EnvelopeAdder {
 public:
  EnvelopeAdder(const EnvelopeQuery& query, StepModes modes, EnvelopeGrid* grid,
                std::vector<LooseCell>* loose)
      : query_(query), modes_(std::move(modes)), grid_(grid), loose_(loose) {}

  [[nodiscard]] const EnvelopeQuery& query() const { return query_; }
  [[nodiscard]] std::int64_t widest() const { return grid_->widest(); }

  // The tensor of a definition; null if it is not asked for.
  [[nodiscard]] const EnvelopeQuery::Tensor* Find(std::uint32_t definition) {
    const auto& tensors = query_.tensors;
    const auto found = std::lower_bound(
        tensors.begin(), tensors.end(), definition,
        [](const auto& t, std::uint32_t d) { return t.definition < d; });
    const bool is_there =
        found != tensors.end() && found->definition == definition;
    return is_there ? &*found : nullptr;
  }

  void AddRow(const EnvelopeQuery::Tensor& tensor, const ColumnRow& row) {
    if (!query_.steps.Includes(row.step)) return;
    const auto column = grid_->FindColumn(row.step);
    if (!column) return;
    const std::uint32_t mode = modes_.Find(row.step);
    if (mode == kModeUnknown) {
      loose_->push_back(
          {tensor.name, *column, CellOf(row, tensor.extremes, kModeUnknown)});
    } else if (query_.HasMode(mode)) {
      grid_->AddRow(tensor.name, *column, row.step,
                    CellRow(row.summary, tensor.extremes));
    }
  }

  // The cells of one tensor; false, and none is added, if a column, or the
  // range that is asked for, ends within one.
  bool AddCells(const EnvelopeQuery::Tensor& tensor,
                std::span<const Cell> cells) {
    const auto is_asked = [&](const Cell& cell) {
      return cell.first_step <= query_.steps.last &&
             cell.last_step >= query_.steps.first &&
             (cell.mode == kModeUnknown || query_.HasMode(cell.mode));
    };
    for (const Cell& cell : cells) {
      if (is_asked(cell) && (!query_.steps.Includes(cell.first_step) ||
                             !query_.steps.Includes(cell.last_step) ||
                             grid_->IsCut(cell.first_step, cell.last_step))) {
        return false;
      }
    }
    for (const Cell& cell : cells) {
      if (!is_asked(cell)) continue;
      const auto column = grid_->FindColumn(cell.first_step);
      if (cell.mode == kModeUnknown) {
        loose_->push_back({tensor.name, *column, cell});
      } else {
        grid_->AddCell(tensor.name, *column, cell);
      }
    }
    return true;
  }

 private:
  const EnvelopeQuery& query_;
  StepModes modes_;
  EnvelopeGrid* const grid_;
  std::vector<LooseCell>* const loose_;
};

void Shard::AddToEnvelope(const EnvelopeQuery& query, EnvelopeGrid* grid,
                          std::vector<LooseCell>* loose) {
  if (!MayHave(SectionKind::kRowsPlaces, query.steps)) return;
  EnvelopeAdder adder(query, StepModes(Steps()), grid, loose);
  OpenColumns();
  AddRows(AddCells(&adder), &adder);
}

std::optional<unsigned> Shard::CellShift() {
  if (reader_.state() != ShardState::kSealed) return std::nullopt;
  const Section* section =
      index_ && !cells_failed_ ? index_->Find(SectionKind::kCells) : nullptr;
  if (section != nullptr) {
    return std::clamp(section->flags >> kBucketShiftBit & 0xffU,
                      kLeastBucketShift, kMostBucketShift);
  }
  const auto steps = RecordedSteps();
  if (!steps) return std::nullopt;
  return BucketShift(steps->first, steps->last, n_steps());
}

// --- Cells -------------------------------------------------------------------

std::vector<EnvelopeQuery::Tensor> Shard::AddCells(EnvelopeAdder* adder) {
  const auto& tensors = adder->query().tensors;
  const auto shift = CellShift();
  // In narrower columns hardly a cell lies whole.
  if (!shift || adder->widest() < std::int64_t{1} << *shift) return tensors;
  std::vector<EnvelopeQuery::Tensor> by_rows;
  if (AddIndexedCells(adder, &by_rows)) return by_rows;
  const MadeCells& made = MakeCells(*shift);
  if (made.are_many) return tensors;
  for (const Group& group : Choose(made.groups, tensors)) {
    const auto* tensor = adder->Find(group.definition);
    if (!adder->AddCells(*tensor,
                         std::span(made.cells).subspan(group.first, group.n))) {
      by_rows.push_back(*tensor);
    }
  }
  return by_rows;
}

// False where the index has none.
bool Shard::AddIndexedCells(EnvelopeAdder* adder,
                            std::vector<EnvelopeQuery::Tensor>* by_rows) {
  if (!index_ || cells_failed_) return false;
  const Section* section = index_->Find(SectionKind::kCells);
  if (section == nullptr) return false;
  const auto groups = index_->Table<Group>(SectionKind::kCellGroups);
  const auto columns = index_->Table<Group>(SectionKind::kColumnGroups);
  if (!groups || !columns ||
      !std::ranges::equal(*groups, *columns, {}, kDefinitionOf,
                          kDefinitionOf)) {
    cells_failed_ = true;
    return false;
  }
  const std::vector<Group> chosen = Choose(*groups, adder->query().tensors);
  const auto add = [&](const Group& group, std::span<const Cell> cells) {
    const auto* tensor = adder->Find(group.definition);
    std::uint64_t n_rows = 0;
    bool hold = true;
    for (const Cell& cell : cells) {
      hold = hold && CellHolds(cell, group.definition, section->first_step,
                               section->last_step);
      n_rows += cell.n_rows;
    }
    const auto column =
        std::ranges::lower_bound(*columns, group.definition, {}, kDefinitionOf);
    hold = hold && n_rows == column->n;
    cells_failed_ |= !hold;
    if (!hold || !adder->AddCells(*tensor, cells)) by_rows->push_back(*tensor);
  };
  // Of a tensor whose cells are damaged, and those behind it, the rows are
  // read.
  std::size_t n = index_->VisitCells(chosen, add);
  cells_failed_ |= n < chosen.size();
  for (; n < chosen.size(); ++n) {
    by_rows->push_back(*adder->Find(chosen[n].definition));
  }
  return true;
}

std::uint64_t Shard::n_made() const {
  if (!made_cells_) return 0;
  return made_cells_->groups.capacity() * sizeof(Group) +
         made_cells_->cells.capacity() * sizeof(Cell);
}

const Shard::MadeCells& Shard::MakeCells(unsigned shift) {
  if (made_cells_) return *made_cells_;
  StepModes modes(Steps());
  MadeCells made;
  if (!MakeCellsOfColumns(shift, &modes, &made)) {
    MakeCellsOfRecords(shift, &modes, &made);
  }
  if (made.cells.size() > n_rows() / 2) {
    made = {};
    made.are_many = true;
  }
  made.cells.shrink_to_fit();
  return made_cells_.emplace(std::move(made));
}

bool Shard::MakeCellsOfColumns(unsigned shift, StepModes* modes,
                               MadeCells* made) {
  if (!index_) return false;
  const auto columns = index_->Table<Group>(SectionKind::kColumnGroups);
  std::size_t n = 0;
  if (columns) {
    made->groups.reserve(columns->size());
    n = index_->VisitColumns(*columns, [&](const Group& column,
                                           std::span<const ColumnRow> rows) {
      const std::size_t first = made->cells.size();
      AppendCells(rows, ClassOf(column.definition), shift, modes, &made->cells);
      made->groups.push_back({.definition = column.definition,
                              .first = first,
                              .n = made->cells.size() - first});
    });
  }
  if (columns && n == columns->size()) return true;
  *made = {};
  Demote();
  return false;
}

void Shard::MakeCellsOfRecords(unsigned shift, StepModes* modes,
                               MadeCells* made) {
  std::vector<ColumnRow> rows;
  rows.reserve(n_rows());
  for (const RowsPlace& place : Places()) ReadPlace(place, &rows);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ColumnRow& a, const ColumnRow& b) {
                     return a.definition < b.definition;
                   });
  for (std::size_t first = 0; first < rows.size();) {
    const std::uint32_t definition = rows[first].definition;
    const auto [begin, end] = std::ranges::equal_range(
        rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(),
        definition, {}, kDefinitionOf);
    const auto of_one =
        std::span(&*begin, static_cast<std::size_t>(end - begin));
    first += of_one.size();
    if (definition == 0) continue;  // Of a record that is damaged.
    const std::size_t at = made->cells.size();
    AppendCells(of_one, ClassOf(definition), shift, modes, &made->cells);
    made->groups.push_back(
        {.definition = definition, .first = at, .n = made->cells.size() - at});
  }
}

ExtremeClass Shard::ClassOf(std::uint32_t definition) const {
  const auto found = tables_.definitions->Find(definition);
  return CellClassOf(found ? found->dtype : DType::kInvalid);
}

// --- Rows --------------------------------------------------------------------

void Shard::AddRows(std::vector<EnvelopeQuery::Tensor> tensors,
                    EnvelopeAdder* adder) {
  if (tensors.empty()) return;
  const StepRange steps = adder->query().steps;
  std::vector<std::uint32_t> ids(tensors.size());
  std::ranges::transform(tensors, ids.begin(), kDefinitionOf);
  std::ranges::sort(ids);
  const auto columns = ChooseColumns(steps, ids, [](std::size_t) {
    return ColumnCost{.per_column = 200, .per_row = 5};
  });
  if (columns) {
    const auto add = [&](const Group& column, std::span<const ColumnRow> rows) {
      const auto* tensor = adder->Find(column.definition);
      for (const ColumnRow& row : rows) adder->AddRow(*tensor, row);
    };
    const std::size_t n = index_->VisitColumns(*columns, add);
    if (n == columns->size()) return;
    // Those before were added.
    const std::uint32_t damaged = (*columns)[n].definition;
    ids.erase(ids.begin(), std::ranges::lower_bound(ids, damaged));
    Demote();
  }
  std::vector<ColumnRow> rows;
  FindRowsPlaces(steps, std::span<const std::uint32_t>(ids),
                 [&](const RowsPlace& place) {
                   rows.clear();
                   ReadPlace(place, &rows);
                   for (const ColumnRow& row : rows) {
                     if (!std::ranges::binary_search(ids, row.definition)) {
                       continue;
                     }
                     adder->AddRow(*adder->Find(row.definition), row);
                   }
                 });
}

}  // namespace tdbg
