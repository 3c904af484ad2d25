// Energy that the processor packages have used, by RAPL: /sys/class/powercap.
// Most kernels let only root read it, and virtual machines have none.
//
// Thread safety: belongs to one thread at a time.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sampler/kernel_file.h"

namespace tdbg {

class PackageEnergy {
 public:
  // `root` stands before "/sys".
  explicit PackageEnergy(std::string root) : root_(std::move(root)) {}

  // The total of all packages in microjoules: it never falls, though the
  // counters start over.  kNotMeasured if one of them cannot be read.
  std::uint64_t Read(TextBuffer* buffer);
  // Why the energy is not measured; empty: it is, or nobody has asked.
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  struct Package {
    KernelFile counter;
    std::uint64_t range;  // The counter starts over behind it.
    std::uint64_t last;
  };
  void Find(TextBuffer* buffer);

  const std::string root_;
  std::vector<Package> packages_;
  std::uint64_t total_ = 0;
  bool is_found_ = false;
  std::string reason_;
};

}  // namespace tdbg
