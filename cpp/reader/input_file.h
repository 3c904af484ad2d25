// InputFile reads a file of a writer directory, which may be growing.
//
// Small reads go through one buffer, and none past the size that was given.
//
// Thread safety: none.
//
// Errors: those of FileBytes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "reader/directory.h"
#include "reader/mapped_file.h"

namespace tdbg {

class InputFile {
 public:
  // `name` within the directory open at `directory`, which outlives this.
  InputFile(const Directory* directory, std::string name);
  // Bytes in memory in the place of a file; they outlive this.
  InputFile(std::span<const std::byte> bytes, std::string name);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  // Gives up the descriptor, not the map.  The next read opens it again.
  void Close();

  // Bytes of the file now.
  Result<std::uint64_t> Size();
  // Bytes that the file takes on the disk, which is less where it has holes.
  std::uint64_t AllocatedBytes();

  // Fills `out` with the bytes at `offset`.
  Status Read(std::uint64_t offset, std::span<std::byte> out);
  // The bytes [offset, offset + n), valid until the next call.  Reads ahead,
  // but not beyond `end`.
  Result<std::span<const std::byte>> View(std::uint64_t offset, std::uint64_t n,
                                          std::uint64_t end);
  // Drops what was read ahead: the file may have changed.
  void Forget();

  // From now on reads within the first `n_bytes` come from a map.  Does nothing
  // where that fails: reading works without.
  void Map(std::uint64_t n_bytes);
  // Gives the map up, unless values of tensors still lie in it.
  void Unmap() { map_.reset(); }
  [[nodiscard]] const std::shared_ptr<const MappedFile>& map() const {
    return map_;
  }

  // The first offset at or after `offset` that is not in a hole; `end` when
  // only a hole follows.
  std::uint64_t NextData(std::uint64_t offset, std::uint64_t end);

  [[nodiscard]] const std::string& name() const { return name_; }
  // Of the file that was opened; 0: none was.
  [[nodiscard]] std::uint64_t inode() const {
    return file_ ? file_->inode() : 0;
  }

 private:
  // Bytes that are in memory or mapped, and need no reading.
  [[nodiscard]] std::optional<std::span<const std::byte>> Held(
      std::uint64_t offset, std::uint64_t n) const;

  // Constant after construction.
  const std::string name_;
  const std::optional<std::span<const std::byte>> memory_;
  const std::unique_ptr<FileBytes> file_;  // Null with memory_.

  std::shared_ptr<const MappedFile> map_;
  // Invariant: buffer_ holds the bytes of the file at buffer_offset_.
  std::vector<std::byte> buffer_;
  std::uint64_t buffer_offset_ = 0;
};

}  // namespace tdbg
