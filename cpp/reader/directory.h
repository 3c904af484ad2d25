// Directory is the directory of a writer, wherever it lies: which files it has,
// how large they are, and their bytes.
//
// LocalDirectory is one on this machine, RemoteDirectory one in an object
// store.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "reader/liveness.h"
#include "reader/mapped_file.h"

namespace tdbg {

// The bytes of one file of a directory, which may be growing.
//
// Errors: kIoError with the errno; kCorruption when the file is shorter than it
// was or was replaced; kInvalidArgument for what is no regular file.
class FileBytes {
 public:
  FileBytes() = default;
  virtual ~FileBytes() = default;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Bytes of the file now.
  virtual Result<std::uint64_t> Size() = 0;
  // Bytes that the file takes where it lies, which is less where it has holes;
  // 0 where nobody can tell.
  virtual std::uint64_t AllocatedBytes() = 0;
  // Fills `out` with the bytes at `offset`.
  virtual Status Read(std::uint64_t offset, std::span<std::byte> out) = 0;
  // How much more than was asked for is worth reading at once.
  [[nodiscard]] virtual std::uint64_t ReadAhead() const = 0;
  // The first offset at or after `offset` that is not in a hole; `end` when
  // only a hole follows.
  virtual std::uint64_t NextData(std::uint64_t offset, std::uint64_t end) = 0;
  // The number by which another file of this name differs; 0 where it was never
  // read, or files are never replaced.
  [[nodiscard]] virtual std::uint64_t inode() const = 0;
  // A map of the first `n_bytes`; null where there can be none.
  virtual std::shared_ptr<const MappedFile> Map(std::uint64_t n_bytes) = 0;
  // Gives up what the next call gets again.
  virtual void Close() = 0;
};

// A part of a file that somebody is about to read.
struct FileRange {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t n = 0;
};

class Directory {
 public:
  Directory() = default;
  virtual ~Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // The file of this name, which need not be there yet.
  [[nodiscard]] virtual std::unique_ptr<FileBytes> File(
      const std::string& name) const = 0;
  // Bytes of what has this name; kIoError with the errno where that cannot be
  // told, ENOENT where there is none.
  [[nodiscard]] virtual Result<std::uint64_t> SizeOf(
      const std::string& name) const = 0;
  // FileBytes::inode() of the file that has this name now; errors as of SizeOf.
  [[nodiscard]] virtual Result<std::uint64_t> InodeOf(
      const std::string& name) const = 0;
  // Calls `visit` with every name.
  using VisitName = std::function<void(const char* name)>;
  virtual Status ForEachName(const VisitName& visit) const = 0;
  // Bytes of all regular files.
  [[nodiscard]] virtual std::uint64_t CountBytes() const = 0;
  // Another number whenever names have come or gone; nothing where that is not
  // certain.
  [[nodiscard]] virtual std::optional<std::int64_t> Version() const = 0;

  // Whether all that the writer has written so far can be seen.
  [[nodiscard]] virtual bool ShowsAll() const { return true; }
  // Whether the writer lives, where its commit page alone cannot tell.
  [[nodiscard]] virtual std::optional<Liveness> ToldLiveness() const {
    return std::nullopt;
  }
  // Whether reading takes so long that a reader should say beforehand what it
  // will read.
  [[nodiscard]] virtual bool IsFar() const { return false; }
  // These ranges will be read next.
  virtual void Expect(std::span<const FileRange> /*ranges*/) const {}
  // Gives descriptors up; the next call gets them again.
  virtual void Close() const {}
};

}  // namespace tdbg
