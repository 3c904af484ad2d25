#include "reader/run_reader.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/crc32c.h"
#include "reader/index_reader.h"
#include "reader/run_files.h"
#include "reader/shard_reader.h"

namespace tdbg {
namespace {

// How often Open looks, at most, while another look may tell more.
constexpr int kOpeningPolls = 4;

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

// The order that Column promises within a shard.
bool StandsBefore(const ColumnRow& a, const ColumnRow& b) {
  return std::tie(a.step, a.position, a.definition) <
         std::tie(b.step, b.position, b.definition);
}

// A shard, and its index once it was looked for.
struct Shard {
  Shard(int directory, const ShardPlace& place, bool map_files)
      : reader(directory, place, map_files) {}

  ShardReader reader;
  bool index_was_tried = false;
  std::optional<IndexReader> index;
  // The entries of Tables::rows that lie here.
  std::size_t first_rows = 0;
  std::size_t end_rows = 0;
};

class DirectoryReader final : public RunReader {
 public:
  DirectoryReader(RunFiles files, const ReaderOptions& options)
      : options_(options), files_(std::move(files)), place_(files_.place()) {
    place_.run = options.run;
    identity_.role = place_.role;
    identity_.rank = place_.rank;
    identity_.generation = place_.generation;
  }

  // The first look; false when all that is there is of another run.
  bool Begin() {
    for (int i = 0; i < kOpeningPolls; ++i) {
      Poll();
      if (!unsure_) break;
    }
    return has_identity_ || !saw_another_run_;
  }

  bool Poll() override {
    const std::uint64_t before = tables_.Size();
    unsure_ = false;
    if (options_.use_caches) commit_.Poll(files_.descriptor());
    while (ScanCurrent()) {
    }
    return tables_.Size() != before;
  }

  const std::vector<Definition>& definitions() const override {
    return tables_.definitions;
  }
  const std::vector<StepEntry>& steps() const override { return tables_.steps; }
  const std::vector<TensorEntry>& tensors() const override {
    return tables_.tensors;
  }
  const std::vector<ScalarEntry>& scalars() const override {
    return tables_.scalars;
  }
  const std::vector<EventEntry>& events() const override {
    return tables_.events;
  }
  const std::vector<SpanEntry>& spans() const override { return tables_.spans; }
  const std::vector<Gap>& gaps() const override { return tables_.gaps; }
  const std::vector<HistogramEntry>& histograms() const override {
    return tables_.histograms;
  }
  const std::vector<Problem>& problems() const override {
    return tables_.problems;
  }
  std::uint64_t n_rows() const override { return tables_.n_rows; }

  std::vector<ColumnRow> Rows(std::uint64_t first, std::uint64_t last) override;
  std::vector<ColumnRow> Column(
      std::span<const std::uint32_t> definitions) override;
  Result<TensorValue> ReadTensor(std::size_t i) override;

  const FileHeader& identity() const override { return identity_; }
  Liveness liveness() const override { return commit_.liveness(); }
  std::optional<CommitSlot> commit() const override { return commit_.slot(); }
  std::uint64_t n_bytes() const override { return files_.CountBytes(); }

 private:
  // Scans the current shard; true when there is another one to go on with.
  bool ScanCurrent();
  // The number of the shard to read after `number`, reporting those that are
  // missing between; nothing when there is none yet.
  std::optional<std::uint32_t> NextNumber(std::uint32_t number);
  void BeginShard(std::uint32_t number);

  Shard* Find(std::uint32_t number) {
    const auto found = shards_.find(number);
    return found == shards_.end() ? nullptr : &found->second;
  }
  // Descriptors are few and shards may be many.
  void CloseIfIdle(Shard* shard) {
    if (shard != current_) shard->reader.Retire();
  }
  // Calls `visit(row)` for the rows of a place, in order.
  template <typename Visit>
  void VisitRows(const RowsPlace& place, Visit visit);
  void AddColumn(std::span<const std::uint32_t> definitions, Shard* shard,
                 std::vector<ColumnRow>* rows);
  bool UseIndex(std::span<const std::uint32_t> definitions, Shard* shard,
                std::vector<ColumnRow>* rows);

  // Constant after construction.
  const ReaderOptions options_;

  RunFiles files_;
  ShardPlace place_;  // With the run, once a shard named it.
  CommitReader commit_;
  Tables tables_;
  std::map<std::uint32_t, Shard> shards_;
  Shard* current_ = nullptr;  // The shard that may still grow.
  FileHeader identity_;
  bool has_identity_ = false;
  bool saw_another_run_ = false;
  bool unsure_ = false;
  std::uint32_t missing_seen_ = 0;
};

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
  tables_.problems.push_back(
      {ProblemKind::kMissing, ShardName(number + 1, ".tds"), 0, 0,
       "shards " + std::to_string(number + 1) + " to " +
           std::to_string(*next - 1) + " are not there"});
  return next;
}

void DirectoryReader::BeginShard(std::uint32_t number) {
  ShardPlace place = place_;
  place.shard_number = number;
  current_ =
      &shards_
           .try_emplace(number, files_.descriptor(), place, options_.map_files)
           .first->second;
  current_->first_rows = tables_.rows.size();
}

bool DirectoryReader::ScanCurrent() {
  const std::uint32_t number =
      current_ == nullptr ? 0 : current_->reader.number();
  if (current_ == nullptr) {
    const auto first = NextNumber(0);
    if (!first) return false;
    BeginShard(*first);
    return true;
  }
  // Asked before the scan, so that the scan sees all that was written before.
  bool has_successor = false;
  const ShardState state = current_->reader.state();
  if (state == ShardState::kGrowing || state == ShardState::kUnborn) {
    has_successor =
        files_.ShardSize(number + 1).value_or(0) >= limits::kFileHeader ||
        files_.ShardAfter(number + 1).has_value();
    const bool settled = has_successor ||
                         commit_.liveness() == Liveness::kClosed ||
                         commit_.liveness() == Liveness::kDead;
    unsure_ |= current_->reader.Scan(settled, &tables_);
    current_->end_rows = tables_.rows.size();
  }
  const ShardReader& shard = current_->reader;
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
  current_->reader.Retire();
  BeginShard(*next);
  return true;
}

template <typename Visit>
void DirectoryReader::VisitRows(const RowsPlace& place, Visit visit) {
  InputFile& file = Find(place.shard_number)->reader.file();
  file.Forget();  // A growing file may have changed since it was read.
  const auto payload = file.View(place.offset, place.payload_length,
                                 place.offset + place.payload_length);
  Status status = payload.ok() ? Status::Ok() : payload.status();
  std::vector<Row> rows;
  if (status.ok() &&
      MaskedCrc32c(payload.value().data(), payload.value().size()) !=
          place.payload_crc) {
    status = Status::Corruption("checksum of the payload", place.offset);
  }
  if (status.ok()) {
    auto decoded = DecodeRows(payload.value());
    status = decoded.status();
    if (decoded.ok()) rows = std::move(decoded).value();
  }
  if (!status.ok()) {
    tables_.problems.push_back(
        {status.code() == StatusCode::kIoError ? ProblemKind::kIo
                                               : ProblemKind::kDamage,
         file.name(), place.offset - limits::kRecordHeader,
         place.payload_length + limits::kRecordHeader,
         "rows that were there are not any more: " + status.message()});
    rows.assign(place.n_rows, Row{});
  }
  std::uint32_t position = place.first_position;
  for (const Row& row : rows) visit(AsColumnRow(row, place.step, position++));
}

std::vector<ColumnRow> DirectoryReader::Rows(std::uint64_t first,
                                             std::uint64_t last) {
  std::vector<ColumnRow> out;
  last = std::min(last, tables_.n_rows);
  if (first >= last) return out;
  out.reserve(last - first);
  auto place = std::upper_bound(tables_.rows.begin(), tables_.rows.end(), first,
                                [](std::uint64_t row, const RowsPlace& p) {
                                  return row < p.first_row + p.n_rows;
                                });
  for (; place != tables_.rows.end() && place->first_row < last; ++place) {
    std::uint64_t row = place->first_row;
    VisitRows(*place, [&](const ColumnRow& column) {
      if (row >= first && row < last) out.push_back(column);
      ++row;
    });
    CloseIfIdle(Find(place->shard_number));
  }
  return out;
}

std::vector<ColumnRow> DirectoryReader::Column(
    std::span<const std::uint32_t> definitions) {
  std::vector<std::uint32_t> wanted(definitions.begin(), definitions.end());
  std::sort(wanted.begin(), wanted.end());
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  std::vector<ColumnRow> rows;
  for (auto& [number, shard] : shards_) {
    const auto first = static_cast<std::ptrdiff_t>(rows.size());
    AddColumn(wanted, &shard, &rows);
    if (!std::is_sorted(rows.begin() + first, rows.end(), StandsBefore)) {
      std::stable_sort(rows.begin() + first, rows.end(), StandsBefore);
    }
  }
  return rows;
}

void DirectoryReader::AddColumn(std::span<const std::uint32_t> definitions,
                                Shard* shard, std::vector<ColumnRow>* rows) {
  if (UseIndex(definitions, shard, rows)) return;
  for (std::size_t i = shard->first_rows; i < shard->end_rows; ++i) {
    VisitRows(tables_.rows[i], [&](const ColumnRow& row) {
      if (std::binary_search(definitions.begin(), definitions.end(),
                             row.definition)) {
        rows->push_back(row);
      }
    });
  }
  CloseIfIdle(shard);
}

bool DirectoryReader::UseIndex(std::span<const std::uint32_t> definitions,
                               Shard* shard, std::vector<ColumnRow>* rows) {
  const ShardReader& reader = shard->reader;
  // An index still holds the rows of records that are damaged since; without
  // it they are lost, and the answers must be the same.
  if (!options_.use_caches || reader.state() != ShardState::kSealed ||
      reader.is_damaged()) {
    return false;
  }
  if (!shard->index_was_tried) {
    shard->index = IndexReader::Open(files_.descriptor(), reader.number(),
                                     reader.header().salt, reader.length(),
                                     reader.n_rows());
    // The writer completes the index after it has sealed the shard.
    shard->index_was_tried =
        shard->index || &shard->reader != &current_->reader;
  }
  if (!shard->index) return false;
  // Of most rows the records themselves are faster: no sorting.
  if (shard->index->CountRows(definitions) > reader.n_rows() / 2) return false;
  if (shard->index->Read(files_.descriptor(), definitions, rows)) return true;
  shard->index.reset();
  return false;
}

Result<TensorValue> DirectoryReader::ReadTensor(std::size_t i) {
  Shard* shard = Find(tables_.tensors[i].shard_number);
  auto value =
      ReadTensorValue(tables_, i, options_.max_tensor_bytes, &shard->reader);
  CloseIfIdle(shard);
  return value;
}

}  // namespace

Result<std::unique_ptr<RunReader>> RunReader::Open(const std::string& directory,
                                                   ReaderOptions options) {
  auto files = RunFiles::Open(directory);
  if (!files.ok()) return files.status();
  auto reader =
      std::make_unique<DirectoryReader>(std::move(files).value(), options);
  if (!reader->Begin()) {
    return Status::InvalidArgument(directory + ": belongs to another run");
  }
  return std::unique_ptr<RunReader>(std::move(reader));
}

}  // namespace tdbg
