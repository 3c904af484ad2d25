// ShardFile is the file of a shard as a sequence of bytes: a batch of what was
// appended, and how it gets to the disk.
//
// Implements docs/format.md, "Writing".  Blocks are reserved ahead of the data,
// and where there are kMinDirect bytes or more they are written past the page
// cache, straight from memory, in large pieces.  The pages at the ends of such
// a write, which it shares with its neighbours, and everything small go through
// the cache.  So each page of the file is written in one of the two ways and,
// full pages at least, once; and a live reader finds what is small in memory.
// Where the file system knows no direct writes, or where they are slower than
// kMinDirectRate, everything goes through the cache, for the rest of the shard:
// a fast disk is best written without the processor, a slow one with all the
// memory that the kernel lends.
//
// The batch lies in memory as in the file, as far as pages go (its address and
// its offset are the same modulo a page), so it can be written as it is.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: after the first one nothing more may be called but the getters and
// the destructor.  Extend throws std::bad_alloc, like a vector.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/huge_memory.h"
#include "base/status.h"

namespace tdbg {

class ShardFile {
 public:
  static constexpr std::uint64_t kPage = File::kDirectAlignment;
  // Less than this goes through the page cache: a direct write waits for the
  // device, and what is small had better be cheap.
  static constexpr std::uint64_t kMinDirect = 1ULL << 20;
  // One call writes no more than kMaxPiece, and less on a slow disk: about what
  // it takes within kPieceTime, so that progress shows.
  static constexpr std::uint64_t kMinPiece = 256ULL << 10;
  static constexpr std::uint64_t kMaxPiece = 8ULL << 20;
  static constexpr std::chrono::milliseconds kPieceTime{100};
  // Bytes a second, over kProbe bytes.
  static constexpr std::uint64_t kMinDirectRate = 400'000'000;
  static constexpr std::uint64_t kProbe = 32ULL << 20;
  // How far ahead of the data blocks are reserved: as much as is there already,
  // within these bounds, so that a small shard reserves little.
  static constexpr std::uint64_t kMinReserve = 1ULL << 20;
  static constexpr std::uint64_t kMaxReserve = 64ULL << 20;

  // `progress` is called after each piece that was written.
  explicit ShardFile(std::function<void()> progress,
                     std::uint64_t min_direct_rate = kMinDirectRate)
      : progress_(std::move(progress)), min_direct_rate_(min_direct_rate) {}
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  Status Create(FileSystem* file_system, std::string path);

  // Appends `n` bytes to the batch, of any value, to be filled in by the
  // caller.  The pointer is good until the next call.
  std::byte* Extend(std::uint64_t n);
  // Takes back the last `n` bytes.
  // REQUIRES: they are in the batch.
  void Shrink(std::uint64_t n) {
    TDBG_DCHECK(n <= size_);
    size_ -= n;
  }
  // Where the byte at `offset` of the file lies in the batch.
  // REQUIRES: written() <= offset <= length().
  [[nodiscard]] std::byte* At(std::uint64_t offset) const {
    TDBG_DCHECK(written_ <= offset && offset <= length());
    return begin() + (offset - written_);
  }

  // Writes the batch.
  Status WriteBatch();
  // Writes the full pages of the batch and keeps the rest.
  Status WritePages();
  // Appends `bytes`, without copying them but for the ends.  The last ones may
  // stay in the batch.
  // REQUIRES: the batch is empty.
  Status WriteFrom(std::span<const std::byte> bytes);
  // Leaves `n` bytes out, to be written by Fill.
  // REQUIRES: the batch is empty.
  void Skip(std::uint64_t n) {
    TDBG_DCHECK(size_ == 0);
    written_ += n;
  }
  Status Fill(std::span<const std::byte> bytes, std::uint64_t offset) {
    return file_.WriteAt(bytes, offset);
  }

  // Makes all that was written outlive a power failure.
  Status Sync() { return file_.SyncData(); }
  // Gives back what is reserved beyond the end.
  void ReleaseReserve();
  Status Close() { return file_.Close(); }
  // As File::CheckName.
  Status CheckName() { return file_.CheckName(); }
  // With `on`, blocks are reserved ahead of the data.
  void set_reserve(bool on) { reserve_ = on; }

  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  [[nodiscard]] bool can_write_direct() const {
    return !is_slow_ && file_.can_write_direct();
  }
  // Bytes in the file, and with those of the batch.
  [[nodiscard]] std::uint64_t written() const { return written_; }
  [[nodiscard]] std::uint64_t length() const { return written_ + size_; }

 private:
  [[nodiscard]] std::byte* begin() const {
    return memory_.data() + written_ % kPage;
  }
  void Grow(std::uint64_t n);
  void NoteDirect(std::uint64_t n, std::chrono::steady_clock::duration time);
  void ReserveAhead(std::uint64_t end);
  // Writes `bytes` behind what is written.
  Status Put(std::span<const std::byte> bytes);
  Status PutPieces(std::span<const std::byte> bytes, std::uint64_t offset,
                   bool direct);

  const std::function<void()> progress_;
  const std::uint64_t min_direct_rate_;
  File file_;
  bool reserve_ = true;
  std::uint64_t reserved_ = 0;  // Blocks are reserved up to here.
  std::uint64_t piece_ = kMinPiece;
  // Direct writes since the last look at their rate.
  std::uint64_t direct_bytes_ = 0;
  std::chrono::steady_clock::duration direct_time_{};
  bool is_slow_ = false;

  // The batch: size_ bytes at begin(), for the file from written_ on.
  HugeMemory memory_;
  std::uint64_t size_ = 0;
  std::uint64_t written_ = 0;
};

}  // namespace tdbg
