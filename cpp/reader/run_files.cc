#include "reader/run_files.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "reader/local_directory.h"

namespace tdbg {
namespace {

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

// The last part of a path.
std::string NameIn(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return std::string(path.substr(path.rfind('/') + 1));
}

}  // namespace

Result<RunFiles> RunFiles::Open(std::string directory) {
  if (!ParseName(NameIn(directory))) return Of(nullptr, directory);
  auto opened = LocalDirectory::Open(directory);
  if (!opened.ok()) return opened.status();
  return Of(std::move(opened).value(), directory);
}

Result<RunFiles> RunFiles::Of(std::unique_ptr<Directory> directory,
                              const std::string& path) {
  const auto place = ParseName(NameIn(path));
  if (!place) {
    return Status::InvalidArgument(
        path + ": a writer directory is named <role>-<rank>-<generation>");
  }
  return RunFiles(std::move(directory), *place);
}

void RunFiles::NoteRefusal(const std::string& name,
                           const Status& refusal) const {
  const int error = refusal.system_error();
  if (refusal.ok() || error == ENOENT || error == ENOTDIR || !refusal_.ok()) {
    return;
  }
  refusal_ = Status::IoError(name + ": " + std::strerror(error), error);
}

std::optional<std::uint64_t> RunFiles::ShardSize(std::uint32_t number) const {
  const std::string name = ShardName(number, ".tds");
  const auto size = directory_->SizeOf(name);
  if (size.ok()) return size.value();
  NoteRefusal(name, size.status());
  return std::nullopt;
}

void RunFiles::List() {
  ++n_listings_;
  numbers_.clear();
  last_index_ = 0;
  const Status status = directory_->ForEachName([this](const char* name) {
    if (const auto shard = ParseShardName(name, ".tds")) {
      numbers_.push_back(*shard);
    } else if (const auto index = ParseShardName(name, ".tdi")) {
      last_index_ = std::max(last_index_, *index);
    }
  });
  std::sort(numbers_.begin(), numbers_.end());
  NoteRefusal("the list of shards", status);
  if (!status.ok()) listed_.reset();  // Once more, next time.
}

void RunFiles::Refresh() {
  const auto version = directory_->Version();
  if (version && version == listed_) return;
  listed_ = version;
  List();
}

std::uint32_t RunFiles::LastIndex() {
  Refresh();
  return last_index_;
}

bool RunFiles::HasIndex(std::uint32_t number) const {
  const std::string name = ShardName(number, ".tdi");
  const auto size = directory_->SizeOf(name);
  if (!size.ok()) NoteRefusal(name, size.status());
  return size.ok();
}

std::optional<std::uint32_t> RunFiles::ShardAfter(std::uint32_t number) {
  Refresh();
  const auto next = std::upper_bound(numbers_.begin(), numbers_.end(), number);
  if (next == numbers_.end()) return std::nullopt;
  return *next;
}

std::vector<std::uint32_t> RunFiles::Replaced(
    const std::vector<std::pair<std::uint32_t, std::uint64_t>>& inode_of) {
  std::vector<std::uint32_t> replaced;
  Refresh();
  if (n_listings_ == compared_at_) return replaced;
  compared_at_ = n_listings_;
  for (const auto& [number, opened] : inode_of) {
    const std::string name = ShardName(number, ".tds");
    const auto inode = directory_->InodeOf(name);
    if (!inode.ok()) NoteRefusal(name, inode.status());
    if (inode.ok() ? inode.value() != opened
                   : inode.status().system_error() == ENOENT) {
      replaced.push_back(number);
    }
  }
  return replaced;
}

}  // namespace tdbg
