#include "reader/run_reader.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "format/names.h"
#include "reader/completeness.h"
#include "reader/envelope_reader.h"
#include "reader/expected_reads.h"
#include "reader/run_files.h"
#include "reader/saved_steps.h"
#include "reader/shard_list.h"
#include "reader/shard_reader.h"

namespace tdbg {
namespace {

// How often Open looks, at most, while another look may tell more.
constexpr int kOpeningPolls = 4;
constexpr unsigned kMaxThreads = 4;
constexpr std::uint64_t kUnnumbered = ~0ULL;
// Of so many readers, none keeps a descriptor that it does not need.
constexpr int kManyReaders = 200;

// Of this process.
std::atomic<int> n_readers = 0;

std::vector<std::uint32_t> Ascending(std::span<const std::uint32_t> ids) {
  std::vector<std::uint32_t> wanted(ids.begin(), ids.end());
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  return wanted;
}

unsigned CountThreads(unsigned asked) {
  if (asked > 0) return asked;
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMaxThreads);
}

class DirectoryReader final : public RunReader {
 public:
  DirectoryReader(RunFiles files, const ReaderOptions& options)
      : options_(options),
        files_(std::move(files)),
        place_(files_.place()),
        values_({.max_tensor_bytes = options.max_tensor_bytes,
                 .n_threads = CountThreads(options.n_threads)}) {
    place_.run = options.run;
    identity_.role = place_.role;
    identity_.rank = place_.rank;
    identity_.generation = place_.generation;
    ++n_readers;
  }
  ~DirectoryReader() override { --n_readers; }
  DirectoryReader(const DirectoryReader&) = delete;
  DirectoryReader& operator=(const DirectoryReader&) = delete;

  // The first look; false when all that is there is of another run.
  bool Begin() {
    for (int i = 0; i < kOpeningPolls; ++i) {
      Poll();
      if (!unsure_) break;
    }
    return has_identity_ || !saw_another_run_;
  }

  void Rest() override {
    if (n_readers <= kManyReaders) return;
    if (!list_.empty()) list_.last().Retire();
    files_.directory().Close();
  }

  bool WasReplaced() override;

  bool Poll() override {
    const std::uint64_t before = Size();
    unsure_ = false;
    if (options_.use_caches) commit_.Poll(&files_.directory());
    while (ScanCurrent()) {
    }
    completeness_.Check();
    NoteRefusal("COMMIT", commit_.refusal());
    NoteRefusal("", files_.TakeRefusal());
    return Size() != before;
  }

  const Definitions& definitions() const override { return *definitions_; }
  const std::vector<TensorEntry>& tensors() override {
    expected_.Tables(SectionKind::kTensors);
    return tensors_.All(&list_, &Shard::Tensors);
  }
  const std::vector<ScalarEntry>& scalars() override {
    expected_.Tables(SectionKind::kScalars);
    return scalars_.All(&list_, &Shard::Scalars);
  }
  const std::vector<EventEntry>& events() override {
    expected_.Records();
    return events_.All(&list_, &Shard::Events);
  }
  const std::vector<SpanEntry>& spans() override {
    expected_.Records();
    return spans_.All(&list_, &Shard::Spans);
  }
  const std::vector<Gap>& gaps() override {
    expected_.Records();
    return gaps_.All(&list_, &Shard::Gaps);
  }
  const std::vector<HistogramEntry>& histograms() override {
    expected_.Records();
    return histograms_.All(&list_, &Shard::Histograms);
  }
  const std::vector<Problem>& problems() override { return problems_; }
  std::vector<Hole> holes() const override { return completeness_.Holes(); }
  bool end_is_unknown() const override { return completeness_.EndIsUnknown(); }
  void FinishCheck() override {
    completeness_.CheckWalked();
    NoteRefusal("", files_.TakeRefusal());
  }

  std::uint64_t n_rows() const override { return list_.n_rows(); }
  std::uint64_t n_tensors() const override { return list_.n_tensors(); }
  std::uint64_t n_scalars() const override { return list_.n_scalars(); }
  std::uint64_t n_steps() const override { return list_.n_steps(); }

  std::vector<StepEntry> ReadSteps(std::uint64_t first,
                                   std::uint64_t last) override;
  std::vector<StepEntry> FindSteps(StepRange steps) override;
  std::uint64_t CountSteps(StepRange steps) override;
  std::optional<StepRange> RecordedSteps() override;
  bool HasData(std::int64_t step) override;
  std::vector<std::int64_t> SavedSteps(StepRange steps,
                                       const DefinitionFilter& definitions,
                                       Kinds kinds) override;
  std::vector<Segment> FindSegments(StepRange steps) override;
  std::vector<Placed<TensorEntry>> FindTensors(
      StepRange steps, const DefinitionFilter& definitions) override;
  std::vector<Placed<ScalarEntry>> FindScalars(
      StepRange steps, const DefinitionFilter& definitions) override;
  std::span<const std::uint32_t> Signature(std::uint64_t number) override {
    TDBG_DCHECK(number < signatures_.ends().size());
    return signatures_.Get(static_cast<std::uint32_t>(number));
  }
  std::vector<ColumnRow> Rows(std::uint64_t first, std::uint64_t last) override;
  std::vector<ColumnRow> FindRows(
      StepRange steps, std::span<const std::uint32_t> definitions) override;
  void GatherRows(const RowColumnsQuery& query, RowColumns* gathered) override;
  std::size_t AddToEnvelope(const EnvelopeIds& asked, std::size_t n_shards,
                            EnvelopeGrid* grid) override {
    return envelopes_.Add(asked, n_shards, grid);
  }
  std::vector<CellBuckets> FindBuckets(StepRange steps) override {
    return envelopes_.FindBuckets(steps);
  }
  Result<TensorValue> ReadTensor(std::size_t i) override;
  void ExpectTensors(std::span<const std::uint64_t> tensors) override {
    expected_.Tensors(tensors);
  }
  std::uint32_t ShardOfTensor(std::size_t i) override {
    return list_.OfTensor(i).shard->number();
  }

  Result<Histogram> ReadHistogram(std::size_t i) override;
  std::vector<SamplesPlace> FindSamples(
      TimeRange times, std::span<const std::uint32_t> definitions,
      std::uint64_t after) override;
  std::vector<std::byte> ReadSamples(const SamplesPlace& place) override;

  const FileHeader& identity() const override { return identity_; }
  Liveness liveness() const override { return commit_.liveness(); }
  std::optional<CommitSlot> commit() const override { return commit_.slot(); }
  std::uint64_t n_held() const override {
    return list_.n_held() + definitions_->n_held();
  }
  std::uint64_t n_bytes() const override {
    return files_.directory().CountBytes();
  }

 private:
  // Each once: what was not told is not known, and may be there.
  void NoteRefusal(const std::string& file, const Status& refusal) {
    if (refusal.ok() || !refusals_.insert(refusal.message()).second) return;
    problems_.push_back({ProblemKind::kIo, file, 0, 0, refusal.message()});
  }
  // Scans the current shard; true when there is another one to go on with.
  bool ScanCurrent();
  // The number of the shard to read after `number`, reporting those that are
  // missing between; nothing when there is none yet.
  std::optional<std::uint32_t> NextNumber(std::uint32_t number);
  bool HasCopy(std::uint32_t number);
  void BeginShard(std::uint32_t number);
  // Asks all shards for entries of a table.
  template <typename Entry>
  std::vector<Placed<Entry>> Find(SectionKind kind, StepRange steps,
                                  const DefinitionFilter& definitions,
                                  void (Shard::*find)(StepRange,
                                                      Shard::DefinitionFilter,
                                                      const Shard::Visit&),
                                  std::span<const Entry> (Shard::*table)(),
                                  std::uint64_t ListedShard::* first);
  // Changes whenever anything is taken in.
  [[nodiscard]] std::uint64_t Size() {
    return size_before_ + (list_.empty() ? 0 : list_.last().Size()) +
           definitions_->size() + problems_.size();
  }

  // Constant after construction.
  const ReaderOptions options_;

  RunFiles files_;
  ShardPlace place_;  // With the run, once a shard named it.
  CommitReader commit_;
  const std::shared_ptr<Definitions> definitions_ =
      std::make_shared<Definitions>();
  std::vector<Problem> problems_;
  // The last one may still grow.
  ShardList list_{options_.cached_bytes};
  std::uint64_t size_before_ = 0;  // Of all shards but the last.
  Completeness completeness_{
      &files_, &list_, options_.use_caches ? &commit_ : nullptr, &problems_};
  EnvelopeReader envelopes_{&list_, definitions_.get()};
  const ExpectedReads expected_{&list_, &files_.directory()};
  Signatures signatures_;
  TensorValues values_;

  Gathered<TensorEntry> tensors_;
  Gathered<ScalarEntry> scalars_;
  Gathered<EventEntry> events_;
  Gathered<SpanEntry> spans_;
  Gathered<Gap> gaps_;
  Gathered<HistogramEntry> histograms_;

  FileHeader identity_;
  bool has_identity_ = false;
  bool saw_another_run_ = false;
  bool unsure_ = false;
  std::uint32_t missing_seen_ = 0;
  std::optional<Problem> missing_;  // Shards before the current one.
  bool was_replaced_ = false;
  std::set<std::string> refusals_;  // That are among the problems.
};

bool DirectoryReader::WasReplaced() {
  if (was_replaced_) return true;
  for (const std::uint32_t number : files_.Replaced(list_.Inodes())) {
    was_replaced_ |= HasCopy(number);
  }
  return was_replaced_;
}

// Whether a copy that retention made stands for this shard: it has its number
// or, where it stands for several, that of the last.  Whoever else removed or
// replaced the shard changes nothing that was opened.
bool DirectoryReader::HasCopy(std::uint32_t number) {
  const auto there = files_.ShardAfter(number - 1);
  if (!there) return false;
  std::vector<Problem> ignored;
  Shard shard(&files_.directory(), place_.WithNumber(*there), false, true,
              std::make_shared<Definitions>(), &ignored);
  shard.Scan(true);
  return shard.was_copied();
}

std::optional<std::uint32_t> DirectoryReader::NextNumber(std::uint32_t number) {
  if (files_.ShardSize(number + 1)) return number + 1;
  const auto next = files_.ShardAfter(number);
  if (!next || *next == number + 1) return next;
  // The missing one may just not have been listed; look twice.
  if (missing_seen_ != number + 1) {
    missing_seen_ = number + 1;
    unsure_ = true;
    return std::nullopt;
  }
  // The next one may tell why, when it is read.
  missing_ = {ProblemKind::kMissing, ShardName(number + 1, ".tds"), 0, 0,
              "shards " + std::to_string(number + 1) + " to " +
                  std::to_string(*next - 1) + " are not there"};
  return next;
}

void DirectoryReader::BeginShard(std::uint32_t number) {
  if (!list_.empty()) size_before_ += list_.last().Size();
  auto shard = std::make_unique<Shard>(
      &files_.directory(), place_.WithNumber(number), options_.map_files,
      options_.use_caches && options_.use_index, definitions_, &problems_);
  if (options_.check_index) shard->CheckIndex();
  list_.Add(std::move(shard));
}

bool DirectoryReader::ScanCurrent() {
  if (list_.empty()) {
    const auto first = NextNumber(0);
    if (!first) return false;
    BeginShard(*first);
    return true;
  }
  Shard& current = list_.last();
  const ShardReader& shard = current.reader();
  const std::uint32_t number = current.number();
  // Asked before the scan, so that the scan sees all that was written before.
  bool has_successor = false;
  if (shard.state() == ShardState::kGrowing ||
      shard.state() == ShardState::kUnborn) {
    has_successor =
        files_.ShardSize(number + 1).value_or(0) >= limits::kFileHeader ||
        files_.ShardAfter(number + 1).has_value();
    const bool settled = has_successor ||
                         commit_.liveness() == Liveness::kClosed ||
                         commit_.liveness() == Liveness::kDead;
    unsure_ |= current.Scan(settled);
  }
  if (missing_ && shard.state() != ShardState::kUnborn) {
    if (!current.was_copied()) problems_.push_back(*missing_);
    missing_.reset();
  }
  saw_another_run_ |= shard.is_of_another_run();
  if (!has_identity_ && (shard.state() == ShardState::kGrowing ||
                         shard.state() == ShardState::kSealed)) {
    identity_ = shard.header();
    place_.run = identity_.run;
    has_identity_ = true;
  }
  const bool is_done = shard.state() == ShardState::kSealed ||
                       shard.state() == ShardState::kRefused || has_successor;
  if (!is_done) return false;
  const auto next = NextNumber(number);
  if (!next) return false;
  current.Settle();
  current.Retire();
  BeginShard(*next);
  return true;
}

std::vector<StepEntry> DirectoryReader::ReadSteps(std::uint64_t first,
                                                  std::uint64_t last) {
  std::vector<StepEntry> found;
  expected_.Tables(SectionKind::kSteps);
  last = std::min(last, n_steps());
  if (first >= last) return found;
  found.reserve(last - first);
  for (ListedShard& listed : list_.shards()) {
    const std::uint64_t begin = listed.first_step;
    if (begin + listed.shard->n_steps() <= first || begin >= last) continue;
    const auto entries = listed.shard->Steps();
    const std::uint64_t from = std::max(first, begin) - begin;
    const std::uint64_t to =
        std::min<std::uint64_t>(last - begin, entries.size());
    for (std::uint64_t i = from; i < to; ++i) found.push_back(entries[i]);
    list_.Retire(&listed);
  }
  return found;
}

std::vector<StepEntry> DirectoryReader::FindSteps(StepRange steps) {
  std::vector<StepEntry> found;
  expected_.Tables(SectionKind::kSteps, steps);
  for (ListedShard& listed : list_.shards()) {
    if (!listed.shard->MayHaveSteps(steps)) continue;
    listed.shard->FindSteps(steps, [&](std::uint64_t i) {
      found.push_back(listed.shard->Steps()[i]);
    });
    list_.Retire(&listed);
  }
  return found;
}

std::uint64_t DirectoryReader::CountSteps(StepRange steps) {
  std::uint64_t n = 0;
  for (ListedShard& listed : list_.shards()) {
    if (!listed.shard->MayHaveSteps(steps)) continue;
    n += listed.shard->CountSteps(steps);
    list_.Retire(&listed);
  }
  return n;
}

std::optional<StepRange> DirectoryReader::RecordedSteps() {
  std::optional<StepRange> all;
  for (ListedShard& listed : list_.shards()) {
    const auto range = listed.shard->RecordedSteps();
    if (!range) continue;
    if (!all) all = range;
    all->first = std::min(all->first, range->first);
    all->last = std::max(all->last, range->last);
  }
  return all;
}

bool DirectoryReader::HasData(std::int64_t step) {
  bool found = false;
  const auto note = [&](std::uint64_t) { found = true; };
  for (ListedShard& listed : list_.shards()) {
    listed.shard->FindPlaces({step, step}, note);
    if (!found) listed.shard->FindTensors({step, step}, {}, note);
    if (!found) listed.shard->FindScalars({step, step}, {}, note);
    list_.Retire(&listed);
    if (found) break;
  }
  return found;
}

std::vector<std::int64_t> DirectoryReader::SavedSteps(
    StepRange steps, const DefinitionFilter& definitions, Kinds kinds) {
  const auto ids =
      Ascending(definitions.value_or(std::vector<std::uint32_t>()));
  const auto filter = definitions ? Shard::DefinitionFilter(ids) : std::nullopt;
  if (kinds.rows) expected_.Tables(SectionKind::kRowsPlaces, steps);
  if (kinds.tensors) expected_.Tables(SectionKind::kTensors, steps);
  if (kinds.scalars) expected_.Tables(SectionKind::kScalars, steps);
  return FindSavedSteps(&list_, steps, filter, kinds);
}

std::vector<Segment> DirectoryReader::FindSegments(StepRange steps) {
  std::vector<Segment> found;
  expected_.Tables(SectionKind::kRowsPlaces, steps);
  for (ListedShard& listed : list_.shards()) {
    Shard& shard = *listed.shard;
    const auto places = shard.FindsPlaces(steps) ? shard.Places()
                                                 : std::span<const RowsPlace>();
    if (places.empty()) continue;
    shard.FindPlaces(steps, [&](std::uint64_t i) {
      const RowsPlace& place = places[i];
      auto& numbers = shard.signature_names();
      if (place.signature >= numbers.size()) {
        numbers.resize(place.signature + 1, kUnnumbered);
      }
      std::uint64_t& number = numbers[place.signature];
      if (number == kUnnumbered) {
        number = signatures_.Add(shard.Signature(place));
      }
      found.push_back({place.step, listed.first_row + place.first_row,
                       place.n_rows, number});
    });
    list_.Retire(&listed);
  }
  return found;
}

template <typename Entry>
std::vector<Placed<Entry>> DirectoryReader::Find(
    SectionKind kind, StepRange steps, const DefinitionFilter& definitions,
    void (Shard::*find)(StepRange, Shard::DefinitionFilter,
                        const Shard::Visit&),
    std::span<const Entry> (Shard::*table)(),
    std::uint64_t ListedShard::* first) {
  std::vector<Placed<Entry>> found;
  expected_.Tables(kind, steps);
  const auto ids =
      Ascending(definitions.value_or(std::vector<std::uint32_t>()));
  for (ListedShard& listed : list_.shards()) {
    Shard& shard = *listed.shard;
    (shard.*find)(steps,
                  definitions ? Shard::DefinitionFilter(ids) : std::nullopt,
                  [&](std::uint64_t i) {
                    found.push_back({listed.*first + i, (shard.*table)()[i]});
                  });
    list_.Retire(&listed);
  }
  return found;
}

std::vector<Placed<TensorEntry>> DirectoryReader::FindTensors(
    StepRange steps, const DefinitionFilter& definitions) {
  return Find(SectionKind::kTensors, steps, definitions, &Shard::FindTensors,
              &Shard::Tensors, &ListedShard::first_tensor);
}

std::vector<Placed<ScalarEntry>> DirectoryReader::FindScalars(
    StepRange steps, const DefinitionFilter& definitions) {
  return Find(SectionKind::kScalars, steps, definitions, &Shard::FindScalars,
              &Shard::Scalars, &ListedShard::first_scalar);
}

std::vector<ColumnRow> DirectoryReader::Rows(std::uint64_t first,
                                             std::uint64_t last) {
  std::vector<ColumnRow> rows;
  last = std::min(last, n_rows());
  if (first >= last) return rows;
  rows.reserve(last - first);
  expected_.Tables(SectionKind::kRowsPlaces);
  for (ListedShard& listed : list_.shards()) {
    const std::uint64_t begin = listed.first_row;
    const std::uint64_t end = begin + listed.shard->n_rows();
    if (end <= first || begin >= last) continue;
    listed.shard->ReadRows(std::max(first, begin) - begin,
                           std::min(last, end) - begin, &rows);
    list_.Retire(&listed);
  }
  return rows;
}

std::vector<ColumnRow> DirectoryReader::FindRows(
    StepRange steps, std::span<const std::uint32_t> definitions) {
  const std::vector<std::uint32_t> wanted = Ascending(definitions);
  std::vector<ColumnRow> rows;
  expected_.Columns(steps, wanted);
  for (ListedShard& listed : list_.shards()) {
    listed.shard->FindRows(steps, wanted, &rows);
    list_.Retire(&listed);
  }
  return rows;
}

void DirectoryReader::GatherRows(const RowColumnsQuery& query,
                                 RowColumns* gathered) {
  if (query.steps.empty()) return;
  expected_.Columns({query.steps.front(), query.steps.back()},
                    query.definitions);
  for (ListedShard& listed : list_.shards()) {
    listed.shard->GatherRows(query, gathered);
    list_.Retire(&listed);
  }
}

Result<TensorValue> DirectoryReader::ReadTensor(std::size_t i) {
  TDBG_DCHECK(i < n_tensors());
  const std::uint64_t number = i;
  expected_.Tensors(std::span(&number, 1));
  ListedShard& listed = list_.OfTensor(i);
  const auto tensors = listed.shard->Tensors();
  const std::uint64_t at = i - listed.first_tensor;
  if (at >= tensors.size()) {
    return Status::Corruption(ShardName(listed.shard->number(), ".tds") +
                                  ": the record of tensor " +
                                  std::to_string(i) + " is not there any more",
                              0);
  }
  auto value =
      values_.Read(tensors, at, *definitions_, &listed.shard->reader());
  list_.Retire(&listed);
  return value;
}

Result<Histogram> DirectoryReader::ReadHistogram(std::size_t i) {
  TDBG_DCHECK(i < histograms().size());
  const HistogramEntry entry = histograms()[i];
  ListedShard& listed = list_.OfNumber(entry.shard_number);
  auto histogram = listed.shard->ReadHistogram(entry);
  list_.Retire(&listed);
  return histogram;
}

std::vector<SamplesPlace> DirectoryReader::FindSamples(
    TimeRange times, std::span<const std::uint32_t> definitions,
    std::uint64_t after) {
  const std::vector<std::uint32_t> wanted = Ascending(definitions);
  std::vector<SamplesPlace> found;
  for (ListedShard& listed : list_.shards()) {
    const ShardReader& reader = listed.shard->reader();
    const bool is_seen = reader.state() == ShardState::kSealed &&
                         reader.next_sequence() <= after + 1;
    if (is_seen) continue;
    listed.shard->FindSamples(times, wanted, [&](const SamplesPlace& place) {
      if (place.sequence > after) found.push_back(place);
    });
    list_.Retire(&listed);
  }
  return found;
}

std::vector<std::byte> DirectoryReader::ReadSamples(const SamplesPlace& place) {
  ListedShard& listed = list_.OfNumber(place.shard_number);
  auto payload = listed.shard->ReadSamples(place);
  list_.Retire(&listed);
  return payload;
}

Result<std::unique_ptr<RunReader>> OpenFiles(Result<RunFiles> files,
                                             const std::string& path,
                                             const ReaderOptions& options) {
  if (!files.ok()) return files.status();
  auto reader =
      std::make_unique<DirectoryReader>(std::move(files).value(), options);
  if (!reader->Begin()) {
    return Status::InvalidArgument(path + ": belongs to another run");
  }
  return std::unique_ptr<RunReader>(std::move(reader));
}

}  // namespace

Result<std::unique_ptr<RunReader>> RunReader::Open(const std::string& directory,
                                                   ReaderOptions options) {
  return OpenFiles(RunFiles::Open(directory), directory, options);
}

Result<std::unique_ptr<RunReader>> RunReader::Open(
    std::unique_ptr<Directory> directory, const std::string& path,
    ReaderOptions options) {
  return OpenFiles(RunFiles::Of(std::move(directory), path), path, options);
}

}  // namespace tdbg
