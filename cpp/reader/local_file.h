// LocalFile is a regular file of a directory on this machine.
//
// Thread safety: none.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "reader/local_directory.h"

namespace tdbg {

class LocalFile final : public FileBytes {
 public:
  // `name` within `directory`, which outlives this.
  LocalFile(const LocalDirectory* directory, std::string name)
      : directory_(directory), name_(std::move(name)) {}
  ~LocalFile() override { Close(); }
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;

  Result<std::uint64_t> Size() override;
  std::uint64_t AllocatedBytes() override;
  Status Read(std::uint64_t offset, std::span<std::byte> out) override;
  [[nodiscard]] std::uint64_t ReadAhead() const override { return 256 << 10; }
  std::uint64_t NextData(std::uint64_t offset, std::uint64_t end) override;
  [[nodiscard]] std::uint64_t inode() const override { return inode_; }
  std::shared_ptr<const MappedFile> Map(std::uint64_t n_bytes) override;
  void Close() override;

 private:
  // Opens the file if it is not open.  A file that was open before must still
  // be the same one, under its name or the one that it has when retention
  // replaced it.
  Status Open();
  Status OpenNamed(const std::string& name);

  // Constant after construction.
  const LocalDirectory* const directory_;
  const std::string name_;

  int descriptor_ = -1;
  bool was_open_ = false;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;
};

}  // namespace tdbg
