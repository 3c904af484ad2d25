#include "reader/remote_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "base/check.h"

namespace tdbg {
namespace {

constexpr const char* kCommit = "COMMIT";

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The piece of `pieces`, which are by offset, that holds a range.
template <typename Pieces, typename BytesOfPiece>
std::optional<std::span<const std::byte>> FindPiece(const Pieces& pieces,
                                                    std::uint64_t offset,
                                                    std::uint64_t n,
                                                    BytesOfPiece bytes_of) {
  auto piece = pieces.upper_bound(offset);
  if (piece == pieces.begin()) return std::nullopt;
  --piece;
  const std::span<const std::byte> bytes = bytes_of(piece->second);
  const std::uint64_t within = offset - piece->first;
  if (within > bytes.size() || n > bytes.size() - within) return std::nullopt;
  return bytes.subspan(within, n);
}

Status NotThere(const std::string& name) {
  return Status::IoError(name + ": is not there", ENOENT);
}

// A file of a RemoteDirectory.
class RemoteFile final : public FileBytes {
 public:
  RemoteFile(RemoteFiles* files, std::string name)
      : files_(files), name_(std::move(name)) {}

  Result<std::uint64_t> Size() override {
    const auto size = files_->SizeOf(name_);
    if (!size) return NotThere(name_);
    return *size;
  }
  std::uint64_t AllocatedBytes() override {
    return files_->SizeOf(name_).value_or(0);
  }
  Status Read(std::uint64_t offset, std::span<std::byte> out) override {
    return files_->Read(name_, offset, out);
  }
  // RemoteFiles reads ahead itself.
  [[nodiscard]] std::uint64_t ReadAhead() const override { return 0; }
  std::uint64_t NextData(std::uint64_t offset, std::uint64_t /*end*/) override {
    return offset;
  }
  [[nodiscard]] std::uint64_t inode() const override { return 0; }
  std::shared_ptr<const MappedFile> Map(std::uint64_t /*n_bytes*/) override {
    return nullptr;
  }
  void Close() override {}

 private:
  RemoteFiles* const files_;
  const std::string name_;
};

}  // namespace

void RemoteFiles::Add(const std::string& name, std::uint64_t size,
                      std::vector<Piece> pieces) {
  const MutexLock lock(mutex_);
  File& file = files_[name];
  file.size = size;
  for (auto& [offset, bytes] : pieces) {
    file.known.insert_or_assign(offset, std::move(bytes));
  }
  ++version_;
}

void RemoteFiles::Tell(std::string commit_page,
                       std::optional<Liveness> liveness, bool is_whole) {
  const MutexLock lock(mutex_);
  commit_page_ = std::move(commit_page);
  liveness_ = liveness;
  is_whole_ = is_whole;
}

std::optional<std::uint64_t> RemoteFiles::SizeOf(
    const std::string& name) const {
  const MutexLock lock(mutex_);
  if (name == kCommit && !commit_page_.empty()) return commit_page_.size();
  const auto found = files_.find(name);
  if (found == files_.end()) return std::nullopt;
  return found->second.size;
}

std::vector<std::string> RemoteFiles::Names() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> names;
  names.reserve(files_.size());
  for (const auto& [name, file] : files_) names.push_back(name);
  return names;
}

std::uint64_t RemoteFiles::CountBytes() const {
  const MutexLock lock(mutex_);
  std::uint64_t total = 0;
  for (const auto& [name, file] : files_) total += file.size;
  return total;
}

std::int64_t RemoteFiles::version() const {
  const MutexLock lock(mutex_);
  return version_;
}

std::optional<Liveness> RemoteFiles::liveness() const {
  const MutexLock lock(mutex_);
  return liveness_;
}

bool RemoteFiles::is_whole() const {
  const MutexLock lock(mutex_);
  return is_whole_;
}

Status RemoteFiles::TakeFailure() {
  const MutexLock lock(mutex_);
  return std::exchange(failure_, Status::Ok());
}

std::optional<std::span<const std::byte>> RemoteFiles::Find(
    File& file, std::uint64_t offset, std::uint64_t n) {
  if (const auto known = FindPiece(file.known, offset, n, BytesOf)) {
    return known;
  }
  KeptList::iterator used = kept_.end();
  const auto kept =
      FindPiece(file.kept, offset, n, [&](KeptList::iterator piece) {
        used = piece;
        return std::span<const std::byte>(piece->bytes);
      });
  if (kept) kept_.splice(kept_.begin(), kept_, used);
  return kept;
}

void RemoteFiles::Keep(Kept kept) {
  File& file = files_[kept.name];
  const auto replaced = file.kept.find(kept.offset);
  if (replaced != file.kept.end()) {
    n_kept_ -= replaced->second->bytes.size();
    kept_.erase(replaced->second);
  }
  n_kept_ += kept.bytes.size();
  kept_.push_front(std::move(kept));
  file.kept[kept_.front().offset] = kept_.begin();
  while (n_kept_ > kKept && kept_.size() > 1) {
    const Kept& last = kept_.back();
    n_kept_ -= last.bytes.size();
    files_[last.name].kept.erase(last.offset);
    kept_.pop_back();
  }
}

std::uint64_t RemoteFiles::Ahead(File* file, std::uint64_t offset,
                                 std::uint64_t n) {
  const bool goes_on = offset != 0 && offset <= file->fetched_to &&
                       offset + n > file->fetched_to;
  file->ahead = goes_on ? std::min(2 * file->ahead, kMost) : kLeast;
  const std::uint64_t end =
      std::min(offset + std::max(n, file->ahead), file->size);
  file->fetched_to = end;
  return end - offset;
}

Status RemoteFiles::Read(const std::string& name, std::uint64_t offset,
                         std::span<std::byte> out) {
  FileRange range{.name = name, .offset = offset, .n = out.size()};
  {
    const MutexLock lock(mutex_);
    if (name == kCommit) {
      const auto page = BytesOf(commit_page_);
      if (page.empty()) return NotThere(name);
      if (offset > page.size() || out.size() > page.size() - offset) {
        return Status::Corruption(name + ": is too short", page.size());
      }
      std::ranges::copy(page.subspan(offset, out.size()), out.begin());
      return Status::Ok();
    }
    if (!failure_.ok()) return failure_;
    const auto found = files_.find(name);
    if (found == files_.end()) return NotThere(name);
    File& file = found->second;
    if (offset > file.size || out.size() > file.size - offset) {
      return Status::Corruption(
          name + ": the file ends at " + std::to_string(file.size), file.size);
    }
    if (const auto bytes = Find(file, offset, out.size())) {
      std::ranges::copy(*bytes, out.begin());
      return Status::Ok();
    }
    range.n = Ahead(&file, offset, out.size());
  }
  if (range.n == out.size()) return FetchNow(std::span(&range, 1), {&out, 1});
  Kept kept{.name = name, .offset = offset, .bytes = Bytes(range.n)};
  const std::span<std::byte> bytes(kept.bytes);
  TDBG_RETURN_IF_ERROR(FetchNow(std::span(&range, 1), {&bytes, 1}));
  std::ranges::copy(bytes.first(out.size()), out.begin());
  const MutexLock lock(mutex_);
  Keep(std::move(kept));
  return Status::Ok();
}

Status RemoteFiles::FetchNow(std::span<const FileRange> ranges,
                             std::span<const std::span<std::byte>> out) {
  const Status status = Fetch(ranges, out);
  if (!status.ok()) {
    const MutexLock lock(mutex_);
    failure_ = status;
  }
  return status;
}

std::vector<FileRange> RemoteFiles::Missing(std::span<const FileRange> ranges) {
  std::vector<FileRange> sorted;
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return {};
    for (const FileRange& range : ranges) {
      const auto found = files_.find(range.name);
      if (found == files_.end()) continue;
      File& file = found->second;
      const bool is_within =
          range.offset <= file.size && range.n <= file.size - range.offset;
      if (range.n == 0 || !is_within) continue;
      if (!Find(file, range.offset, range.n)) sorted.push_back(range);
    }
  }
  std::ranges::sort(sorted, {}, [](const FileRange& range) {
    return std::tie(range.name, range.offset);
  });
  std::vector<FileRange> missing;
  std::uint64_t total = 0;
  for (const FileRange& range : sorted) {
    const std::uint64_t end = range.offset + range.n;
    if (!missing.empty() && missing.back().name == range.name) {
      FileRange& last = missing.back();
      const std::uint64_t last_end = last.offset + last.n;
      if (range.offset <= last_end + kGap) {
        const std::uint64_t more = end > last_end ? end - last_end : 0;
        if (total + more > kKept) break;
        total += more;
        last.n += more;
        continue;
      }
    }
    if (total + range.n > kKept) break;  // The rest is read when it is due.
    total += range.n;
    missing.push_back(range);
  }
  return missing;
}

void RemoteFiles::Expect(std::span<const FileRange> ranges) {
  const std::vector<FileRange> missing = Missing(ranges);
  if (missing.empty()) return;
  std::vector<Bytes> pieces;
  std::vector<std::span<std::byte>> out;
  pieces.reserve(missing.size());
  for (const FileRange& range : missing) {
    pieces.emplace_back(range.n);
    out.emplace_back(pieces.back());
  }
  if (!FetchNow(missing, out).ok()) return;  // Whoever reads is told.
  const MutexLock lock(mutex_);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    Keep({.name = missing[i].name,
          .offset = missing[i].offset,
          .bytes = std::move(pieces[i])});
  }
}

std::unique_ptr<FileBytes> RemoteDirectory::File(
    const std::string& name) const {
  return std::make_unique<RemoteFile>(files_.get(), name);
}

Result<std::uint64_t> RemoteDirectory::SizeOf(const std::string& name) const {
  const auto size = files_->SizeOf(name);
  if (!size) return NotThere(name);
  return *size;
}

Status RemoteDirectory::ForEachName(const VisitName& visit) const {
  for (const std::string& name : files_->Names()) visit(name.c_str());
  return Status::Ok();
}

}  // namespace tdbg
