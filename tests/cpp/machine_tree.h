// A machine in a directory: files of /proc and /sys as a test wants them.

#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "temporary_directory.h"

namespace tdbg::testing {

class MachineTree {
 public:
  // Stands before "/proc" and the like.
  [[nodiscard]] const std::string& root() const { return directory_.path(); }

  // Writes a file of it, with the folders around it.
  void Write(const std::string& path, std::string_view text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
  }
  void Remove(const std::string& path) const {
    std::filesystem::remove_all(root() + path);
  }

 private:
  TemporaryDirectory directory_;
};

}  // namespace tdbg::testing
