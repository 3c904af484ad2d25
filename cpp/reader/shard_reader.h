// ShardReader validates the records of one shard, as far as they are written,
// and adds them to the tables.
//
// Implements docs/format.md, "Reading".  A record is taken in once; damage
// costs the record that it hit and becomes a Problem.  An invalid tail of a
// shard that may still grow is looked at again by the next Scan.
//
// Thread safety: none.
//
// Errors: problems, in the tables; ReadHistogram and ReadSamples
// return a Status.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status.h"
#include "format/index.h"
#include "format/index_builder.h"
#include "format/names.h"
#include "format/record.h"
#include "format/tensor_record.h"
#include "reader/directory.h"
#include "reader/input_file.h"
#include "reader/record_chain.h"
#include "reader/tables.h"

namespace tdbg {

// The identity that a shard's header must have to be accepted in its place.
struct ShardPlace {
  WriterRole role = WriterRole::kTrain;
  std::uint32_t rank = 0;
  std::uint32_t generation = 0;
  std::uint32_t shard_number = 0;
  std::optional<Uuid> run;

  [[nodiscard]] ShardPlace WithNumber(std::uint32_t number) const {
    ShardPlace place = *this;
    place.shard_number = number;
    return place;
  }
};

enum class ShardState {
  kUnborn,   // Its header is not there yet.
  kGrowing,  // Has a header and no end.
  kSealed,   // Its end was read: nothing more will come.
  kRefused,  // Is not to be read; the problem says why.
};

class ShardReader {
 public:
  ShardReader(const Directory* directory, const ShardPlace& place,
              bool map_files);
  // A shard in memory, which outlives this.
  ShardReader(std::span<const std::byte> bytes, const ShardPlace& place);
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  // Whether what a sealed shard says is known from elsewhere.
  using IsKnown = std::function<bool(const End&)>;

  // From the first Scan on, makes an index of the records, to compare with.
  void RebuildIndex() { rebuilt_.emplace(); }
  // That index, which is whole.
  // REQUIRES: RebuildIndex() was called, state() is kSealed and nothing is
  // damaged.
  IndexBuilder TakeRebuiltIndex() { return std::move(*rebuilt_); }

  // Takes in what is there.  `settled`: no more will be written, so that an
  // invalid tail is torn.  Returns whether another Scan of the same bytes may
  // find more, because damage must be seen twice while a writer may live.
  // `is_known` is asked when the shard is found sealed before any of its
  // records was looked at; where it says so, none is.
  bool Scan(bool settled, Tables* tables, const IsKnown& is_known = {});

  [[nodiscard]] ShardState state() const { return state_; }
  // REQUIRES: state() is kGrowing or kSealed.
  [[nodiscard]] const FileHeader& header() const {
    TDBG_DCHECK(state_ == ShardState::kGrowing ||
                state_ == ShardState::kSealed);
    return header_;
  }
  [[nodiscard]] std::uint32_t number() const { return place_.shard_number; }
  // Whether a problem was found in this shard.
  [[nodiscard]] bool is_damaged() const { return n_problems_ > 0; }
  // Whether it was refused for belonging to another run.
  [[nodiscard]] bool is_of_another_run() const { return of_another_run_; }
  [[nodiscard]] std::uint64_t length() const { return size_; }
  // Records that a producer offered, of those that were walked.
  [[nodiscard]] std::uint64_t n_offered() const { return n_offered_; }
  // The sequence after the last record that was taken in, or is known from
  // elsewhere.
  // REQUIRES: state() is kGrowing or kSealed.
  [[nodiscard]] std::uint64_t next_sequence() const { return expected_; }
  // Up to where records were taken in or reported.
  [[nodiscard]] std::uint64_t taken_to() const { return next_; }

  // The `end` record.
  // REQUIRES: state() is kSealed.
  [[nodiscard]] const End& end() const {
    TDBG_DCHECK(state_ == ShardState::kSealed);
    return end_;
  }

  // Reads the one record that an index names, if it is intact; of a
  // histogram its place, unread.
  void TakeIndexed(const IndexEntry& entry, Tables* tables);
  // The histogram at a place of this shard's table.  Errors name file, record
  // and kind.
  Result<Histogram> ReadHistogram(const HistogramEntry& entry);
  // The payload of the record at a place of this shard's table, checked, with
  // one read.  Errors name file, record and kind.
  Result<std::vector<std::byte>> ReadSamples(const SamplesPlace& place);
  // Takes back that its records are known: the next Scan reads them.
  void Unseal();

  InputFile& file() { return file_; }
  [[nodiscard]] const InputFile& file() const { return file_; }
  [[nodiscard]] const std::string& name() const { return file_.name(); }
  // Maps the shard if it is sealed and may be.
  void Map() {
    if (map_files_ && state_ == ShardState::kSealed) file_.Map(size_);
  }

  [[nodiscard]] std::uint64_t n_mapped() const {
    return file_.map() == nullptr ? 0 : size_;
  }

  // A record that cannot be read after all: of these bytes.
  void Lose(std::uint64_t sequence, std::uint64_t offset,
            std::uint64_t payload_length, const Status& why, Tables* tables);

  // Gives up the descriptor of a shard that will not be scanned again.
  void Retire() { file_.Close(); }

 private:
  // A record at an offset, checked.
  struct Checked {
    Status status;
    RecordHeader header;
    bool header_holds = false;
    std::uint64_t end = 0;               // Where the next record starts.
    std::span<const std::byte> payload;  // Its checked part, if it is decoded.
  };

  void ReadHeader(bool settled, Tables* tables);
  void ScanRecords(bool settled, Tables* tables);
  // The `end` record in the last 128 bytes, if there is one.
  struct Seal {
    End end;
    std::uint64_t sequence = 0;
  };
  [[nodiscard]] std::optional<Seal> FindEnd();

  // The record at an offset: what its header says, and the whole of it.
  Checked CheckHeader(std::uint64_t offset);
  Checked Check(std::uint64_t offset);
  Status CheckPayload(std::uint64_t offset, Checked* checked);
  // The record at next_, if it is where it belongs.  Between the records of
  // chain_ only a header is read, so that a file whose records overlap costs no
  // more than another.
  Checked CheckNext();
  // The records from `from` on, last one first, that belong where they are.
  std::vector<FoundRecord> FindChain(std::uint64_t from);
  [[nodiscard]] bool IsInChain(std::uint64_t offset) const {
    return !chain_.empty() && chain_.back().offset == offset;
  }
  // Handles the record at next_ that failed; false when the scan ends there.
  bool PassFailure(const Checked& failed, bool settled, bool has_seal,
                   Tables* tables);

  void Accept(const Checked& record, Tables* tables);
  [[nodiscard]] IndexEntry EntryOf(const Checked& record) const;
  Status Take(const Checked& record, Tables* tables);
  Status TakeDefinition(const Checked& record, Tables* tables) const;
  Status TakeRows(const Checked& record, Tables* tables);
  Status TakeTensor(const Checked& record, Tables* tables);
  Status TakeScalars(const Checked& record, Tables* tables);
  Status TakeSpans(const Checked& record, Tables* tables);
  Status TakeEnd(const Checked& record);
  [[nodiscard]] HistogramEntry PlaceOf(const IndexEntry& entry,
                                       std::uint32_t definition) const;

  void Report(ProblemKind kind, std::uint64_t offset, std::uint64_t length,
              std::string message, Tables* tables);
  void Refuse(ProblemKind kind, std::string message, Tables* tables);

  // Constant after construction.
  const ShardPlace place_;
  const bool map_files_;

  InputFile file_;
  ShardState state_ = ShardState::kUnborn;
  FileHeader header_;
  bool of_another_run_ = false;
  bool unsure_ = false;  // What Scan returns.
  bool read_failed_ = false;
  bool passed_damage_ = false;  // Since the last record that was taken in.
  bool is_certain_ = false;     // Damage was found by this Scan.
  // Where damage or a hole was found: the records that are left, last one
  // first, up to where the file ended then.
  std::vector<FoundRecord> chain_;
  std::uint64_t n_problems_ = 0;

  std::uint64_t size_ = 0;  // Of the file, at the last Scan.
  // Invariant: all records below next_ were taken in or reported.
  std::uint64_t next_ = 0;
  std::uint64_t expected_ = 0;  // Sequence of the next record.
  std::uint64_t n_records_ = 0;
  std::uint64_t n_offered_ = 0;
  End end_;
  std::uint64_t previous_size_ = 0;  // Of the file, at the Scan before.
  // The failure that the last Scan ended at, and the size it saw then.
  std::uint64_t failed_at_ = 0;
  std::uint64_t failed_size_ = 0;
  // The size at which that failure was searched for a record that follows, in
  // vain.
  std::uint64_t searched_size_ = 0;
  std::uint64_t searched_to_ = 0;   // Of a growing shard, for a chain.
  std::uint64_t settled_size_ = 0;  // At which it was searched to its end.
  std::optional<std::uint64_t> torn_at_;

  std::optional<IndexBuilder> rebuilt_;

  // Positions, see docs/format.md.
  PositionCounter row_positions_;
  PositionCounter tensor_positions_;
};

}  // namespace tdbg
