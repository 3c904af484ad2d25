// Disks and network interfaces of the host: /proc/diskstats, /proc/net/dev and
// the counters of InfiniBand ports.
//
// Thread safety: values and pure functions; Disks and Networks belong to one
// thread at a time.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sampler/kernel_file.h"
#include "sampler/profile_rows.h"

namespace tdbg {

// The totals of one device; `time` and the speed of a link are not filled in.
using OnDisk = std::function<void(std::string_view name, const DiskRow&)>;
using OnNetwork = std::function<void(std::string_view name, const NetworkRow&)>;
void ParseDisks(std::string_view text, const OnDisk& on_disk);
void ParseNetworks(std::string_view text, const OnNetwork& on_network);

// The bits per second that "100 Gb/sec (4X EDR)" says.
[[nodiscard]] std::uint64_t ParseInfinibandRate(std::string_view text);

// The names in a directory, in order, but for those that begin with a dot.
[[nodiscard]] std::vector<std::string> NamesIn(const std::string& directory);

// Devices that are sampled, at most; those that come later are left out.
inline constexpr std::size_t kMaxDevices = 64;

// Whole disks that were read or written since boot.  Partitions are part of
// their disk; loop devices, and disks in memory, are none.
class Disks {
 public:
  // `root` stands before "/proc" and "/sys".
  explicit Disks(std::string root);
  // False if they cannot be read.
  bool Sample(std::int64_t time, TextBuffer* buffer, const OnDisk& on_disk);
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  [[nodiscard]] bool IsDisk(std::string_view name) const;

  const std::string root_;
  KernelFile file_;
  std::map<std::string, bool, std::less<>> is_disk_;  // Seen so far.
};

// Interfaces of this network namespace that have carried something, but for the
// ports of a bridge: what they carry is the bridge's.  InfiniBand ports, whose
// traffic passes by the interfaces, are called <device>:<port>.
class Networks {
 public:
  explicit Networks(std::string root);
  bool Sample(std::int64_t time, TextBuffer* buffer,
              const OnNetwork& on_network);
  [[nodiscard]] std::vector<std::string> names() const;

 private:
  // A port of an InfiniBand device: the counters of a NetworkRow in its order.
  struct Port {
    std::string name;
    std::vector<KernelFile> counters;
    std::uint64_t bits_per_second;
  };
  struct Interface {
    bool is_sampled = false;
    std::uint64_t bits_per_second = kNotMeasured;
    std::int64_t asked_at = 0;  // For its speed, which may come later.
  };
  void FindPorts(TextBuffer* buffer);
  Interface& Find(std::string_view name);
  // Asks at most once a minute, as long as it is not known.
  std::uint64_t SpeedOf(std::string_view name, std::int64_t time,
                        Interface* interface) const;

  const std::string root_;
  KernelFile file_;
  std::map<std::string, Interface, std::less<>> interfaces_;
  std::vector<Port> ports_;
  bool has_found_ports_ = false;
};

}  // namespace tdbg
