#include "reader/index_reader.h"

#include <algorithm>
#include <array>
#include <new>

#include "base/crc32c.h"
#include "format/names.h"

namespace tdbg {
namespace {

// What is read of columns at once, unless one is larger: it stays in the cache
// while it is checked and gone through.
constexpr std::size_t kReadAtOnce = 1U << 18;

// The size that an entry of each kind has in this version.
std::size_t EntrySize(SectionKind kind) {
  switch (kind) {
    case SectionKind::kDefinitions:
      return sizeof(DefinitionPlace);
    case SectionKind::kDefinitionBytes:
      return 1;
    case SectionKind::kDefinitionOrder:
    case SectionKind::kTensorPostings:
    case SectionKind::kScalarPostings:
    case SectionKind::kSignatureIds:
      return sizeof(std::uint32_t);
    case SectionKind::kSteps:
      return sizeof(StepEntry);
    case SectionKind::kTensors:
      return sizeof(TensorEntry);
    case SectionKind::kTensorGroups:
    case SectionKind::kScalarGroups:
    case SectionKind::kColumnGroups:
    case SectionKind::kCellGroups:
      return sizeof(Group);
    case SectionKind::kScalars:
      return sizeof(ScalarEntry);
    case SectionKind::kRowsPlaces:
      return sizeof(RowsPlace);
    case SectionKind::kSignatureEnds:
      return sizeof(std::uint64_t);
    case SectionKind::kColumns:
      return sizeof(ColumnRow);
    case SectionKind::kRecords:
      return kIndexEntryBytes;
    case SectionKind::kCells:
      return sizeof(Cell);
    case SectionKind::kSamples:
      return sizeof(SamplesPlace);
  }
  return 0;
}

// Whether the steps are within the section's range, and ascend if it says so.
template <typename Entries, typename StepOf>
bool StepsHold(const Section& section, const Entries& entries, StepOf step_of) {
  std::int64_t previous = section.first_step;
  for (const auto& entry : entries) {
    const std::int64_t step = step_of(entry);
    if (step < section.first_step || step > section.last_step) return false;
    if ((section.flags & kStepsAscend) != 0 && step < previous) return false;
    previous = step;
  }
  return true;
}

// The footer, of an index of the shard `number` with this salt (any, without).
std::optional<IndexFooter> ReadFooter(InputFile* file, std::uint32_t number,
                                      std::optional<std::uint64_t> salt,
                                      std::uint64_t size) {
  if (size > limits::kIndex || size < kIndexHeaderBytes + kIndexFooterBytes) {
    return std::nullopt;
  }
  std::array<std::byte, 64> bytes{};
  if (!file->Read(0, bytes).ok()) return std::nullopt;
  const auto header = DecodeIndexHeader(bytes);
  if (!header.ok() || header.value().shard_number != number ||
      header.value().salt != salt.value_or(header.value().salt)) {
    return std::nullopt;
  }
  if (!file->Read(size - kIndexFooterBytes, bytes).ok()) return std::nullopt;
  const auto footer = DecodeIndexFooter(bytes);
  if (!footer.ok() || footer.value().salt != header.value().salt) {
    return std::nullopt;
  }
  return footer.value();
}

}  // namespace

std::optional<std::uint64_t> IndexReader::SealedLength(
    const Directory* directory, std::uint32_t number,
    std::optional<std::uint64_t> salt) {
  InputFile file(directory, ShardName(number, ".tdi"));
  const auto size = file.Size();
  if (!size.ok()) return std::nullopt;
  const auto footer = ReadFooter(&file, number, salt, size.value());
  if (!footer) return std::nullopt;
  return footer->shard_length;
}

std::optional<IndexReader> IndexReader::Open(const Directory* directory,
                                             std::uint32_t number,
                                             std::uint64_t salt,
                                             const End& end) {
  if (end.index_crc == 0) return std::nullopt;
  return OpenFile(
      std::make_unique<InputFile>(directory, ShardName(number, ".tdi")), number,
      salt, end);
}

std::optional<IndexReader> IndexReader::OfBytes(
    std::span<const std::byte> bytes, std::uint32_t number, const End& end,
    std::uint32_t directory_crc) {
  End of_bytes = end;
  of_bytes.index_crc = directory_crc;
  return OpenFile(std::make_unique<InputFile>(bytes, ShardName(number, ".tdi")),
                  number, std::nullopt, of_bytes);
}

std::optional<IndexReader> IndexReader::OpenFile(
    std::unique_ptr<InputFile> opened, std::uint32_t number,
    std::optional<std::uint64_t> salt, const End& end) {
  IndexReader reader;
  reader.file_ = std::move(opened);
  reader.shard_length_ = end.file_length;
  reader.number_ = number;
  InputFile& file = *reader.file_;
  const auto size = file.Size();
  if (!size.ok()) return std::nullopt;
  const auto found = ReadFooter(&file, number, salt, size.value());
  if (!found) return std::nullopt;
  const IndexFooter& footer = *found;
  const std::uint64_t footer_at = size.value() - kIndexFooterBytes;
  const std::uint64_t n_directory = footer.n_sections * kIndexSectionBytes;
  // The shard names its index, so that no other one is ever believed.
  if (footer.shard_length != end.file_length ||
      footer.n_records != end.n_records ||
      footer.directory_crc != end.index_crc || n_directory > footer_at ||
      footer.directory_offset != footer_at - n_directory) {
    return std::nullopt;
  }
  std::vector<std::byte> directory_bytes(n_directory);
  if (!file.Read(footer.directory_offset, directory_bytes).ok()) {
    return std::nullopt;
  }
  const auto sections = DecodeSections(directory_bytes, footer);
  if (!sections.ok()) return std::nullopt;
  for (const Section& section : sections.value()) {
    const auto kind = static_cast<std::uint32_t>(section.kind);
    if (kind > kSectionKinds) continue;
    if (section.entry_size != EntrySize(section.kind)) return std::nullopt;
    reader.tables_[kind].section = section;
  }
  if (!reader.CountsAgree(end)) return std::nullopt;
  file.Close();
  return reader;
}

bool IndexReader::CountsAgree(const End& end) const {
  using enum SectionKind;
  for (const SectionKind kind : {kSteps, kTensors, kScalars, kRowsPlaces}) {
    const Section* section = Find(kind);
    if (section != nullptr && (section->first_step > section->last_step ||
                               section->last_step > end.last_step)) {
      return false;
    }
  }
  return Count(kDefinitions) == Count(kDefinitionOrder) &&
         Count(kTensors) == Count(kTensorPostings) &&
         Count(kScalars) == Count(kScalarPostings) &&
         Count(kDefinitions) + Count(kSteps) + Count(kTensors) +
                 Count(kRowsPlaces) + Count(kRecords) + Count(kSamples) <=
             end.n_records;
}

bool IndexReader::Load(SectionKind kind) {
  Loaded& table = tables_[static_cast<std::size_t>(kind)];
  if (table.is_loaded || table.section.n_entries == 0) return true;
  try {
    table.bytes.resize(table.section.n_bytes());
  } catch (const std::bad_alloc&) {
    return false;
  }
  if (!file_->Read(table.section.offset, table.bytes).ok() ||
      MaskedCrc32c(table.bytes.data(), table.bytes.size()) !=
          table.section.crc) {
    table.bytes.clear();
    return false;
  }
  table.is_loaded = true;
  if (Holds(kind)) return true;
  Drop(kind);
  return false;
}

std::optional<FileRange> IndexReader::RangeOf(SectionKind kind) const {
  const Loaded& table = tables_[static_cast<std::size_t>(kind)];
  if (table.is_loaded || table.section.n_entries == 0) return std::nullopt;
  return FileRange{.name = file_->name(),
                   .offset = table.section.offset,
                   .n = table.section.n_bytes()};
}

FileRange IndexReader::RangeOf(SectionKind kind, const Group& group) const {
  const Section& section = tables_[static_cast<std::size_t>(kind)].section;
  return {.name = file_->name(),
          .offset = section.offset + group.first * section.entry_size,
          .n = std::uint64_t{group.n} * section.entry_size};
}

void IndexReader::Drop(SectionKind kind) {
  Loaded& table = tables_[static_cast<std::size_t>(kind)];
  table.is_loaded = false;
  std::vector<std::byte>().swap(table.bytes);
}

void IndexReader::DropAll() {
  for (std::uint32_t kind = 1; kind <= kSectionKinds; ++kind) {
    Drop(static_cast<SectionKind>(kind));
  }
}

std::uint64_t IndexReader::n_held() const {
  std::uint64_t n = 0;
  for (const Loaded& table : tables_) n += table.bytes.size();
  return n;
}

bool IndexReader::Holds(SectionKind kind) {
  using enum SectionKind;
  switch (kind) {
    case kSteps:
      return StepsHold(*Find(kind), Held<StepEntry>(kind),
                       [](const StepEntry& e) { return e.record.step; });
    case kScalars:
      return StepsHold(*Find(kind), Held<ScalarEntry>(kind),
                       [](const ScalarEntry& e) { return e.step; });
    case kTensors: {
      std::uint64_t previous = 0;
      for (const TensorEntry& entry : Held<TensorEntry>(kind)) {
        if (entry.sequence <= previous || entry.shard_number != number_ ||
            entry.offset > shard_length_ ||
            entry.payload_length > shard_length_ - entry.offset) {
          return false;
        }
        previous = entry.sequence;
      }
      return StepsHold(*Find(kind), Held<TensorEntry>(kind),
                       [](const TensorEntry& e) { return e.step; });
    }
    case kSamples:
      return SamplesHold();
    case kTensorGroups:
      return GroupsHold(kind, Count(kTensorPostings));
    case kScalarGroups:
      return GroupsHold(kind, Count(kScalarPostings));
    case kColumnGroups:
      return GroupsHold(kind, Count(kColumns));
    case kCellGroups:
      return GroupsHold(kind, Count(kCells));
    case kTensorPostings:
      return PostingsHold<TensorEntry>(
          kTensors, kTensorGroups,
          [](const TensorEntry& e) { return e.definition; });
    case kScalarPostings:
      return PostingsHold<ScalarEntry>(
          kScalars, kScalarGroups,
          [](const ScalarEntry& e) { return e.scalar.definition; });
    case kRowsPlaces:
      return PlacesHold();
    case kSignatureEnds:
      return SignaturesHold();
    case kDefinitions:
    case kDefinitionOrder:
      return DefinitionsHold();
    case kDefinitionBytes:
    case kSignatureIds:
    case kColumns:
    case kRecords:
    case kCells:
      break;
  }
  return true;
}

bool IndexReader::SamplesHold() {
  const Section& section = *Find(SectionKind::kSamples);
  std::uint64_t previous = 0;
  for (const SamplesPlace& place : Held<SamplesPlace>(SectionKind::kSamples)) {
    const bool is_timed =
        place.n_rows == 0 || (place.first_time <= place.last_time &&
                              place.first_time >= section.first_step &&
                              place.last_time <= section.last_step);
    if (place.sequence <= previous || place.shard_number != number_ ||
        place.payload_length > limits::kTable || !is_timed ||
        place.offset > shard_length_ ||
        place.payload_length > shard_length_ - place.offset) {
      return false;
    }
    previous = place.sequence;
  }
  return true;
}

// Groups ascend by definition and follow each other without overlap or hole.
bool IndexReader::GroupsHold(SectionKind groups, std::uint64_t n_members) {
  std::uint64_t next = 0;
  std::uint64_t least = 0;
  for (const Group& group : Held<Group>(groups)) {
    if (group.definition < least || group.first != next ||
        group.n > n_members - next) {
      return false;
    }
    next += group.n;
    least = std::uint64_t{group.definition} + 1;
  }
  return next == n_members;
}

template <typename Entry, typename DefinitionOf>
bool IndexReader::PostingsHold(SectionKind entries, SectionKind groups,
                               DefinitionOf definition_of) {
  const SectionKind postings = entries == SectionKind::kTensors
                                   ? SectionKind::kTensorPostings
                                   : SectionKind::kScalarPostings;
  const auto all = Table<Entry>(entries);
  const auto by = Table<Group>(groups);
  if (!all || !by) return false;
  const auto places = Held<std::uint32_t>(postings);
  for (const Group& group : *by) {
    for (std::uint64_t i = 0; i < group.n; ++i) {
      const std::uint32_t place = places[group.first + i];
      if (place >= all->size() ||
          definition_of((*all)[place]) != group.definition ||
          (i > 0 && place <= places[group.first + i - 1])) {
        return false;
      }
    }
  }
  return true;
}

bool IndexReader::PlacesHold() {
  const auto ends = Table<std::uint64_t>(SectionKind::kSignatureEnds);
  if (!ends) return false;
  const auto places = Held<RowsPlace>(SectionKind::kRowsPlaces);
  std::uint64_t next = 0;
  for (const RowsPlace& place : places) {
    if (place.first_row != next || place.signature >= ends->size() ||
        place.offset > shard_length_ ||
        place.payload_length > shard_length_ - place.offset) {
      return false;
    }
    const std::uint64_t first =
        place.signature == 0 ? 0 : (*ends)[place.signature - 1];
    if ((*ends)[place.signature] - first != place.n_rows) return false;
    next += place.n_rows;
  }
  return next == Count(SectionKind::kColumns) &&
         StepsHold(*Find(SectionKind::kRowsPlaces), places,
                   [](const RowsPlace& e) { return e.step; });
}

bool IndexReader::SignaturesHold() {
  std::uint64_t previous = 0;
  for (const std::uint64_t end :
       Held<std::uint64_t>(SectionKind::kSignatureEnds)) {
    if (end < previous) return false;
    previous = end;
  }
  return previous == Count(SectionKind::kSignatureIds);
}

bool IndexReader::DefinitionsHold() {
  const auto places = Table<DefinitionPlace>(SectionKind::kDefinitions);
  if (!places) return false;
  std::uint64_t next = 0;
  for (const DefinitionPlace& place : *places) {
    if (place.first != next) return false;
    next += place.length;
  }
  const auto order = Table<std::uint32_t>(SectionKind::kDefinitionOrder);
  if (!order || next != Count(SectionKind::kDefinitionBytes)) return false;
  std::vector<bool> seen(places->size());
  for (const std::uint32_t place : *order) {
    if (place >= seen.size() || seen[place]) return false;
    seen[place] = true;
  }
  return true;
}

const Group* IndexReader::FindGroup(SectionKind groups,
                                    std::uint32_t definition,
                                    bool* is_damaged) {
  const auto table = Table<Group>(groups);
  *is_damaged = !table;
  if (!table) return nullptr;
  const auto found = std::lower_bound(
      table->begin(), table->end(), definition,
      [](const Group& group, std::uint32_t d) { return group.definition < d; });
  if (found == table->end() || found->definition != definition) return nullptr;
  return &*found;
}

template <typename Entry>
std::size_t IndexReader::Visit(SectionKind kind, std::span<const Group> groups,
                               const VisitGroup<Entry>& visit) {
  const Section* section = Find(kind);
  if (section == nullptr) return 0;
  std::vector<Entry> entries;
  std::size_t next = 0;
  while (next < groups.size()) {
    const std::uint64_t first = groups[next].first;
    std::uint64_t end = first;
    std::size_t after = next;
    while (after < groups.size() && groups[after].first == end &&
           (after == next ||
            (end - first + groups[after].n) * sizeof(Entry) <= kReadAtOnce)) {
      end += groups[after++].n;
    }
    entries.resize(end - first);
    if (!file_
             ->Read(section->offset + first * sizeof(Entry),
                    std::as_writable_bytes(std::span(entries)))
             .ok()) {
      return next;
    }
    for (; next < after; ++next) {
      const Group& group = groups[next];
      const auto members =
          std::span<const Entry>(entries).subspan(group.first - first, group.n);
      if (MaskedCrc32c(members.data(), members.size_bytes()) != group.crc ||
          std::any_of(members.begin(), members.end(), [&](const Entry& entry) {
            return entry.definition != group.definition;
          })) {
        return next;
      }
      visit(group, members);
    }
  }
  return next;
}

bool IndexReader::ReadColumn(const Group& column,
                             std::vector<ColumnRow>* rows) {
  const Section* section = Find(SectionKind::kColumns);
  const std::size_t at = rows->size();
  if (section == nullptr) return false;
  rows->resize(at + column.n);
  const auto added = std::span(*rows).subspan(at);
  const auto bytes = std::as_writable_bytes(added);
  if (file_->Read(section->offset + column.first * sizeof(ColumnRow), bytes)
          .ok() &&
      MaskedCrc32c(bytes.data(), bytes.size()) == column.crc &&
      std::all_of(added.begin(), added.end(), [&](const ColumnRow& row) {
        return row.definition == column.definition;
      })) {
    return true;
  }
  rows->resize(at);
  return false;
}

template std::size_t IndexReader::Visit(SectionKind, std::span<const Group>,
                                        const VisitGroup<ColumnRow>&);
template std::size_t IndexReader::Visit(SectionKind, std::span<const Group>,
                                        const VisitGroup<Cell>&);

}  // namespace tdbg
