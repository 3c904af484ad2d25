#include "reader/shard.h"

#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "reader/index_comparison.h"

namespace tdbg {

Shard::Shard(const Directory* directory, const ShardPlace& place,
             bool map_files, bool use_index,
             std::shared_ptr<Definitions> definitions,
             std::vector<Problem>* problems)
    : directory_(directory),
      use_index_(use_index),
      problems_(problems),
      reader_(directory, place, map_files) {
  tables_.definitions = std::move(definitions);
}

bool Shard::Scan(bool settled) {
  const ShardReader::IsKnown by_index = [this](const End& end) {
    return OpenIndex(end);
  };
  const bool unsure = reader_.Scan(
      settled, &tables_, use_index_ ? by_index : ShardReader::IsKnown{});
  MoveProblems();
  if (checks_index_ && reader_.state() == ShardState::kSealed) {
    CompareIndexOfSealed();
  }
  return unsure;
}

void Shard::CompareIndexOfSealed() {
  checks_index_ = false;
  IndexBuilder records = reader_.TakeRebuiltIndex();
  // Of lost records only the index may tell.
  if (reader_.is_damaged() || !records.is_complete()) return;
  auto index = IndexReader::Open(directory_, number(), reader_.header().salt,
                                 reader_.end());
  if (!index) return;
  for (Problem& problem :
       CompareIndex(reader_.end(), std::move(records), &*index)) {
    problems_->push_back(std::move(problem));
  }
}

void Shard::Settle() {
  if (is_indexed_ || reader_.state() != ShardState::kSealed) return;
  OpenColumns();
  if (!index_) return;
  using enum SectionKind;
  if (index_->Count(kSteps) != tables_.steps.size() ||
      index_->Count(kTensors) != tables_.tensors.size() ||
      index_->Count(kScalars) != tables_.scalars.size() ||
      index_->Count(kRowsPlaces) != tables_.rows.size() ||
      index_->Count(kSamples) != tables_.samples.size()) {
    return;
  }
  walked_size_ = Size();
  for (std::uint32_t kind = 1; kind <= kSectionKinds; ++kind) {
    counts_[kind] = index_->Count(static_cast<SectionKind>(kind));
  }
  std::vector<StepEntry>().swap(tables_.steps);
  std::vector<TensorEntry>().swap(tables_.tensors);
  std::vector<ScalarEntry>().swap(tables_.scalars);
  std::vector<RowsPlace>().swap(tables_.rows);
  std::vector<SamplesPlace>().swap(tables_.samples);
  tables_.signatures = Signatures();
  signature_names_.clear();  // An index numbers them in its own order.
  is_indexed_ = true;
  has_records_ = true;  // The others stay.
}

void Shard::MoveProblems() {
  problems_->insert(problems_->end(),
                    std::make_move_iterator(tables_.problems.begin()),
                    std::make_move_iterator(tables_.problems.end()));
  tables_.problems.clear();
}

// --- The index ---------------------------------------------------------------

bool Shard::OpenIndex(const End& end) {
  index_ = IndexReader::Open(directory_, number(), reader_.header().salt, end);
  if (!index_) return false;
  if (!TakeDefinitions()) {
    index_.reset();
    return false;
  }
  for (std::uint32_t kind = 1; kind <= kSectionKinds; ++kind) {
    counts_[kind] = index_->Count(static_cast<SectionKind>(kind));
  }
  is_indexed_ = true;
  index_->Close();
  return true;
}

bool Shard::TakeDefinitions() {
  using enum SectionKind;
  Definitions& known = *tables_.definitions;
  const Section* of_places = index_->Find(kDefinitions);
  const Section* of_bytes = index_->Find(kDefinitionBytes);
  if (of_places == nullptr || of_bytes == nullptr) {
    return of_places == of_bytes;
  }
  const Definitions::Digest digest = {of_places->n_entries, of_places->crc,
                                      of_bytes->n_entries, of_bytes->crc};
  if (known.IsLast(digest)) return true;
  const auto places = index_->Table<DefinitionPlace>(kDefinitions);
  const auto bytes = index_->Table<std::byte>(kDefinitionBytes);
  const auto order = index_->Table<std::uint32_t>(kDefinitionOrder);
  if (!places || !bytes || !order) return false;
  for (const std::uint32_t i : *order) {
    const DefinitionPlace& place = (*places)[i];
    auto definition =
        DecodeDefinition(bytes->subspan(place.first, place.length));
    if (!definition.ok() || definition.value().id != place.id ||
        !known.Take(definition.value()).ok()) {
      return false;  // The walk over the records says what is wrong.
    }
  }
  known.RememberLast(digest);
  for (const SectionKind kind :
       {kDefinitions, kDefinitionBytes, kDefinitionOrder}) {
    index_->Drop(kind);
  }
  return true;
}

void Shard::Demote() {
  if (!index_) return;
  index_.reset();
  index_failed_ = true;
  if (!is_indexed_) return;
  signature_names_.clear();
  ascents_ = {};
  Tables walked;
  walked.definitions = tables_.definitions;
  tables_ = std::move(walked);
  has_records_ = true;
  reader_.Unseal();
  // Sealed, so one look is enough; the second mends a failed read.
  if (reader_.Scan(true, &tables_)) reader_.Scan(true, &tables_);
  MoveProblems();
  // Entries were numbered by what the index told.
  if (tables_.n_rows > n_rows() || tables_.tensors.size() > n_tensors() ||
      tables_.scalars.size() > n_scalars() ||
      tables_.steps.size() > n_steps()) {
    problems_->push_back({ProblemKind::kDamage, reader_.file().name(), 0, 0,
                          "its index told of fewer entries than there are: "
                          "those beyond are left out"});
  }
}

// --- Counts ------------------------------------------------------------------

std::uint64_t Shard::Size() const {
  if (walked_size_) return *walked_size_;
  if (!is_indexed_) return tables_.Size();
  using enum SectionKind;
  std::uint64_t n = 0;
  for (const SectionKind kind :
       {kSteps, kTensors, kScalars, kRowsPlaces, kRecords, kSamples}) {
    n += counts_[static_cast<std::size_t>(kind)];
  }
  return n;
}

std::uint64_t Shard::n_held() const {
  const auto bytes = [](const auto& table) {
    return table.capacity() * sizeof(table[0]);
  };
  return n_cached() + n_made() + bytes(tables_.steps) + bytes(tables_.tensors) +
         bytes(tables_.scalars) + bytes(tables_.rows) +
         bytes(tables_.histograms) + bytes(tables_.spans) +
         bytes(tables_.samples) + bytes(tables_.signatures.ids());
}

std::uint64_t Shard::n_rows() const {
  return is_indexed_ ? counts_[static_cast<std::size_t>(SectionKind::kColumns)]
                     : tables_.n_rows;
}

std::uint64_t Shard::n_tensors() const {
  return is_indexed_ ? counts_[static_cast<std::size_t>(SectionKind::kTensors)]
                     : tables_.tensors.size();
}

std::uint64_t Shard::n_scalars() const {
  return is_indexed_ ? counts_[static_cast<std::size_t>(SectionKind::kScalars)]
                     : tables_.scalars.size();
}

std::uint64_t Shard::n_steps() const {
  return is_indexed_ ? counts_[static_cast<std::size_t>(SectionKind::kSteps)]
                     : tables_.steps.size();
}

std::optional<StepRange> Shard::RecordedSteps() {
  if (has_index()) {
    const Section* section = index_->Find(SectionKind::kSteps);
    if (section == nullptr) return std::nullopt;
    return StepRange{section->first_step, section->last_step};
  }
  for (; n_ranged_ < tables_.steps.size(); ++n_ranged_) {
    const std::int64_t step = tables_.steps[n_ranged_].record.step;
    if (!range_) range_ = {step, step};
    range_->first = std::min(range_->first, step);
    range_->last = std::max(range_->last, step);
  }
  return range_;
}

// --- Tables ------------------------------------------------------------------

template <typename Entry>
std::span<const Entry> Shard::Table(SectionKind kind,
                                    std::vector<Entry> Tables::* table) {
  if (has_index()) {
    const auto found = index_->Table<Entry>(kind);
    if (found) return *found;
    Demote();
  }
  return tables_.*table;
}

std::span<const StepEntry> Shard::Steps() {
  return Table(SectionKind::kSteps, &Tables::steps);
}
std::span<const TensorEntry> Shard::Tensors() {
  return Table(SectionKind::kTensors, &Tables::tensors);
}
std::span<const ScalarEntry> Shard::Scalars() {
  return Table(SectionKind::kScalars, &Tables::scalars);
}
std::span<const RowsPlace> Shard::Places() {
  // What a place refers to is checked with it.
  if (has_index() &&
      !index_->Table<std::uint32_t>(SectionKind::kSignatureIds)) {
    Demote();
  }
  return Table(SectionKind::kRowsPlaces, &Tables::rows);
}
std::span<const SamplesPlace> Shard::Samples() {
  return Table(SectionKind::kSamples, &Tables::samples);
}
std::span<const EventEntry> Shard::Events() {
  TakeRecords();
  return tables_.events;
}
std::span<const SpanEntry> Shard::Spans() {
  TakeRecords();
  return tables_.spans;
}
std::span<const Gap> Shard::Gaps() {
  TakeRecords();
  return tables_.gaps;
}
bool Shard::was_copied() {
  const auto gaps = Gaps();
  return !gaps.empty() && gaps.front().reason == GapReason::kRetention;
}
std::span<const HistogramEntry> Shard::Histograms() {
  TakeRecords();
  return tables_.histograms;
}

std::span<const std::uint32_t> Shard::Signature(const RowsPlace& place) {
  if (!has_index()) return tables_.signatures.Get(place.signature);
  // Both were read when the place was.
  const auto ids = *index_->Table<std::uint32_t>(SectionKind::kSignatureIds);
  const auto ends = *index_->Table<std::uint64_t>(SectionKind::kSignatureEnds);
  const std::uint64_t first =
      place.signature == 0 ? 0 : ends[place.signature - 1];
  return ids.subspan(first, ends[place.signature] - first);
}

void Shard::TakeRecords() {
  if (!has_index() || has_records_) return;
  has_records_ = true;
  const auto records = index_->Table<std::byte>(SectionKind::kRecords);
  if (!records) return Demote();
  reader_.Map();
  for (std::size_t at = 0; at < records->size(); at += kIndexEntryBytes) {
    const auto entry = DecodeIndexEntry(records->subspan(at, kIndexEntryBytes));
    if (!entry.ok()) return Demote();
    reader_.TakeIndexed(entry.value(), &tables_);
  }
  MoveProblems();
  index_->Drop(SectionKind::kRecords);
  Retire();
}

void Shard::Retire() {
  reader_.Retire();
  if (index_) index_->Close();
}

}  // namespace tdbg
