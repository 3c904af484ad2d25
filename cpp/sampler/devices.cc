#include "sampler/devices.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

namespace tdbg {
namespace {

constexpr std::uint64_t kSectorBytes = 512;  // Of diskstats, on every disk.
constexpr std::int64_t kMinuteNs = 60'000'000'000;

bool Exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

}  // namespace

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(directory.c_str()),
                                                 &::closedir);
  if (open == nullptr) return names;
  while (const dirent* entry = ::readdir(open.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void ParseDisks(std::string_view text, const OnDisk& on_disk) {
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    SkipWords(&line, 2);  // Major and minor number.
    const std::string_view name = TakeWord(&line);
    if (name.empty()) continue;
    DiskRow row;
    row.reads = TakeNumber(&line);
    SkipWords(&line, 1);  // Merged.
    row.read_bytes = Scaled(TakeNumber(&line), kSectorBytes);
    SkipWords(&line, 1);  // ms of reading, of all requests together.
    row.writes = TakeNumber(&line);
    SkipWords(&line, 1);
    row.write_bytes = Scaled(TakeNumber(&line), kSectorBytes);
    SkipWords(&line, 2);  // ms of writing; requests under way.
    row.busy_ns = Scaled(TakeNumber(&line), 1'000'000);
    if (row.busy_ns != kNotMeasured) on_disk(name, row);
  }
}

void ParseNetworks(std::string_view text, const OnNetwork& on_network) {
  while (!text.empty()) {
    std::string_view line = TakeLine(&text);
    // The name may stand against the first number: "eth0:123".
    const std::size_t colon = line.rfind(':');
    if (colon == std::string_view::npos) continue;
    std::string_view before = line.substr(0, colon);
    const std::string_view name = TakeWord(&before);
    line.remove_prefix(colon + 1);
    NetworkRow row;
    row.received_bytes = TakeNumber(&line);
    row.received_packets = TakeNumber(&line);
    SkipWords(&line, 6);
    row.sent_bytes = TakeNumber(&line);
    row.sent_packets = TakeNumber(&line);
    if (!name.empty() && row.sent_packets != kNotMeasured) {
      on_network(name, row);
    }
  }
}

std::uint64_t ParseInfinibandRate(std::string_view text) {
  const std::string word(TakeWord(&text));
  const std::string_view unit = TakeWord(&text);
  char* end = nullptr;
  const double rate = std::strtod(word.c_str(), &end);  // "2.5" is one.
  const bool is_number = !word.empty() && *end == '\0';
  if (!is_number || unit != "Gb/sec" || !(rate > 0 && rate < 1e6)) {
    return kNotMeasured;
  }
  return static_cast<std::uint64_t>(rate * 1e9);
}

// --- Disks -------------------------------------------------------------------

Disks::Disks(std::string root)
    : root_(std::move(root)), file_(root_ + "/proc/diskstats") {}

bool Disks::IsDisk(std::string_view name) const {
  for (const std::string_view other : {"loop", "ram", "zram"}) {
    if (name.starts_with(other)) return false;
  }
  const std::string disks = root_ + "/sys/block";
  // A slash in a name of a device is an exclamation mark in that of its folder.
  std::string folder(name);
  std::replace(folder.begin(), folder.end(), '/', '!');
  return !Exists(disks) || Exists(disks + "/" + folder);
}

bool Disks::Sample(std::int64_t time, TextBuffer* buffer,
                   const OnDisk& on_disk) {
  const auto text = file_.Read(buffer);
  if (!text) return false;
  ParseDisks(*text, [&](std::string_view name, const DiskRow& totals) {
    if (totals.reads == 0 && totals.writes == 0) return;
    auto known = is_disk_.find(name);
    if (known == is_disk_.end()) {
      if (is_disk_.size() >= 16 * kMaxDevices) return;
      const bool has_room = names().size() < kMaxDevices;
      known = is_disk_.emplace(name, has_room && IsDisk(name)).first;
    }
    if (!known->second) return;
    DiskRow row = totals;
    row.time = time;
    on_disk(name, row);
  });
  return true;
}

std::vector<std::string> Disks::names() const {
  std::vector<std::string> names;
  for (const auto& [name, is_disk] : is_disk_) {
    if (is_disk) names.push_back(name);
  }
  return names;
}

// --- Networks ----------------------------------------------------------------

Networks::Networks(std::string root)
    : root_(std::move(root)), file_(root_ + "/proc/net/dev") {}

void Networks::FindPorts(TextBuffer* buffer) {
  const std::string devices = root_ + "/sys/class/infiniband";
  for (const std::string& device : NamesIn(devices)) {
    const std::string folder = devices + "/" + device + "/ports/";
    for (const std::string& number : NamesIn(folder)) {
      if (ports_.size() >= kMaxDevices) return;
      const std::string counters = folder + number + "/counters/port_";
      Port port{
          .name = device + ":" + number, .counters = {}, .bits_per_second = 0};
      for (const char* name :
           {"rcv_data", "xmit_data", "rcv_packets", "xmit_packets"}) {
        port.counters.emplace_back(counters + name);
      }
      const auto rate = ReadOnce(folder + number + "/rate", buffer);
      port.bits_per_second = ParseInfinibandRate(rate.value_or(""));
      ports_.push_back(std::move(port));
    }
  }
}

Networks::Interface& Networks::Find(std::string_view name) {
  const auto known = interfaces_.find(name);
  if (known != interfaces_.end()) return known->second;
  const std::string folder = root_ + "/sys/class/net/" + std::string(name);
  Interface interface;
  interface.is_sampled =
      names().size() < kMaxDevices && !Exists(folder + "/master");
  return interfaces_.emplace(name, interface).first->second;
}

std::uint64_t Networks::SpeedOf(std::string_view name, std::int64_t time,
                                Interface* interface) const {
  const bool is_due =
      interface->asked_at == 0 || time - interface->asked_at >= kMinuteNs;
  if (interface->bits_per_second == kNotMeasured && is_due) {
    interface->asked_at = time;
    TextBuffer text;
    const std::string path =
        root_ + "/sys/class/net/" + std::string(name) + "/speed";
    // In Mb/s; -1, 0 or 2^32 - 1 where there is no link, or a virtual one.
    const std::uint64_t speed = ReadNumber(path, &text);
    if (speed != 0 && speed < kNotMeasured32) {
      interface->bits_per_second = Scaled(speed, 1'000'000);
    }
  }
  return interface->bits_per_second;
}

bool Networks::Sample(std::int64_t time, TextBuffer* buffer,
                      const OnNetwork& on_network) {
  if (!std::exchange(has_found_ports_, true)) FindPorts(buffer);
  for (Port& port : ports_) {
    NetworkRow row{.time = time};
    const auto counter = [&](std::size_t i) {
      return FirstNumber(port.counters[i].Read(buffer).value_or(""));
    };
    row.received_bytes = Scaled(counter(0), 4);  // In words of 32 bits.
    row.sent_bytes = Scaled(counter(1), 4);
    row.received_packets = counter(2);
    row.sent_packets = counter(3);
    row.bits_per_second = port.bits_per_second;
    on_network(port.name, row);
  }
  const auto text = file_.Read(buffer);
  if (!text) return false;
  ParseNetworks(*text, [&](std::string_view name, const NetworkRow& totals) {
    if (totals.received_packets == 0 && totals.sent_packets == 0) return;
    const bool is_new = !interfaces_.contains(name);
    if (is_new && interfaces_.size() >= 16 * kMaxDevices) return;
    Interface& interface = Find(name);
    if (!interface.is_sampled) return;
    NetworkRow row = totals;
    row.time = time;
    row.bits_per_second = SpeedOf(name, time, &interface);
    on_network(name, row);
  });
  return true;
}

std::vector<std::string> Networks::names() const {
  std::vector<std::string> names;
  for (const Port& port : ports_) names.push_back(port.name);
  for (const auto& [name, interface] : interfaces_) {
    if (interface.is_sampled) names.push_back(name);
  }
  return names;
}

}  // namespace tdbg
