#include "sampler/package_energy.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "sampler/devices.h"
#include "sampler/text.h"

namespace tdbg {

void PackageEnergy::Find(TextBuffer* buffer) {
  const std::string zones = root_ + "/sys/class/powercap";
  reason_ = "the kernel offers no energy counter of a processor (RAPL)";
  for (const std::string& zone : NamesIn(zones)) {
    // "intel-rapl:0" is a package, on AMD too; "intel-rapl:0:1" a part of one.
    // "intel-rapl-mmio:0" counts the same package a second time.
    if (!zone.starts_with("intel-rapl:")) continue;
    const std::string folder = zones + "/" + zone + "/";
    const std::string name(ReadOnce(folder + "name", buffer).value_or(""));
    if (!name.starts_with("package")) continue;
    KernelFile counter(folder + "energy_uj");
    const auto text = counter.Read(buffer);
    const std::uint64_t energy = FirstNumber(text.value_or(""));
    if (energy == kNotMeasured) {
      reason_ = "cannot read " + counter.path();
      if (!text) reason_ += std::string(": ") + std::strerror(counter.error());
      packages_.clear();
      return;
    }
    total_ += energy;
    packages_.push_back(
        {.counter = std::move(counter),
         .range = ReadNumber(folder + "max_energy_range_uj", buffer),
         .last = energy});
  }
  if (!packages_.empty()) reason_.clear();
}

std::uint64_t PackageEnergy::Read(TextBuffer* buffer) {
  if (!std::exchange(is_found_, true)) Find(buffer);
  if (packages_.empty()) return kNotMeasured;
  for (Package& package : packages_) {
    const auto text = package.counter.Read(buffer);
    const std::uint64_t energy = FirstNumber(text.value_or(""));
    if (energy == kNotMeasured) return kNotMeasured;
    const bool starts_over = energy < package.last;
    if (starts_over && package.range == kNotMeasured) return kNotMeasured;
    total_ += energy - package.last;
    if (starts_over) total_ += package.range;
    package.last = energy;
  }
  return total_;
}

}  // namespace tdbg
