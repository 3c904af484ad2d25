#include "reader/run_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace tdbg {
namespace {

// The times of files are those of the last tick of the kernel's clock.
constexpr std::int64_t kClockSlackNs = 2'000'000'000;

std::optional<std::uint32_t> ParseNumber(std::string_view digits) {
  std::uint32_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return number;
}

std::optional<ShardPlace> ParseName(std::string_view name) {
  const std::size_t first = name.find('-');
  if (first == std::string_view::npos) return std::nullopt;
  const std::size_t second = name.find('-', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view role = name.substr(0, first);
  const auto rank = ParseNumber(name.substr(first + 1, second - first - 1));
  const auto generation = ParseNumber(name.substr(second + 1));
  ShardPlace place;
  if (role == "train") {
    place.role = WriterRole::kTrain;
  } else if (role == "engine") {
    place.role = WriterRole::kEngine;
  } else if (role == "profiler") {
    place.role = WriterRole::kProfiler;
  } else {
    return std::nullopt;
  }
  if (!rank || !generation) return std::nullopt;
  place.rank = *rank;
  place.generation = *generation;
  return place;
}

// The number in a name like 000001.tds, for this ending.
std::optional<std::uint32_t> ParseShardName(const char* name,
                                            const char* ending) {
  const std::string_view text(name);
  if (!text.ends_with(ending)) return std::nullopt;
  const auto number = ParseNumber(text.substr(0, text.size() - 4));
  if (!number || *number == 0 || ShardName(*number, ending) != text) {
    return std::nullopt;
  }
  return number;
}

// Calls `visit(name)` for every entry of the directory.  Returns the errno of
// what failed, or 0.
template <typename Visit>
int ForEachName(int directory, Visit visit) {
  if (directory < 0) return errno;  // Of Directory::descriptor.
  // A descriptor of its own: a listing has a position.
  const int descriptor =
      ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  DIR* listing = ::fdopendir(descriptor);
  if (listing == nullptr) {
    const int error = errno;
    ::close(descriptor);
    return error;
  }
  errno = 0;
  while (const dirent* entry = ::readdir(listing)) {
    visit(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(listing);
  return error;
}

}  // namespace

Result<RunFiles> RunFiles::Open(std::string directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  const std::size_t slash = directory.rfind('/');
  const std::string name =
      slash == std::string::npos ? directory : directory.substr(slash + 1);
  const auto place = ParseName(name);
  if (!place) {
    return Status::InvalidArgument(
        directory + ": a writer directory is named <role>-<rank>-<generation>");
  }
  auto opened = Directory::Open(directory);
  if (!opened.ok()) return opened.status();
  return RunFiles(std::move(opened).value(), *place);
}

void RunFiles::NoteRefusal(const std::string& name, int error) const {
  if (error == 0 || error == ENOENT || error == ENOTDIR || !refusal_.ok()) {
    return;
  }
  refusal_ = Status::IoError(name + ": " + std::strerror(error), error);
}

bool RunFiles::IsThere(const std::string& name, struct stat* about) const {
  const int directory = directory_->descriptor();
  if (directory >= 0 &&
      ::fstatat(directory, name.c_str(), about, AT_SYMLINK_NOFOLLOW) == 0) {
    return true;
  }
  NoteRefusal(name, errno);
  return false;
}

std::optional<std::uint64_t> RunFiles::ShardSize(std::uint32_t number) const {
  struct stat about{};
  if (!IsThere(ShardName(number, ".tds"), &about)) return std::nullopt;
  return static_cast<std::uint64_t>(about.st_size);
}

void RunFiles::List() {
  ++n_listings_;
  numbers_.clear();
  last_index_ = 0;
  const int error =
      ForEachName(directory_->descriptor(), [this](const char* name) {
        if (const auto shard = ParseShardName(name, ".tds")) {
          numbers_.push_back(*shard);
        } else if (const auto index = ParseShardName(name, ".tdi")) {
          last_index_ = std::max(last_index_, *index);
        }
      });
  std::sort(numbers_.begin(), numbers_.end());
  NoteRefusal("the list of shards", error);
  if (error != 0) listed_at_ns_ = 0;  // Once more, next time.
}

void RunFiles::Refresh() {
  struct stat about{};
  const bool known = ::fstat(directory_->descriptor(), &about) == 0;
  const std::int64_t changed =
      std::int64_t{about.st_mtim.tv_sec} * 1'000'000'000 +
      about.st_mtim.tv_nsec;
  if (!known || listed_at_ns_ == 0 || changed > listed_at_ns_ - kClockSlackNs) {
    listed_at_ns_ = WallNs();
    List();
  }
}

std::uint32_t RunFiles::LastIndex() {
  Refresh();
  return last_index_;
}

bool RunFiles::HasIndex(std::uint32_t number) const {
  struct stat about{};
  return IsThere(ShardName(number, ".tdi"), &about);
}

std::optional<std::uint32_t> RunFiles::ShardAfter(std::uint32_t number) {
  Refresh();
  const auto next = std::upper_bound(numbers_.begin(), numbers_.end(), number);
  if (next == numbers_.end()) return std::nullopt;
  return *next;
}

bool RunFiles::AreReplaced(
    const std::vector<std::pair<std::uint32_t, std::uint64_t>>& inode_of) {
  Refresh();
  if (n_listings_ == compared_at_) return false;
  compared_at_ = n_listings_;
  return std::any_of(inode_of.begin(), inode_of.end(), [this](const auto& one) {
    struct stat about{};
    return !IsThere(ShardName(one.first, ".tds"), &about)
               ? errno == ENOENT
               : about.st_ino != one.second;
  });
}

std::uint64_t RunFiles::CountBytes() const {
  std::uint64_t total = 0;
  (void)ForEachName(directory_->descriptor(), [&](const char* name) {
    struct stat about{};
    if (::fstatat(directory_->descriptor(), name, &about,
                  AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(about.st_mode)) {
      total += static_cast<std::uint64_t>(about.st_size);
    }
  });
  return total;
}

}  // namespace tdbg
