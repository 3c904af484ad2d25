// RemoteFiles is what an object store holds of a writer: complete files, which
// never change, read by ranges.
//
// Implements docs/format.md, "A run in an object store".  Whoever follows the
// manifests tells which files there are.  Bytes that were fetched are kept up
// to a limit, those that came with the list for ever.
//
// When a range cannot be fetched, every read fails until that was taken note
// of: a reader that took it for damage would be wrong.
//
// Thread safety: all of it, but for Fetch, which is called by one thread at a
// time if one thread at a time reads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "reader/directory.h"

namespace tdbg {

class RemoteFiles {
 public:
  RemoteFiles() = default;
  virtual ~RemoteFiles() = default;
  RemoteFiles(const RemoteFiles&) = delete;
  RemoteFiles& operator=(const RemoteFiles&) = delete;

  // Bytes of a file, and where they lie in it.
  using Piece = std::pair<std::uint64_t, std::string>;

  // There is a file of this size, of which some bytes are known.
  // REQUIRES: the pieces lie within it.
  void Add(const std::string& name, std::uint64_t size,
           std::vector<Piece> pieces);
  // How the writer is, and whether all that it wrote is there.
  void Tell(std::string commit_page, std::optional<Liveness> liveness,
            bool is_whole);

  // --- For RemoteDirectory ---

  [[nodiscard]] std::optional<std::uint64_t> SizeOf(
      const std::string& name) const;
  [[nodiscard]] std::vector<std::string> Names() const;
  [[nodiscard]] std::uint64_t CountBytes() const;
  [[nodiscard]] std::int64_t version() const;
  [[nodiscard]] std::optional<Liveness> liveness() const;
  [[nodiscard]] bool is_whole() const;
  Status Read(const std::string& name, std::uint64_t offset,
              std::span<std::byte> out);
  void Expect(std::span<const FileRange> ranges);

  // Why a range could not be fetched, since this was asked last.
  Status TakeFailure();

 protected:
  // Fills each of `out` with the bytes of its range.
  virtual Status Fetch(std::span<const FileRange> ranges,
                       std::span<const std::span<std::byte>> out) = 0;

 private:
  // Fetched bytes are kept up to so many, in pieces of at most as many.
  static constexpr std::uint64_t kKept = 64 << 20;
  // What is fetched at least; more where a file is read from its beginning on.
  static constexpr std::uint64_t kLeast = 64 << 10;
  static constexpr std::uint64_t kMost = 4 << 20;
  // Ranges so close to each other are fetched as one.
  static constexpr std::uint64_t kGap = 32 << 10;

  using Bytes = std::vector<std::byte>;
  struct Kept {
    std::string name;
    std::uint64_t offset = 0;
    Bytes bytes;
  };
  using KeptList = std::list<Kept>;  // The one that was used last comes first.
  struct File {
    std::uint64_t size = 0;
    std::map<std::uint64_t, std::string> known;
    std::map<std::uint64_t, KeptList::iterator> kept;
    std::uint64_t fetched_to = 0;
    std::uint64_t ahead = kLeast;
  };

  // The known bytes of a range, if all are.
  [[nodiscard]] std::optional<std::span<const std::byte>> Find(
      File& file, std::uint64_t offset, std::uint64_t n) TDBG_REQUIRES(mutex_);
  void Keep(Kept kept) TDBG_REQUIRES(mutex_);
  // How much to fetch for `n` bytes that are asked for.
  static std::uint64_t Ahead(File* file, std::uint64_t offset, std::uint64_t n);
  // The ranges that are not known, as few as possible.
  std::vector<FileRange> Missing(std::span<const FileRange> ranges);
  Status FetchNow(std::span<const FileRange> ranges,
                  std::span<const std::span<std::byte>> out);

  mutable Mutex mutex_;
  std::map<std::string, File> files_ TDBG_GUARDED_BY(mutex_);
  KeptList kept_ TDBG_GUARDED_BY(mutex_);
  std::uint64_t n_kept_ TDBG_GUARDED_BY(mutex_) = 0;
  std::string commit_page_ TDBG_GUARDED_BY(mutex_);
  std::optional<Liveness> liveness_ TDBG_GUARDED_BY(mutex_);
  bool is_whole_ TDBG_GUARDED_BY(mutex_) = false;
  std::int64_t version_ TDBG_GUARDED_BY(mutex_) = 0;
  Status failure_ TDBG_GUARDED_BY(mutex_);
};

// The directory of a writer in an object store.
//
// Thread safety: none.
class RemoteDirectory final : public Directory {
 public:
  explicit RemoteDirectory(std::shared_ptr<RemoteFiles> files)
      : files_(std::move(files)) {}

  [[nodiscard]] std::unique_ptr<FileBytes> File(
      const std::string& name) const override;
  [[nodiscard]] Result<std::uint64_t> SizeOf(
      const std::string& name) const override;
  // Files of a store are never replaced.
  [[nodiscard]] Result<std::uint64_t> InodeOf(
      const std::string& /*name*/) const override {
    return std::uint64_t{0};
  }
  Status ForEachName(const VisitName& visit) const override;
  [[nodiscard]] std::uint64_t CountBytes() const override {
    return files_->CountBytes();
  }
  [[nodiscard]] std::optional<std::int64_t> Version() const override {
    return files_->version();
  }
  [[nodiscard]] bool ShowsAll() const override { return files_->is_whole(); }
  [[nodiscard]] std::optional<Liveness> ToldLiveness() const override {
    return files_->liveness();
  }
  [[nodiscard]] bool IsFar() const override { return true; }
  void Expect(std::span<const FileRange> ranges) const override {
    files_->Expect(ranges);
  }

 private:
  const std::shared_ptr<RemoteFiles> files_;
};

}  // namespace tdbg
