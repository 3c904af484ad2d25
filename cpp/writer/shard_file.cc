#include "writer/shard_file.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kFirstBatch = 64ULL << 10;
// A batch grows with its largest record; more than this is not kept.
constexpr std::uint64_t kMaxKept = 16ULL << 20;

std::uint64_t ToNextPage(std::uint64_t offset) {
  return (ShardFile::kPage - offset % ShardFile::kPage) % ShardFile::kPage;
}

}  // namespace

Status ShardFile::Create(FileSystem* file_system, std::string path) {
  Result<File> file = File::Create(file_system, std::move(path));
  if (!file.ok()) return file.status();
  file_ = std::move(file).value();
  return Status::Ok();
}

// --- The batch ---------------------------------------------------------------

std::byte* ShardFile::Extend(std::uint64_t n) {
  const std::uint64_t wanted = written_ % kPage + size_ + n;
  if (wanted > memory_.size()) Grow(wanted);
  std::byte* p = begin() + size_;
  size_ += n;
  return p;
}

void ShardFile::Grow(std::uint64_t n) {
  std::uint64_t size = std::max(kFirstBatch, 2 * memory_.size());
  while (size < n) size *= 2;
  Result<HugeMemory> memory = HugeMemory::Create(size);
  if (!memory.ok()) throw std::bad_alloc();
  if (size_ != 0) {
    std::memcpy(memory.value().data() + written_ % kPage, begin(), size_);
  }
  memory_ = std::move(memory).value();
}

// --- Writing -----------------------------------------------------------------

Status ShardFile::WriteBatch() {
  if (size_ == 0) return Status::Ok();
  TDBG_RETURN_IF_ERROR(Put({begin(), size_}));
  size_ = 0;
  if (memory_.size() > kMaxKept) memory_ = HugeMemory();
  return Status::Ok();
}

Status ShardFile::WritePages() {
  const std::uint64_t rest = std::min(length() % kPage, size_);
  const std::byte* end = At(length());
  TDBG_RETURN_IF_ERROR(Put({begin(), size_ - rest}));
  size_ = rest;
  // It begins a page now, as it will in the file.
  std::memmove(begin(), end - rest, rest);
  return Status::Ok();
}

Status ShardFile::WriteFrom(std::span<const std::byte> bytes) {
  TDBG_DCHECK(size_ == 0);
  const std::uint64_t rest =
      std::min<std::uint64_t>((written_ + bytes.size()) % kPage, bytes.size());
  TDBG_RETURN_IF_ERROR(Put(bytes.first(bytes.size() - rest)));
  if (rest != 0) std::memcpy(Extend(rest), bytes.last(rest).data(), rest);
  return Status::Ok();
}

Status ShardFile::Put(std::span<const std::byte> bytes) {
  if (bytes.empty()) return Status::Ok();
  std::uint64_t at = written_;
  const std::uint64_t end = at + bytes.size();
  ReserveAhead(end);
  const std::uint64_t before = ToNextPage(at);
  const bool is_congruent =
      reinterpret_cast<std::uintptr_t>(bytes.data()) % kPage == at % kPage;
  if (is_congruent && bytes.size() >= before + kMinDirect &&
      can_write_direct()) {
    // In the order of the file: a reader finds no hole in what is there.
    TDBG_RETURN_IF_ERROR(PutPieces(bytes.first(before), at, false));
    at += before;
    bytes = bytes.subspan(before);
    const auto pages = bytes.first(bytes.size() / kPage * kPage);
    TDBG_RETURN_IF_ERROR(PutPieces(pages, at, true));
    at += pages.size();
    bytes = bytes.subspan(pages.size());
  }
  TDBG_RETURN_IF_ERROR(PutPieces(bytes, at, false));
  written_ = end;
  return Status::Ok();
}

Status ShardFile::PutPieces(std::span<const std::byte> bytes,
                            std::uint64_t offset, bool direct) {
  using Clock = std::chrono::steady_clock;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), piece_));
    const Clock::time_point start = Clock::now();
    TDBG_RETURN_IF_ERROR(direct ? file_.WriteDirectAt(piece, offset)
                                : file_.WriteAt(piece, offset));
    const Clock::duration time = Clock::now() - start;
    if (direct) NoteDirect(piece.size(), time);
    if (time > kPieceTime) {
      piece_ = std::max(kMinPiece, piece_ / 2);
    } else if (piece.size() == piece_ && time < kPieceTime / 4) {
      piece_ = std::min(kMaxPiece, piece_ * 2);
    }
    offset += piece.size();
    bytes = bytes.subspan(piece.size());
    progress_();
  }
  return Status::Ok();
}

void ShardFile::NoteDirect(std::uint64_t n,
                           std::chrono::steady_clock::duration time) {
  direct_bytes_ += n;
  direct_time_ += time;
  if (direct_bytes_ < kProbe) return;
  const double seconds = std::chrono::duration<double>(direct_time_).count();
  is_slow_ = static_cast<double>(direct_bytes_) <
             seconds * static_cast<double>(min_direct_rate_);
  direct_bytes_ = 0;
  direct_time_ = {};
}

void ShardFile::ReserveAhead(std::uint64_t end) {
  if (!reserve_ || end <= reserved_) return;
  const std::uint64_t n = std::clamp(end, kMinReserve, kMaxReserve);
  // Only a help to the file system: where it refuses, the write itself tells.
  if (!file_.Reserve(reserved_, end - reserved_ + n).ok()) {
    reserve_ = false;
    return;
  }
  reserved_ = end + n;
}

void ShardFile::ReleaseReserve() {
  if (reserved_ <= written_) return;
  // Costs disk space when refused, and nothing else.
  (void)file_.ReleaseReserve(written_);
}

}  // namespace tdbg
