// Finding entries of a shard by step and definition.

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "base/crc32c.h"
#include "reader/shard.h"

namespace tdbg {
namespace {

bool Contains(std::span<const std::uint32_t> ascending, std::uint32_t id) {
  return std::binary_search(ascending.begin(), ascending.end(), id);
}

bool StandsBefore(const ColumnRow& a, const ColumnRow& b) {
  return std::tie(a.step, a.position, a.definition) <
         std::tie(b.step, b.position, b.definition);
}

ColumnRow AsColumnRow(const Row& row, std::int64_t step,
                      std::uint32_t position) {
  ColumnRow column;
  column.step = step;
  column.definition = row.definition;
  column.call = row.call;
  column.micro_batch = row.micro_batch;
  column.flags = row.flags;
  column.position = position;
  column.summary = row.summary;
  return column;
}

constexpr auto kStepOf = [](const auto& entry) { return entry.step; };
constexpr auto kStepOfRecord = [](const StepEntry& entry) {
  return entry.record.step;
};

}  // namespace

bool Shard::MayHave(SectionKind kind, StepRange steps) const {
  if (!has_index()) return true;
  const Section* section = index_->Find(kind);
  return section != nullptr && section->first_step <= steps.last &&
         section->last_step >= steps.first;
}

template <typename Entry, typename StepOf>
bool Shard::Ascends(SectionKind kind, std::span<const Entry> entries,
                    StepOf step_of) {
  if (has_index()) {
    const Section* section = index_->Find(kind);
    return section != nullptr && (section->flags & kStepsAscend) != 0;
  }
  Ascent& seen = ascents_[static_cast<std::size_t>(kind)];
  for (; seen.n_seen < entries.size() && seen.ascends; ++seen.n_seen) {
    const std::int64_t step = step_of(entries[seen.n_seen]);
    seen.ascends = step >= seen.last_step;
    seen.last_step = step;
  }
  return seen.ascends;
}

template <typename Entry, typename StepOf>
std::pair<std::uint64_t, std::uint64_t> Shard::Range(
    SectionKind kind, std::span<const Entry> entries, StepRange steps,
    StepOf step_of) {
  if (!Ascends(kind, entries, step_of)) return {0, entries.size()};
  const auto first = std::partition_point(
      entries.begin(), entries.end(),
      [&](const Entry& entry) { return step_of(entry) < steps.first; });
  const auto last = std::partition_point(
      first, entries.end(),
      [&](const Entry& entry) { return step_of(entry) <= steps.last; });
  return {first - entries.begin(), last - entries.begin()};
}

template <typename Entry, typename DefinitionOf>
void Shard::Find(SectionKind kind, SectionKind groups, SectionKind postings,
                 std::span<const Entry> (Shard::*table)(),
                 DefinitionOf definition_of, StepRange steps,
                 DefinitionFilter definitions, const Visit& visit) {
  if (!MayHave(kind, steps)) return;
  std::span<const Entry> entries = (this->*table)();
  const auto [first, last] = Range(kind, entries, steps, kStepOf);
  const auto is_in = [&](const Entry& entry) {
    return entry.step >= steps.first && entry.step <= steps.last;
  };
  if (definitions && has_index()) {
    // Of few definitions their postings are shorter than the range.
    std::vector<Group> wanted;
    std::uint64_t n = 0;
    bool is_damaged = false;
    for (const std::uint32_t id : *definitions) {
      const Group* group = index_->FindGroup(groups, id, &is_damaged);
      if (group != nullptr) wanted.push_back(*group);
      n += group == nullptr ? 0 : group->n;
    }
    if (!is_damaged && n < last - first) {
      if (const auto places = index_->Table<std::uint32_t>(postings)) {
        std::vector<std::uint32_t> found;
        for (const Group& group : wanted) {
          for (const std::uint32_t place :
               places->subspan(group.first, group.n)) {
            if (is_in(entries[place])) found.push_back(place);
          }
        }
        std::sort(found.begin(), found.end());
        for (const std::uint32_t place : found) visit(place);
        return;
      }
    }
  }
  for (std::uint64_t i = first; i < last; ++i) {
    if (is_in(entries[i]) &&
        (!definitions || Contains(*definitions, definition_of(entries[i])))) {
      visit(i);
    }
  }
}

void Shard::FindTensors(StepRange steps, DefinitionFilter definitions,
                        const Visit& visit) {
  Find(
      SectionKind::kTensors, SectionKind::kTensorGroups,
      SectionKind::kTensorPostings, &Shard::Tensors,
      [](const TensorEntry& e) { return e.definition; }, steps, definitions,
      visit);
}

void Shard::FindSamples(TimeRange times,
                        std::span<const std::uint32_t> definitions,
                        const std::function<void(const SamplesPlace&)>& visit) {
  if (!MayHave(SectionKind::kSamples, {times.first, times.last})) return;
  for (const SamplesPlace& place : Samples()) {
    if (place.first_time <= times.last && place.last_time >= times.first &&
        Contains(definitions, place.definition)) {
      visit(place);
    }
  }
}

std::vector<std::byte> Shard::ReadSamples(const SamplesPlace& place) {
  auto payload = reader_.ReadSamples(place);
  if (payload.ok()) return std::move(payload).value();
  if (lost_samples_.insert(place.sequence).second) {
    reader_.Lose(place.sequence, place.offset, place.payload_length,
                 payload.status(), &tables_);
    MoveProblems();
  }
  return {};
}

void Shard::FindScalars(StepRange steps, DefinitionFilter definitions,
                        const Visit& visit) {
  Find(
      SectionKind::kScalars, SectionKind::kScalarGroups,
      SectionKind::kScalarPostings, &Shard::Scalars,
      [](const ScalarEntry& e) { return e.scalar.definition; }, steps,
      definitions, visit);
}

void Shard::FindPlaces(StepRange steps, const Visit& visit) {
  if (!MayHave(SectionKind::kRowsPlaces, steps)) return;
  const auto places = Places();
  const auto [first, last] =
      Range(SectionKind::kRowsPlaces, places, steps, kStepOf);
  for (std::uint64_t i = first; i < last; ++i) {
    if (places[i].step >= steps.first && places[i].step <= steps.last) visit(i);
  }
}

void Shard::FindRowsPlaces(StepRange steps, DefinitionFilter definitions,
                           const std::function<void(const RowsPlace&)>& visit) {
  if (!MayHave(SectionKind::kRowsPlaces, steps)) return;
  const auto places = Places();
  // By the number of the signature, once it is known.
  std::vector<std::optional<bool>> has;
  FindPlaces(steps, [&](std::uint64_t i) {
    const RowsPlace& place = places[i];
    if (place.signature >= has.size()) has.resize(place.signature + 1);
    auto& known = has[place.signature];
    if (!known) {
      const auto ids = Signature(place);
      known = !definitions ||
              std::any_of(ids.begin(), ids.end(), [&](std::uint32_t id) {
                return Contains(*definitions, id);
              });
    }
    if (*known) visit(place);
  });
}

void Shard::FindSteps(StepRange steps, const Visit& visit) {
  if (!MayHave(SectionKind::kSteps, steps)) return;
  const auto entries = Steps();
  const auto [first, last] =
      Range(SectionKind::kSteps, entries, steps, kStepOfRecord);
  for (std::uint64_t i = first; i < last; ++i) {
    const std::int64_t step = entries[i].record.step;
    if (step >= steps.first && step <= steps.last) visit(i);
  }
}

std::uint64_t Shard::CountSteps(StepRange steps) {
  if (!MayHave(SectionKind::kSteps, steps)) return 0;
  const Section* section =
      has_index() ? index_->Find(SectionKind::kSteps) : nullptr;
  if (section != nullptr && section->first_step >= steps.first &&
      section->last_step <= steps.last) {
    return section->n_entries;
  }
  std::uint64_t n = 0;
  FindSteps(steps, [&](std::uint64_t) { ++n; });
  return n;
}

// --- Rows --------------------------------------------------------------------

void Shard::FindRows(StepRange steps,
                     std::span<const std::uint32_t> definitions,
                     std::vector<ColumnRow>* rows) {
  if (!MayHave(SectionKind::kRowsPlaces, steps)) return;
  const auto begin = static_cast<std::ptrdiff_t>(rows->size());
  OpenColumns();
  // A column is one read, and several must be sorted.
  const auto columns = ChooseColumns(steps, definitions, [](std::size_t n) {
    return ColumnCost{.per_column = 2000, .per_row = n > 1 ? 60U : 15U};
  });
  if (columns && !FindRowsInColumns(steps, *columns, rows)) Demote();
  if (!columns || index_failed_) FindRowsInRecords(steps, definitions, rows);
  if (!std::is_sorted(rows->begin() + begin, rows->end(), StandsBefore)) {
    std::stable_sort(rows->begin() + begin, rows->end(), StandsBefore);
  }
}

// Of a shard that was walked while it grew the columns are there by now.
void Shard::OpenColumns() {
  if (!use_index_ || index_ || index_failed_ || is_indexed_ ||
      reader_.state() != ShardState::kSealed || reader_.is_damaged()) {
    return;
  }
  index_ = IndexReader::Open(directory_, number(), reader_.header().salt,
                             reader_.end());
  if (index_ && index_->Count(SectionKind::kColumns) != tables_.n_rows) {
    index_.reset();
    index_failed_ = true;
  }
}

std::optional<std::vector<Group>> Shard::ChooseColumns(
    StepRange steps, std::span<const std::uint32_t> definitions,
    const std::function<ColumnCost(std::size_t n_columns)>& cost) {
  if (!index_) return std::nullopt;
  std::vector<Group> columns;
  std::uint64_t column_rows = 0;
  for (const std::uint32_t id : definitions) {
    bool is_damaged = false;
    const Group* group =
        index_->FindGroup(SectionKind::kColumnGroups, id, &is_damaged);
    if (is_damaged) {
      Demote();
      return std::nullopt;
    }
    if (group == nullptr) continue;
    columns.push_back(*group);
    column_rows += group->n;
  }
  // There, bytes cost more than time; and the columns are expected.
  if (directory_->IsFar()) return columns;
  // Records hold the rows of all definitions in order.
  const ColumnCost one = cost(columns.size());
  const std::uint64_t by_columns =
      columns.size() * one.per_column + column_rows * one.per_row;
  const Section* section = index_->Find(SectionKind::kRowsPlaces);
  if (section == nullptr) return columns;  // No rows at all.
  std::uint64_t by_records = section->n_entries * 200 + n_rows() * 15;
  if (by_columns > by_records / 64 &&
      (section->first_step < steps.first || section->last_step > steps.last)) {
    by_records = 0;
    const auto places = Places();
    FindPlaces(steps, [&](std::uint64_t i) {
      by_records += 200 + places[i].n_rows * 15;
    });
    if (!index_) return std::nullopt;
  }
  if (by_columns > by_records) return std::nullopt;
  return columns;
}

void Shard::FindRowsInRecords(StepRange steps,
                              std::span<const std::uint32_t> definitions,
                              std::vector<ColumnRow>* rows) {
  const auto places = Places();
  std::vector<ColumnRow> all;
  FindPlaces(steps, [&](std::uint64_t i) {
    const auto ids = Signature(places[i]);
    if (std::none_of(ids.begin(), ids.end(), [&](std::uint32_t id) {
          return Contains(definitions, id);
        })) {
      return;
    }
    all.clear();
    ReadPlace(places[i], &all);
    std::copy_if(all.begin(), all.end(), std::back_inserter(*rows),
                 [&](const ColumnRow& row) {
                   return Contains(definitions, row.definition);
                 });
  });
}

bool Shard::FindRowsInColumns(StepRange steps, std::span<const Group> columns,
                              std::vector<ColumnRow>* rows) {
  const std::size_t begin = rows->size();
  for (const Group& column : columns) {
    if (!index_->ReadColumn(column, rows)) {
      rows->resize(begin);
      return false;
    }
  }
  rows->erase(std::remove_if(rows->begin() + static_cast<std::ptrdiff_t>(begin),
                             rows->end(),
                             [&](const ColumnRow& row) {
                               return row.step < steps.first ||
                                      row.step > steps.last;
                             }),
              rows->end());
  return true;
}

void Shard::ReadRows(std::uint64_t first, std::uint64_t last,
                     std::vector<ColumnRow>* rows) {
  TDBG_DCHECK(first <= last && last <= n_rows());
  const auto places = Places();
  auto place = std::partition_point(
      places.begin(), places.end(),
      [&](const RowsPlace& p) { return p.first_row + p.n_rows <= first; });
  const std::size_t expected = rows->size() + (last - first);
  std::vector<ColumnRow> read;
  for (; place != places.end() && place->first_row < last; ++place) {
    read.clear();
    ReadPlace(*place, &read);
    const std::uint64_t skip =
        first > place->first_row ? first - place->first_row : 0;
    const std::uint64_t n =
        std::min<std::uint64_t>(read.size(), last - place->first_row);
    rows->insert(rows->end(), read.begin() + static_cast<std::ptrdiff_t>(skip),
                 read.begin() + static_cast<std::ptrdiff_t>(n));
  }
  // An index that is gone may have told of more than there is.
  rows->resize(expected);
}

void Shard::ReadPlace(const RowsPlace& place, std::vector<ColumnRow>* rows) {
  InputFile& file = reader_.file();
  reader_.Map();
  file.Forget();  // A growing file may have changed since it was read.
  const auto payload = file.View(place.offset, place.payload_length,
                                 place.offset + place.payload_length);
  Status status = payload.ok() ? Status::Ok() : payload.status();
  std::vector<Row> decoded;
  if (status.ok() &&
      MaskedCrc32c(payload.value().data(), payload.value().size()) !=
          place.payload_crc) {
    status = Status::Corruption("checksum of the payload", place.offset);
  }
  if (status.ok()) {
    auto result = DecodeRows(payload.value());
    status = result.status();
    if (result.ok()) decoded = std::move(result).value();
  }
  if (status.ok() && decoded.size() != place.n_rows) {
    status = Status::Corruption("another number of rows", place.offset);
  }
  if (!status.ok()) {
    problems_->push_back(
        {status.code() == StatusCode::kIoError ? ProblemKind::kIo
                                               : ProblemKind::kDamage,
         file.name(), place.offset - limits::kRecordHeader,
         place.payload_length + limits::kRecordHeader,
         "rows that were there are not any more: " + status.message()});
    decoded.assign(place.n_rows, Row{});
  }
  std::uint32_t position = place.first_position;
  for (const Row& row : decoded) {
    rows->push_back(AsColumnRow(row, place.step, position++));
  }
}

}  // namespace tdbg
