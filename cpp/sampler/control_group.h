// The control group around this process: what it may use, what it used and how
// often it was held back; versions 1 and 2, nested, and inside containers.
//
// A group's limits hold for all groups within it, so the tightest one on the
// way up counts: the figures are those of the group that sets it.
//
// Thread safety: values and pure functions; ControlGroup belongs to one thread
// at a time.

#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/host_memory.h"
#include "sampler/kernel_file.h"
#include "sampler/text.h"

namespace tdbg {

// A line of /proc/self/cgroup.
struct GroupMembership {
  std::string controllers;  // Of version 1, with commas; empty: version 2.
  std::string path;
};
[[nodiscard]] std::vector<GroupMembership> ParseMemberships(
    std::string_view text);

// A hierarchy of groups in /proc/self/mountinfo.
struct GroupMount {
  bool is_version_2 = false;
  std::string controllers;  // Of version 1: the options of the mount.
  std::string root;         // The group that is seen at `point`.
  std::string point;
};
[[nodiscard]] std::vector<GroupMount> ParseGroupMounts(std::string_view text);

// The directories of the groups around the process that `controller` looks
// after, from its own one up.
struct GroupDirectories {
  bool is_version_2 = false;
  std::vector<std::string> paths;
};
[[nodiscard]] GroupDirectories FindGroups(
    const std::vector<GroupMembership>& memberships,
    const std::vector<GroupMount>& mounts, std::string_view controller);

// A limit in bytes; kNotMeasured: there is none.
[[nodiscard]] std::uint64_t ParseMemoryLimit(std::string_view text);
// Cores that "<quota> <period>" grants; infinite: "max", "-1" or no such text.
[[nodiscard]] double ParseQuota(std::string_view text);

// Totals of cpu.stat.
struct Throttling {
  std::uint64_t periods = kNotMeasured;
  std::uint64_t throttled = kNotMeasured;
  std::uint64_t throttled_ns = kNotMeasured;
};
[[nodiscard]] Throttling ParseThrottling(std::string_view text);

// Bytes of files that memory.stat says a group holds: they are given back
// before anything is killed.
[[nodiscard]] std::uint64_t ParseFileBytes(std::string_view text,
                                           bool is_version_2);

class ControlGroup {
 public:
  struct Reading {
    std::uint64_t memory = kNotMeasured;  // Without the files it holds.
    std::uint64_t memory_limit = kNotMeasured;
    std::uint64_t oom_kills = kNotMeasured;
    Throttling throttling;
    // Infinite: there is no quota.
    double quota_cores = std::numeric_limits<double>::infinity();
  };
  struct Stalls {
    Pressure cpu, io, memory;
  };

  // Groups and their limits are looked up again after so long.
  static constexpr std::int64_t kLookupNs = 10'000'000'000;

  // `root` stands before "/proc" and the points of mounts.
  explicit ControlGroup(std::string root) : root_(std::move(root)) {}

  [[nodiscard]] Reading Read(std::int64_t time, TextBuffer* buffer);
  // Stalls of the own group, where it is of version 2 and not the whole host;
  // else of the host.
  [[nodiscard]] Stalls ReadStalls(TextBuffer* buffer);
  // The path of the own group, as the kernel names it; empty: unknown.
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  void LookUp(TextBuffer* buffer);
  void LookUpMemory(const GroupDirectories& groups, TextBuffer* buffer);
  void LookUpProcessor(const GroupDirectories& groups, TextBuffer* buffer);
  void LookUpStalls(TextBuffer* buffer);

  const std::string root_;
  std::int64_t looked_up_at_ = 0;
  std::string memberships_text_;
  std::vector<GroupMembership> memberships_;
  std::vector<GroupMount> mounts_;
  std::string path_;

  bool memory_is_version_2_ = false;
  std::uint64_t memory_limit_ = kNotMeasured;
  double quota_cores_ = std::numeric_limits<double>::infinity();
  KernelFile memory_used_, memory_stat_, memory_events_, cpu_stat_;
  KernelFile cpu_pressure_, io_pressure_, memory_pressure_;
};

}  // namespace tdbg
