#include "reader/shard_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/coding.h"
#include "base/crc32c.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kSealBytes = limits::kRecordHeader + kEndBytes;
constexpr std::uint64_t kWindow = 1 << 20;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHostileBytes = 64 << 20;
constexpr std::uint64_t kProblemLimit = 10'000;
constexpr std::uint64_t kLastSequence = 1ULL << 63;

bool IsDecoded(RecordType type) {
  switch (type) {
    case RecordType::kDefinition:
    case RecordType::kRows:
    case RecordType::kTensor:
    case RecordType::kStep:
    case RecordType::kScalar:
    case RecordType::kEvent:
    case RecordType::kSpan:
    case RecordType::kGap:
    case RecordType::kHistogram:
    case RecordType::kSamples:
    case RecordType::kEnd:
      return true;
    case RecordType::kPad:
    case RecordType::kIndex:
      break;
  }
  return false;
}

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

ShardReader::ShardReader(const Directory* directory, const ShardPlace& place,
                         bool map_files)
    : place_(place),
      map_files_(map_files),
      file_(directory, ShardName(place.shard_number, ".tds")) {}

ShardReader::ShardReader(std::span<const std::byte> bytes,
                         const ShardPlace& place)
    : place_(place),
      map_files_(false),
      file_(bytes, ShardName(place.shard_number, ".tds")) {}

void ShardReader::Report(ProblemKind kind, std::uint64_t offset,
                         std::uint64_t length, std::string message,
                         Tables* tables) {
  ++n_problems_;
  if (n_problems_ > kProblemLimit) return;
  if (n_problems_ == kProblemLimit) {
    message = "more problems follow in this shard and are not listed";
  }
  tables->problems.push_back(
      {kind, file_.name(), offset, length, std::move(message)});
}

void ShardReader::Refuse(ProblemKind kind, std::string message,
                         Tables* tables) {
  state_ = ShardState::kRefused;
  Report(kind, 0, size_, "shard refused: " + std::move(message), tables);
  file_.Close();
}

bool ShardReader::Scan(bool settled, Tables* tables, const IsKnown& is_known) {
  unsure_ = false;
  if (state_ == ShardState::kSealed || state_ == ShardState::kRefused) {
    return false;
  }
  file_.Forget();
  const auto size = file_.Size();
  if (!size.ok()) {
    // A refusal by the operating system may pass (too many open files), so it
    // is tried twice; what is no regular file never becomes one.
    const bool final =
        size.status().code() != StatusCode::kIoError || read_failed_;
    read_failed_ = true;
    unsure_ = !final;
    if (final) {
      Refuse(size.status().code() == StatusCode::kIoError
                 ? ProblemKind::kIo
                 : ProblemKind::kForeign,
             size.status().message(), tables);
    }
    return unsure_;
  }
  read_failed_ = false;
  if (size.value() > limits::kShard) {
    Refuse(ProblemKind::kDamage, "it is larger than 2^62 bytes", tables);
    return false;
  }
  if (size.value() < next_) {
    Refuse(ProblemKind::kDamage,
           "it has " + std::to_string(size.value()) +
               " bytes and had more: shards never shrink",
           tables);
    return false;
  }
  previous_size_ = size_;
  is_certain_ = false;
  size_ = size.value();
  if (state_ == ShardState::kUnborn) ReadHeader(settled, tables);
  if (state_ == ShardState::kGrowing && is_known &&
      next_ == limits::kFileHeader) {
    const auto seal = FindEnd();
    if (seal && is_known(seal->end)) {
      state_ = ShardState::kSealed;
      end_ = seal->end;
      next_ = size_;
      expected_ = seal->sequence + 1;
    }
  }
  if (state_ == ShardState::kGrowing) ScanRecords(settled, tables);
  file_.Forget();
  return unsure_;
}

void ShardReader::Unseal() {
  state_ = ShardState::kGrowing;
  next_ = limits::kFileHeader;
  expected_ = header_.first_sequence;
  n_records_ = n_offered_ = 0;
  chain_.clear();
  settled_size_ = 0;
}

void ShardReader::ReadHeader(bool settled, Tables* tables) {
  if (size_ < limits::kFileHeader) {
    if (settled && torn_at_ != 0) {
      torn_at_ = 0;
      Report(ProblemKind::kTornTail, 0, size_,
             "the file ends within its header", tables);
    }
    return;
  }
  const auto bytes = file_.View(0, limits::kFileHeader, size_);
  const auto header =
      bytes.ok() ? DecodeFileHeader(bytes.value()) : bytes.status();
  if (!header.ok()) {
    if (!settled && failed_size_ == 0) {
      failed_size_ = size_;  // Look once more: it may just be written.
      unsure_ = true;
      return;
    }
    Refuse(KindOf(header.status()), header.status().message(), tables);
    return;
  }
  header_ = header.value();
  if (place_.run && header_.run != *place_.run) {
    of_another_run_ = true;
    Refuse(ProblemKind::kForeign, "it belongs to another run", tables);
    return;
  }
  if (header_.role != place_.role || header_.rank != place_.rank ||
      header_.generation != place_.generation ||
      header_.shard_number != place_.shard_number) {
    Refuse(ProblemKind::kForeign,
           "it was written as shard " + std::to_string(header_.shard_number) +
               " of role " +
               std::to_string(static_cast<unsigned>(header_.role)) + ", rank " +
               std::to_string(header_.rank) + ", generation " +
               std::to_string(header_.generation),
           tables);
    return;
  }
  if (header_.first_sequence >= kLastSequence) {
    Refuse(ProblemKind::kDamage, "its first sequence is above 2^63", tables);
    return;
  }
  state_ = ShardState::kGrowing;
  if (rebuilt_) rebuilt_ = IndexBuilder(header_.salt, place_.shard_number);
  next_ = limits::kFileHeader;
  expected_ = header_.first_sequence;
  failed_size_ = 0;
}

std::optional<ShardReader::Seal> ShardReader::FindEnd() {
  if (size_ < limits::kFileHeader + kSealBytes ||
      size_ % limits::kAlignment != 0) {
    return std::nullopt;
  }
  const Checked last = Check(size_ - kSealBytes);
  if (!last.status.ok() || last.header.type != RecordType::kEnd) {
    return std::nullopt;
  }
  const auto end = DecodeEnd(last.payload);
  if (!end.ok() || end.value().file_length != size_) return std::nullopt;
  return Seal{end.value(), last.header.sequence};
}

void ShardReader::ScanRecords(bool settled, Tables* tables) {
  const bool has_seal = FindEnd().has_value();
  if (has_seal && map_files_) file_.Map(size_);
  while (next_ < size_ && state_ == ShardState::kGrowing) {
    const Checked record = CheckNext();
    if (!record.status.ok()) {
      if (!PassFailure(record, settled, has_seal, tables)) break;
      continue;
    }
    if (record.header.sequence > expected_ && !passed_damage_) {
      Report(ProblemKind::kMissing, next_, 0,
             "records " + std::to_string(expected_) + " to " +
                 std::to_string(record.header.sequence - 1) + " are not there",
             tables);
    }
    if (record.header.sequence > expected_) {
      tables->holes.push_back({expected_, record.header.sequence});
    }
    Accept(record, tables);
    passed_damage_ = false;
    expected_ = record.header.sequence + 1;
    if (IsInChain(next_)) chain_.pop_back();
    next_ = record.end;
  }
  if (state_ != ShardState::kSealed) return;
  if (next_ < size_) {
    Report(ProblemKind::kDamage, next_, size_ - next_,
           "there are bytes after the end record", tables);
  }
  if (map_files_) file_.Map(size_);
  file_.Close();
}

bool ShardReader::PassFailure(const Checked& failed, bool settled,
                              bool has_seal, Tables* tables) {
  const bool is_final = settled || has_seal;
  const bool is_short = failed.header_holds && failed.end > size_;
  if (!is_final) {
    // While a writer may live, a record that fails may be one that is being
    // written.  It is damage only if it fails twice and another one follows.
    // What was there at the last look, behind damage that is certain, is as
    // old as that.
    const bool same_place =
        failed_at_ == next_ || (is_certain_ && next_ < previous_size_);
    const bool same_size = same_place && failed_size_ == size_;
    if (failed_at_ != next_) searched_size_ = 0;
    failed_at_ = next_;
    failed_size_ = size_;
    if (!same_place || (is_short && !same_size)) {
      unsure_ = true;
      return false;
    }
    if (searched_size_ == size_) return false;
  }
  if (IsInChain(next_)) chain_.pop_back();
  if (chain_.empty() && settled_size_ != size_) {
    // A large tensor grows before its header is written: what was searched
    // while it grew is searched again only at the end.
    const std::uint64_t from = next_ + limits::kAlignment;
    chain_ = FindChain(is_final ? from : std::max(from, searched_to_));
    searched_to_ = size_ < kPage ? 0 : (size_ - kPage) & ~std::uint64_t{63};
    if (is_final) settled_size_ = size_;
  }
  const FoundRecord* const found = chain_.empty() ? nullptr : &chain_.back();
  if (found == nullptr && !has_seal) {
    searched_size_ = size_;
    if (settled && torn_at_ != next_) {
      torn_at_ = next_;
      Report(ProblemKind::kTornTail, next_, size_ - next_,
             "the last record is not whole: " + failed.status.message(),
             tables);
    }
    return false;
  }
  const std::uint64_t resume = found != nullptr ? found->offset : size_;
  std::string message = failed.status.message();
  if (found != nullptr) {
    message += "; expected record " + std::to_string(expected_) +
               ", the next one is " + std::to_string(found->sequence);
  }
  Report(KindOf(failed.status), next_, resume - next_, std::move(message),
         tables);
  passed_damage_ = true;
  is_certain_ = true;
  next_ = resume;
  return true;
}

ShardReader::Checked ShardReader::CheckNext() {
  const auto check = [this] {
    return chain_.empty() || IsInChain(next_) ? Check(next_)
                                              : CheckHeader(next_);
  };
  Checked record = check();
  if (record.status.ok() && record.header.sequence > expected_ &&
      chain_.empty()) {
    chain_ = FindChain(next_);
    record = check();  // What was read of it was read over.
  }
  if (!record.status.ok()) return record;
  const auto out_of_place = [&](const char* why) {
    return Status::Corruption(
        "sequence " + std::to_string(record.header.sequence) +
            " stands where " + std::to_string(expected_) + why,
        next_);
  };
  if (record.header.sequence < expected_) {
    record.status =
        out_of_place(" or a later one should: the record is a repetition");
  } else if (!chain_.empty() && !IsInChain(next_)) {
    record.status =
        out_of_place(" should: the record is a copy of one that follows");
  }
  return record;
}

ShardReader::Checked ShardReader::Check(std::uint64_t offset) {
  Checked checked = CheckHeader(offset);
  if (checked.status.ok()) checked.status = CheckPayload(offset, &checked);
  return checked;
}

ShardReader::Checked ShardReader::CheckHeader(std::uint64_t offset) {
  Checked checked;
  if (size_ - offset < limits::kRecordHeader) {
    checked.status =
        Status::Corruption("the file ends within a record header", offset);
    return checked;
  }
  const auto bytes = file_.View(offset, limits::kRecordHeader, size_);
  if (!bytes.ok()) {
    checked.status = bytes.status();
    return checked;
  }
  auto header = DecodeRecordHeader(bytes.value(), header_.salt);
  if (!header.ok()) {
    checked.status = header.status();
    return checked;
  }
  checked.header = header.value();
  if (checked.header.sequence >= kLastSequence) {
    checked.status = Status::Corruption("a sequence above 2^63", offset);
    return checked;
  }
  checked.header_holds = true;
  checked.end = NextRecord(offset, checked.header.payload_length);
  return checked;
}

Status ShardReader::CheckPayload(std::uint64_t offset, Checked* checked) {
  const RecordHeader& header = checked->header;
  if (checked->end > size_) {
    return Status::Corruption(
        "the record needs " + std::to_string(checked->end - offset) +
            " bytes, and the file ends after " + std::to_string(size_ - offset),
        offset);
  }
  const std::uint64_t start = offset + limits::kRecordHeader;
  const std::uint64_t padding_at = start + header.payload_length;
  const auto padding = file_.View(padding_at, checked->end - padding_at, size_);
  if (!padding.ok()) return padding.status();
  if (!AllZero(padding.value())) {
    return Status::Corruption("the padding is not zero", offset);
  }
  std::uint32_t crc = 0;
  if (IsDecoded(header.type)) {
    const auto payload = file_.View(start, header.checked_length, size_);
    if (!payload.ok()) return payload.status();
    checked->payload = payload.value();
    crc = Crc32c(checked->payload.data(), checked->payload.size());
  } else {
    // May be large, and nobody wants it in one piece.
    for (std::uint64_t done = 0; done < header.checked_length;) {
      const std::uint64_t n = std::min(kWindow, header.checked_length - done);
      const auto piece = file_.View(start + done, n, size_);
      if (!piece.ok()) return piece.status();
      crc = Crc32c(piece.value().data(), n, crc);
      done += n;
    }
  }
  if (MaskCrc(crc) != header.payload_crc) {
    return Status::Corruption("checksum of the payload", offset);
  }
  return Status::Ok();
}

std::vector<FoundRecord> ShardReader::FindChain(std::uint64_t from) {
  RecordChain chain;
  std::vector<std::uint64_t> offsets;
  std::uint64_t n_checked = 0;
  std::uint64_t window = kWindow;
  while (from < size_ && size_ - from >= limits::kRecordHeader &&
         !chain.is_full()) {
    // A hole is zeros, and zeros are never a record.
    from = std::max(from, file_.NextData(from, size_) & ~(kPage - 1));
    if (from >= size_ || size_ - from < limits::kRecordHeader) break;
    const std::uint64_t n = std::min(window, size_ - from) & ~std::uint64_t{63};
    const auto bytes = file_.View(from, n, size_);
    if (!bytes.ok()) {
      // Somewhere in there the disk fails: go on page by page.
      from += window == kPage ? kPage : 0;
      window = kPage;
      continue;
    }
    offsets.clear();
    for (std::uint64_t at = 0; at < n; at += limits::kAlignment) {
      if (MayBeRecord(bytes.value().data() + at, header_.salt)) {
        offsets.push_back(from + at);
      }
    }
    for (const std::uint64_t offset : offsets) {
      Checked record = CheckHeader(offset);
      if (!record.header_holds || record.header.sequence < expected_) continue;
      // Of a record that is being written, the rest may come; and of a hostile
      // file whose records overlap, not all are read.
      if (record.end <= size_ && n_checked <= 4 * size_ + kHostileBytes) {
        n_checked += record.header.checked_length;
        record.status = CheckPayload(offset, &record);
        if (KindOf(record.status) == ProblemKind::kDamage &&
            !record.status.ok()) {
          continue;
        }
      }
      chain.Add({offset, record.header.sequence}, std::min(size_, record.end));
    }
    from += n;
  }
  return chain.Longest();
}

}  // namespace tdbg
