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

// Calls `visit(name)` for every entry of the directory.
template <typename Visit>
void ForEachName(int directory, Visit visit) {
  // A descriptor of its own: a listing has a position.
  const int descriptor =
      ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  DIR* listing = ::fdopendir(descriptor);
  if (listing == nullptr) {
    ::close(descriptor);
    return;
  }
  while (const dirent* entry = ::readdir(listing)) visit(entry->d_name);
  ::closedir(listing);
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

std::optional<std::uint64_t> RunFiles::ShardSize(std::uint32_t number) const {
  struct stat about{};
  if (::fstatat(directory_->descriptor(), ShardName(number, ".tds").c_str(),
                &about, AT_SYMLINK_NOFOLLOW) != 0) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(about.st_size);
}

void RunFiles::List() {
  numbers_.clear();
  last_index_ = 0;
  ForEachName(directory_->descriptor(), [this](const char* name) {
    if (const auto shard = ParseShardName(name, ".tds")) {
      numbers_.push_back(*shard);
    } else if (const auto index = ParseShardName(name, ".tdi")) {
      last_index_ = std::max(last_index_, *index);
    }
  });
  std::sort(numbers_.begin(), numbers_.end());
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
  return ::fstatat(directory_->descriptor(), ShardName(number, ".tdi").c_str(),
                   &about, AT_SYMLINK_NOFOLLOW) == 0;
}

std::optional<std::uint32_t> RunFiles::ShardAfter(std::uint32_t number) {
  Refresh();
  const auto next = std::upper_bound(numbers_.begin(), numbers_.end(), number);
  if (next == numbers_.end()) return std::nullopt;
  return *next;
}

std::uint64_t RunFiles::CountBytes() const {
  std::uint64_t total = 0;
  ForEachName(directory_->descriptor(), [&](const char* name) {
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
