// A directory of its own for a test, removed with all that is in it.

#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace tdbg::testing {

class TemporaryDirectory {
 public:
  // In memory, where there is such a file system: the tests write and sync a
  // lot.
  TemporaryDirectory()
      : TemporaryDirectory(std::filesystem::is_directory("/dev/shm")
                               ? std::filesystem::path("/dev/shm")
                               : std::filesystem::temp_directory_path()) {}
  // In the usual place, likely on a disk.
  static TemporaryDirectory OnDisk() {
    return TemporaryDirectory(std::filesystem::temp_directory_path());
  }
  explicit TemporaryDirectory(const std::filesystem::path& parent) {
    std::string name = (parent / "tdbg-test-XXXXXX").string();
    const char* made = ::mkdtemp(name.data());
    path_ = made != nullptr ? made : "";
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})) {}
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tdbg::testing
