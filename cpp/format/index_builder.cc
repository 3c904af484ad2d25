#include "format/index_builder.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/coding.h"
#include "base/crc32c.h"

namespace tdbg {

Result<SamplesPlace> PlaceOfSamples(const IndexEntry& entry,
                                    std::span<const std::byte> payload,
                                    std::uint32_t shard_number) {
  const auto head = DecodeSamplesHead(payload);
  if (!head.ok()) return head.status();
  const TimeRange times = TimesOf(head.value(), payload);
  return SamplesPlace{.sequence = entry.header.sequence,
                      .offset = entry.offset,
                      .payload_length = entry.header.payload_length,
                      .first_time = times.first,
                      .last_time = times.last,
                      .definition = head.value().definition,
                      .n_rows = head.value().n_rows,
                      .payload_crc = entry.header.payload_crc,
                      .shard_number = shard_number};
}

// Lays sections out one after the other.
class IndexBuilder::Layout {
 public:
  explicit Layout(const IndexHeader& header) {
    bytes_.resize(kIndexHeaderBytes);
    EncodeIndexHeader(header, std::span<std::byte, 64>(bytes_.data(), 64));
  }

  // A section of `entries`; empty ones are left out.
  template <typename Entry>
  Section* Put(SectionKind kind, const std::vector<Entry>& entries) {
    if (entries.empty()) return nullptr;
    return PutBytes(kind, sizeof(Entry), entries.size(), entries.data());
  }
  // The same, with the range and the order of their steps.
  template <typename Entry, typename StepOf>
  Section* PutSteps(SectionKind kind, const std::vector<Entry>& entries,
                    StepOf step_of) {
    Section* section = Put(kind, entries);
    if (section == nullptr) return nullptr;
    section->first_step = section->last_step = step_of(entries.front());
    section->flags = kStepsAscend;
    std::int64_t previous = section->first_step;
    for (const Entry& entry : entries) {
      const std::int64_t step = step_of(entry);
      if (step < previous) section->flags = 0;
      section->first_step = std::min(section->first_step, step);
      section->last_step = std::max(section->last_step, step);
      previous = step;
    }
    return section;
  }
  Section* PutBytes(SectionKind kind, std::size_t entry_size,
                    std::uint64_t n_entries, const void* data) {
    ByteWriter w(&bytes_);
    w.Align(limits::kAlignment);
    Section& section = sections_.emplace_back();
    section.kind = kind;
    section.entry_size = static_cast<std::uint32_t>(entry_size);
    section.offset = bytes_.size();
    section.n_entries = n_entries;
    if (kind != SectionKind::kColumns && kind != SectionKind::kCells) {
      section.crc = MaskedCrc32c(data, section.n_bytes());
    }
    w.PutBytes(data, section.n_bytes());
    return &section;
  }

  void Reserve(std::size_t n) { bytes_.reserve(n); }

  IndexBuilder::File Finish(std::uint64_t salt, std::uint64_t n_records,
                            std::uint64_t shard_length) {
    ByteWriter w(&bytes_);
    w.Align(limits::kAlignment);
    const std::vector<std::byte> directory = EncodeSections(sections_);
    const IndexFooter footer{
        .salt = salt,
        .shard_length = shard_length,
        .n_records = n_records,
        .directory_offset = bytes_.size(),
        .n_sections = static_cast<std::uint32_t>(sections_.size()),
        .directory_crc = MaskedCrc32c(directory.data(), directory.size())};
    w.PutBytes(directory.data(), directory.size());
    bytes_.resize(bytes_.size() + kIndexFooterBytes);
    EncodeIndexFooter(footer, std::span<std::byte, 64>(
                                  bytes_.data() + bytes_.size() - 64, 64));
    return {std::move(bytes_), footer.directory_crc};
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<Section> sections_;
};

namespace {

// Groups of neighbors of one definition.
template <typename DefinitionOf>
std::vector<Group> GroupsOf(std::uint64_t n, DefinitionOf definition_of) {
  std::vector<Group> groups;
  for (std::uint64_t i = 0; i < n; ++i) {
    if (groups.empty() || groups.back().definition != definition_of(i)) {
      groups.push_back({.definition = definition_of(i), .first = i});
    }
    ++groups.back().n;
  }
  return groups;
}

// For each definition the places of its entries, in their order.
template <typename Layout, typename Entry, typename DefinitionOf>
void PutPostings(SectionKind groups, SectionKind postings,
                 const std::vector<Entry>& entries, DefinitionOf definition_of,
                 Layout* layout) {
  std::vector<std::uint32_t> places(entries.size());
  std::iota(places.begin(), places.end(), 0U);
  std::stable_sort(
      places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) {
        return definition_of(entries[a]) < definition_of(entries[b]);
      });
  layout->Put(groups, GroupsOf(places.size(), [&](std::uint64_t i) {
                return definition_of(entries[places[i]]);
              }));
  layout->Put(postings, places);
}

}  // namespace

void IndexBuilder::Add(const IndexEntry& entry,
                       std::span<const std::byte> payload) {
  if (!Take(entry, payload).ok()) is_complete_ = false;
}

Status IndexBuilder::Take(const IndexEntry& entry,
                          std::span<const std::byte> payload) {
  const RecordHeader& header = entry.header;
  switch (header.type) {
    case RecordType::kDefinition: {
      // Ids are those of the payload.
      const auto decoded = DecodeDefinition(payload);
      if (!decoded.ok()) return decoded.status();
      classes_.emplace(decoded.value().id, CellClassOf(decoded.value().dtype));
      auto& same = definitions_[decoded.value().id];
      definition_order_.emplace_back(decoded.value().id, same.size());
      same.emplace_back(payload.begin(), payload.end());
      return Status::Ok();
    }
    case RecordType::kRows: {
      const auto decoded = DecodeRows(payload);
      if (!decoded.ok()) return decoded.status();
      AddRows(entry, decoded.value());
      return Status::Ok();
    }
    case RecordType::kTensor: {
      ByteReader in(payload);
      TensorEntry tensor;
      tensor.step = header.step;
      tensor.sequence = header.sequence;
      tensor.offset = entry.offset;
      tensor.payload_length = header.payload_length;
      tensor.definition = in.Get<std::uint32_t>();
      tensor.shard_number = header_.shard_number;
      tensor.call = in.Get<std::uint16_t>();
      tensor.micro_batch = in.Get<std::uint16_t>();
      if (in.failed()) return Status::Corruption("tensor: too short", 0);
      tensor.position = tensor_positions_.Next(header.step, 1);
      tensors_.push_back(tensor);
      return Status::Ok();
    }
    case RecordType::kStep: {
      const auto decoded = DecodeStep(payload);
      if (!decoded.ok()) return decoded.status();
      StepEntry step;
      step.record = decoded.value();
      step.record.step = header.step;
      step.sequence = header.sequence;
      steps_.push_back(step);
      return Status::Ok();
    }
    case RecordType::kScalar: {
      const auto decoded = DecodeScalars(payload);
      if (!decoded.ok()) return decoded.status();
      for (const Scalar& scalar : decoded.value()) {
        scalars_.push_back({header.step, scalar});
      }
      return Status::Ok();
    }
    case RecordType::kEvent:
    case RecordType::kSpan:
    case RecordType::kGap:
    case RecordType::kHistogram:
      records_.push_back(entry);
      return Status::Ok();
    case RecordType::kSamples: {
      const auto place = PlaceOfSamples(entry, payload, header_.shard_number);
      if (!place.ok()) return place.status();
      samples_.push_back(place.value());
      return Status::Ok();
    }
    case RecordType::kPad:
    case RecordType::kIndex:
    case RecordType::kEnd:
      break;
  }
  return Status::Ok();  // Also for types that we do not know.
}

void IndexBuilder::AddRows(const IndexEntry& entry, std::span<const Row> rows) {
  const std::int64_t step = entry.header.step;
  RowsPlace place{.step = step,
                  .offset = entry.offset + limits::kRecordHeader,
                  .payload_length = entry.header.payload_length,
                  .first_row = rows_.size(),
                  .n_rows = static_cast<std::uint32_t>(rows.size()),
                  .payload_crc = entry.header.payload_crc,
                  .first_position = row_positions_.Next(
                      step, static_cast<std::uint32_t>(rows.size())),
                  .signature = 0};
  if (rows.empty()) return;
  std::vector<std::uint32_t> ids(rows.size());
  std::uint32_t position = place.first_position;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    ids[i] = row.definition;
    rows_.push_back({.step = step,
                     .definition = row.definition,
                     .call = row.call,
                     .micro_batch = row.micro_batch,
                     .flags = row.flags,
                     .position = position++,
                     .summary = row.summary});
  }
  place.signature = signatures_.Add(ids);
  places_.push_back(place);
}

void IndexBuilder::PutCells(std::span<const Group> columns,
                            Layout* layout) const {
  if (rows_.empty() || steps_.empty()) return;
  const auto [first, last] = std::minmax_element(
      steps_.begin(), steps_.end(), [](const StepEntry& a, const StepEntry& b) {
        return a.record.step < b.record.step;
      });
  const unsigned shift =
      bucket_shift_
          ? std::clamp(*bucket_shift_, kLeastBucketShift, kMostBucketShift)
          : BucketShift(first->record.step, last->record.step, steps_.size());
  StepModes modes(steps_);
  std::vector<Cell> cells;
  std::vector<Group> groups;
  groups.reserve(columns.size());
  for (const Group& column : columns) {
    const auto found = classes_.find(column.definition);
    const std::size_t begin = cells.size();
    AppendCells(
        std::span(rows_).subspan(column.first, column.n),
        found == classes_.end() ? ExtremeClass::kFloat64 : found->second, shift,
        &modes, &cells);
    groups.push_back({.definition = column.definition,
                      .first = begin,
                      .n = cells.size() - begin});
  }
  if (!bucket_shift_ && cells.size() > rows_.size() / 2) return;
  for (Group& group : groups) {
    group.crc = MaskedCrc32c(&cells[group.first], group.n * sizeof(Cell));
  }
  layout->Put(SectionKind::kCellGroups, groups);
  Section* section = layout->PutSteps(
      SectionKind::kCells, cells, [](const Cell& c) { return c.last_step; });
  for (const Cell& cell : cells) {
    section->first_step = std::min(section->first_step, cell.first_step);
  }
  section->flags = shift << kBucketShiftBit;
}

IndexBuilder::File IndexBuilder::Finish(std::uint64_t n_records,
                                        std::uint64_t shard_length) {
  Layout layout(header_);
  layout.Reserve(samples_.size() * sizeof(SamplesPlace) +
                 rows_.size() * (sizeof(ColumnRow) + sizeof(Cell) / 8) +
                 places_.size() * sizeof(RowsPlace) +
                 tensors_.size() * (sizeof(TensorEntry) + 4) +
                 scalars_.size() * (sizeof(ScalarEntry) + 4) +
                 steps_.size() * sizeof(StepEntry) + (64U << 10));
  // Definitions by id, so that shards that use the same ones hold the same
  // bytes, whichever came first.
  std::vector<DefinitionPlace> places;
  std::vector<std::byte> bytes;
  std::map<std::uint32_t, std::uint32_t> first_place;
  for (const auto& [id, payloads] : definitions_) {
    first_place[id] = static_cast<std::uint32_t>(places.size());
    for (const auto& payload : payloads) {
      places.push_back({.id = id,
                        .length = static_cast<std::uint32_t>(payload.size()),
                        .first = bytes.size()});
      bytes.insert(bytes.end(), payload.begin(), payload.end());
    }
  }
  std::vector<std::uint32_t> order;
  order.reserve(definition_order_.size());
  for (const auto& [id, nth] : definition_order_) {
    order.push_back(first_place[id] + nth);
  }
  layout.Put(SectionKind::kDefinitions, places);
  layout.Put(SectionKind::kDefinitionBytes, bytes);
  layout.Put(SectionKind::kDefinitionOrder, order);

  layout.PutSteps(SectionKind::kSteps, steps_,
                  [](const StepEntry& e) { return e.record.step; });
  const auto step_of = [](const auto& e) { return e.step; };
  layout.PutSteps(SectionKind::kTensors, tensors_, step_of);
  PutPostings(
      SectionKind::kTensorGroups, SectionKind::kTensorPostings, tensors_,
      [](const TensorEntry& e) { return e.definition; }, &layout);
  layout.PutSteps(SectionKind::kScalars, scalars_, step_of);
  PutPostings(
      SectionKind::kScalarGroups, SectionKind::kScalarPostings, scalars_,
      [](const ScalarEntry& e) { return e.scalar.definition; }, &layout);
  layout.PutSteps(SectionKind::kRowsPlaces, places_, step_of);
  layout.Put(SectionKind::kSignatureIds, signatures_.ids());
  layout.Put(SectionKind::kSignatureEnds, signatures_.ends());

  std::stable_sort(rows_.begin(), rows_.end(),
                   [](const ColumnRow& a, const ColumnRow& b) {
                     return a.definition < b.definition;
                   });
  std::vector<Group> columns = GroupsOf(
      rows_.size(), [&](std::uint64_t i) { return rows_[i].definition; });
  for (Group& column : columns) {
    column.crc =
        MaskedCrc32c(&rows_[column.first], column.n * sizeof(ColumnRow));
  }
  layout.Put(SectionKind::kColumnGroups, columns);
  layout.Put(SectionKind::kColumns, rows_);
  PutCells(columns, &layout);

  std::vector<std::byte> records(records_.size() * kIndexEntryBytes);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    EncodeIndexEntry(records_[i], std::span<std::byte, kIndexEntryBytes>(
                                      records.data() + i * kIndexEntryBytes,
                                      kIndexEntryBytes));
  }
  if (!records_.empty()) {
    layout.PutBytes(SectionKind::kRecords, kIndexEntryBytes, records_.size(),
                    records.data());
  }
  // By the steps' names, for readers find them by their times.
  Section* of_samples =
      layout.PutSteps(SectionKind::kSamples, samples_,
                      [](const SamplesPlace& e) { return e.first_time; });
  for (const SamplesPlace& place : samples_) {
    of_samples->last_step = std::max(of_samples->last_step, place.last_time);
  }
  return layout.Finish(header_.salt, n_records, shard_length);
}

}  // namespace tdbg
