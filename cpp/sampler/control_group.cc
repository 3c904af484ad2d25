#include "sampler/control_group.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tdbg {
namespace {

// Groups are not nested deeper, and a file of the kernel's has no more lines.
constexpr std::size_t kMaxLevels = 64;
constexpr std::size_t kMaxLines = 65536;
// Version 1 says "no limit" by the largest multiple of a page.
constexpr std::uint64_t kNoLimit = 1ULL << 62;

bool HasWord(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == word) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

// mountinfo writes blanks and backslashes as \ooo.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '7'
                 ? text[at] - '0'
                 : -1;
    };
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 &&
        digit(i + 3) >= 0) {
      plain += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 +
                                 digit(i + 3));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::optional<GroupMount> ParseGroupMount(std::string_view line) {
  GroupMount mount;
  SkipWords(&line, 3);  // Ids of the mount and its parent; the device.
  mount.root = Unescaped(TakeWord(&line));
  mount.point = Unescaped(TakeWord(&line));
  const std::size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  line.remove_prefix(dash + 3);
  const std::string_view type = TakeWord(&line);
  SkipWords(&line, 1);  // The source.
  mount.controllers = TakeWord(&line);
  mount.is_version_2 = type == "cgroup2";
  if (!mount.is_version_2 && type != "cgroup") return std::nullopt;
  return mount;
}

bool IsBelow(std::string_view path, std::string_view root) {
  return path.starts_with(root) &&
         (path.size() == root.size() || path[root.size()] == '/');
}

// The path of a group below the point where its hierarchy is mounted.  One that
// is not seen there (a container that sees its host's name, or a process that
// was moved out) is taken for the group at the point itself.
std::string PathBelow(const GroupMount& mount, std::string_view path) {
  if (path.find("/..") != std::string_view::npos) return {};
  if (mount.root == "/") return path == "/" ? "" : std::string(path);
  if (IsBelow(path, mount.root)) {
    return std::string(path.substr(mount.root.size()));
  }
  return {};
}

bool IsThere(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

KernelFile Record(std::string path) {
  return KernelFile(std::move(path), KernelFile::Content::kRecord);
}

std::string_view Contents(const std::string& path, TextBuffer* buffer) {
  return ReadOnce(path, buffer).value_or(std::string_view());
}

}  // namespace

std::vector<GroupMembership> ParseMemberships(std::string_view text) {
  std::vector<GroupMembership> memberships;
  while (!text.empty() && memberships.size() < kMaxLevels) {
    const std::string_view line = TakeLine(&text);
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) {
      continue;
    }
    const std::string_view path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    memberships.push_back(
        {.controllers = std::string(line.substr(first + 1, second - first - 1)),
         .path = std::string(path)});
  }
  return memberships;
}

std::vector<GroupMount> ParseGroupMounts(std::string_view text) {
  std::vector<GroupMount> mounts;
  for (std::size_t n = 0; !text.empty() && n < kMaxLines; ++n) {
    auto mount = ParseGroupMount(TakeLine(&text));
    if (mount) mounts.push_back(*std::move(mount));
  }
  return mounts;
}

GroupDirectories FindGroups(const std::vector<GroupMembership>& memberships,
                            const std::vector<GroupMount>& mounts,
                            std::string_view controller) {
  // A controller is either in a hierarchy of version 1, or in that of
  // version 2.
  const auto find = [&](bool is_version_2) {
    return std::find_if(
        memberships.begin(), memberships.end(), [&](const auto& each) {
          return is_version_2 ? each.controllers.empty()
                              : HasWord(each.controllers, controller);
        });
  };
  GroupDirectories groups;
  auto membership = find(false);
  if (membership == memberships.end()) {
    groups.is_version_2 = true;
    membership = find(true);
  }
  if (membership == memberships.end()) return groups;
  const auto mount =
      std::find_if(mounts.begin(), mounts.end(), [&](const auto& each) {
        return each.is_version_2 == groups.is_version_2 &&
               (groups.is_version_2 || HasWord(each.controllers, controller));
      });
  if (mount == mounts.end()) return groups;
  std::string below = PathBelow(*mount, membership->path);
  while (groups.paths.size() < kMaxLevels) {
    groups.paths.push_back(mount->point + below);
    if (below.empty()) break;
    below.resize(std::min(below.rfind('/'), below.size()));
  }
  return groups;
}

std::uint64_t ParseMemoryLimit(std::string_view text) {
  const std::uint64_t limit = FirstNumber(text);
  return limit < kNoLimit ? limit : kNotMeasured;
}

double ParseQuota(std::string_view text) {
  const std::uint64_t quota = TakeNumber(&text);
  const std::uint64_t period = TakeNumber(&text);
  if (quota == kNotMeasured || period == kNotMeasured || period == 0) {
    return std::numeric_limits<double>::infinity();
  }
  return static_cast<double>(quota) / static_cast<double>(period);
}

Throttling ParseThrottling(std::string_view text) {
  Throttling throttling;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    const std::string_view key = TakeWord(&line);
    const std::uint64_t value = TakeNumber(&line);
    if (key == "nr_periods") throttling.periods = value;
    if (key == "nr_throttled") throttling.throttled = value;
    if (key == "throttled_usec") throttling.throttled_ns = Scaled(value, 1000);
    if (key == "throttled_time") throttling.throttled_ns = value;
  }
  return throttling;
}

std::uint64_t ParseFileBytes(std::string_view text, bool is_version_2) {
  const std::string_view prefix = is_version_2 ? "" : "total_";
  std::uint64_t active = kNotMeasured;
  std::uint64_t inactive = kNotMeasured;
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    std::string_view key = TakeWord(&line);
    if (!key.starts_with(prefix)) continue;
    key.remove_prefix(prefix.size());
    if (key == "active_file") active = TakeNumber(&line);
    if (key == "inactive_file") inactive = TakeNumber(&line);
  }
  return Sum(active, inactive);
}

// --- ControlGroup ------------------------------------------------------------

void ControlGroup::LookUp(TextBuffer* buffer) {
  // The table of mounts can be long; it is read when the process was moved.
  const std::string text(Contents(root_ + "/proc/self/cgroup", buffer));
  if (text != memberships_text_) {
    memberships_text_ = text;
    memberships_ = ParseMemberships(text);
    mounts_ =
        ParseGroupMounts(Contents(root_ + "/proc/self/mountinfo", buffer));
    for (GroupMount& mount : mounts_) mount.point.insert(0, root_);
    LookUpStalls(buffer);
  }
  const auto groups = [this](std::string_view controller) {
    GroupDirectories found = FindGroups(memberships_, mounts_, controller);
    std::erase_if(found.paths, [](const auto& path) { return !IsThere(path); });
    return found;
  };
  LookUpMemory(groups("memory"), buffer);
  LookUpProcessor(groups("cpu"), buffer);
}

void ControlGroup::LookUpMemory(const GroupDirectories& groups,
                                TextBuffer* buffer) {
  memory_is_version_2_ = groups.is_version_2;
  memory_limit_ = kNotMeasured;
  if (groups.paths.empty()) return;
  const std::string limit =
      groups.is_version_2 ? "/memory.max" : "/memory.limit_in_bytes";
  std::string tightest = groups.paths.front();
  for (const std::string& path : groups.paths) {
    const std::uint64_t own = ParseMemoryLimit(Contents(path + limit, buffer));
    // Of equal ones the outer group is full first.
    if (own == kNotMeasured || own > memory_limit_) continue;
    memory_limit_ = own;
    tightest = path;
  }
  const auto file = [&](const std::string& directory, const char* v2,
                        const char* v1) {
    return Record(directory + (groups.is_version_2 ? v2 : v1));
  };
  memory_used_ = file(tightest, "/memory.current", "/memory.usage_in_bytes");
  memory_stat_ = file(tightest, "/memory.stat", "/memory.stat");
  // Version 1 counts kills in the group of the process that was killed only.
  memory_events_ = file(groups.is_version_2 ? tightest : groups.paths.front(),
                        "/memory.events", "/memory.oom_control");
}

void ControlGroup::LookUpProcessor(const GroupDirectories& groups,
                                   TextBuffer* buffer) {
  quota_cores_ = std::numeric_limits<double>::infinity();
  if (groups.paths.empty()) return;
  std::string tightest = groups.paths.front();
  for (const std::string& path : groups.paths) {
    std::string text;
    if (groups.is_version_2) {
      text = Contents(path + "/cpu.max", buffer);
    } else {
      text = Contents(path + "/cpu.cfs_quota_us", buffer);
      text += ' ';
      text += Contents(path + "/cpu.cfs_period_us", buffer);
    }
    const double own = ParseQuota(text);
    if (own >= quota_cores_) continue;
    quota_cores_ = own;
    tightest = path;
  }
  cpu_stat_ = Record(tightest + "/cpu.stat");
}

void ControlGroup::LookUpStalls(TextBuffer* buffer) {
  path_.clear();
  for (const GroupMembership& each : memberships_) {
    if (path_.size() < each.path.size()) path_ = each.path;
  }
  const GroupDirectories unified = FindGroups(memberships_, mounts_, "");
  const std::string host = root_ + "/proc/pressure/";
  const auto file = [&](const std::string& name) {
    // The group of the whole host has no type.
    if (!unified.paths.empty() &&
        IsThere(unified.paths.front() + "/cgroup.type")) {
      std::string own = unified.paths.front() + "/" + name + ".pressure";
      if (ReadOnce(own, buffer)) return Record(std::move(own));
    }
    return Record(host + name);
  };
  cpu_pressure_ = file("cpu");
  io_pressure_ = file("io");
  memory_pressure_ = file("memory");
}

ControlGroup::Reading ControlGroup::Read(std::int64_t time,
                                         TextBuffer* buffer) {
  if (looked_up_at_ == 0 || time - looked_up_at_ >= kLookupNs) {
    looked_up_at_ = time;
    LookUp(buffer);
  }
  const auto text = [buffer](KernelFile* file) {
    return file->Read(buffer).value_or(std::string_view());
  };
  Reading reading;
  reading.memory_limit = memory_limit_;
  reading.quota_cores = quota_cores_;
  const std::uint64_t used = FirstNumber(text(&memory_used_));
  const std::uint64_t files =
      ParseFileBytes(text(&memory_stat_), memory_is_version_2_);
  const bool has_both = used != kNotMeasured && files <= used;
  reading.memory = has_both ? used - files : used;
  reading.oom_kills = NumberOf(text(&memory_events_), "oom_kill");
  reading.throttling = ParseThrottling(text(&cpu_stat_));
  return reading;
}

ControlGroup::Stalls ControlGroup::ReadStalls(TextBuffer* buffer) {
  const auto pressure = [buffer](KernelFile* file) {
    return ParsePressure(file->Read(buffer).value_or(std::string_view()));
  };
  return {.cpu = pressure(&cpu_pressure_),
          .io = pressure(&io_pressure_),
          .memory = pressure(&memory_pressure_)};
}

}  // namespace tdbg
