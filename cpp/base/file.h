// Files of the writing side, with every system call behind a table that a test
// can replace.
//
// FileSystem is that table: one method per system call, with the arguments and
// the meaning of the call, and nothing else.  File and the functions below it
// add what every caller needs: complete writes, interrupted calls repeated,
// descriptors that are not inherited and never 0, 1 or 2 (a stray message to a
// closed standard stream must not land in a shard).
//
// Thread safety: a FileSystem may be used from any thread; a File belongs to
// one at a time.
//
// Errors: methods of FileSystem return -errno.  The rest returns Status with
// the path in its message and the errno in system_error().

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace tdbg {

class FileSystem {
 public:
  FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;
  virtual ~FileSystem() = default;

  // The operating system's.  Lives as long as the process.
  static FileSystem* Posix();

  // All return a value >= 0, or -errno.
  virtual int Open(const char* path, int flags, unsigned mode) = 0;
  virtual int Close(int fd) = 0;
  virtual std::int64_t Pwrite(int fd, const void* data, std::size_t n,
                              std::uint64_t offset) = 0;
  // Writes of this descriptor pass the page cache (O_DIRECT) from now on, or
  // no longer.
  virtual int SetDirect(int fd, bool on) = 0;
  virtual int Fdatasync(int fd) = 0;
  virtual int Fsync(int fd) = 0;
  // Reserves blocks without changing the length of the file.
  virtual int Fallocate(int fd, std::uint64_t offset, std::uint64_t n) = 0;
  virtual int Ftruncate(int fd, std::uint64_t length) = 0;
  // How many names the file has: 0 once it was deleted, or another one renamed
  // over it.
  virtual int LinkCount(int fd) = 0;
  virtual int Mkdir(const char* path, unsigned mode) = 0;
  virtual int Unlink(const char* path) = 0;
  virtual int Rename(const char* from, const char* to) = 0;
  // Gives the file a second name, which must not exist.
  virtual int Link(const char* from, const char* to) = 0;
  virtual std::int64_t Pread(int fd, void* data, std::size_t n,
                             std::uint64_t offset) = 0;
  // Bytes of the file.
  virtual std::int64_t Size(const char* path) = 0;
  // Takes the lock of an open file or directory, without waiting: -EWOULDBLOCK
  // where another process, or another descriptor, has it.  Or gives it back.
  virtual int Lock(int fd, bool on) = 0;
  // Stores in `*n` how many bytes an unprivileged user may still write.
  virtual int FreeBytes(const char* path, std::uint64_t* n) = 0;
  // Stores in `*n` the lengths of the files in a directory, added up.
  virtual int BytesIn(const char* path, std::uint64_t* n) = 0;
  // Stores the names in a directory, without "." and "..".
  virtual int List(const char* path, std::vector<std::string>* names) = 0;
};

// A file that was created here, open for writing.
class File {
 public:
  File() = default;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  // Creates `path`, which must not exist, readable by its owner only.
  // REQUIRES: `file_system` outlives the File.
  static Result<File> Create(FileSystem* file_system, std::string path);

  // Writes all of `bytes` at `offset`, through the page cache.
  Status WriteAt(std::span<const std::byte> bytes, std::uint64_t offset);

  // Alignment of a direct write: of its address, offset and size.
  static constexpr std::uint64_t kDirectAlignment = 4096;

  // Writes all of `bytes` at `offset` past the page cache: a tenth of the
  // processor time, and none of the memory.  Where that does not work (the file
  // system cannot, or asks for more than our alignment), this and all further
  // ones go through the page cache.  Both kinds may be mixed in one file, best
  // so that no page of it (kDirectAlignment) meets both.
  // REQUIRES: the address and size of `bytes` and `offset` are multiples of
  // kDirectAlignment.
  Status WriteDirectAt(std::span<const std::byte> bytes, std::uint64_t offset);
  // Whether direct writes were not found to be impossible.
  [[nodiscard]] bool can_write_direct() const { return can_write_direct_; }
  // Makes what was written outlive a power failure.
  Status SyncData();
  // Reserves [offset, offset + n) on the disk; the length does not change.
  Status Reserve(std::uint64_t offset, std::uint64_t n);
  // Gives back what was reserved beyond `length`, the length of the file.
  Status ReleaseReserve(std::uint64_t length);
  // An error with system_error() == ENOENT if the file has no name any more:
  // whatever is written to it is lost.
  Status CheckName();
  // Idempotent.
  Status Close();

  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  File(FileSystem* file_system, int fd, std::string path)
      : file_system_(file_system), fd_(fd), path_(std::move(path)) {}

  Status SetDirect(bool on);

  FileSystem* file_system_ = nullptr;
  int fd_ = -1;
  bool can_write_direct_ = true;
  bool is_direct_ = false;  // The mode of the descriptor.
  std::string path_;
};

// A file that is there, open for reading.
class SourceFile {
 public:
  // REQUIRES: `file_system` outlives the SourceFile.
  static Result<SourceFile> Open(FileSystem* file_system, std::string path);
  SourceFile(SourceFile&& other) noexcept;
  SourceFile& operator=(SourceFile&&) = delete;
  SourceFile(const SourceFile&) = delete;
  SourceFile& operator=(const SourceFile&) = delete;
  ~SourceFile();

  // Fills `out` with the bytes at `offset`; kCorruption where the file ends.
  Status ReadAt(std::uint64_t offset, std::span<std::byte> out) const;
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  SourceFile(FileSystem* file_system, int fd, std::string path,
             std::uint64_t size)
      : file_system_(file_system),
        fd_(fd),
        path_(std::move(path)),
        size_(size) {}

  FileSystem* file_system_;
  int fd_;
  std::string path_;
  std::uint64_t size_;
};

// Whoever holds it is the only one, of all processes, to hold the lock of a
// directory.
class DirectoryLock {
 public:
  // An error with system_error() == EWOULDBLOCK where another one has it.
  static Result<DirectoryLock> Take(FileSystem* file_system,
                                    const std::string& path);
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

 private:
  DirectoryLock(FileSystem* file_system, int fd)
      : file_system_(file_system), fd_(fd) {}

  FileSystem* file_system_;
  int fd_;
};

// Creates a directory that only its owner may enter.  An existing one is an
// error with system_error() == EEXIST.
Status MakeDirectory(FileSystem* file_system, const std::string& path);

// Makes the names in a directory outlive a power failure.
Status SyncDirectory(FileSystem* file_system, const std::string& path);

Result<std::uint64_t> FreeBytes(FileSystem* file_system,
                                const std::string& path);

Result<std::uint64_t> BytesInDirectory(FileSystem* file_system,
                                       const std::string& path);

Result<std::vector<std::string>> ListDirectory(FileSystem* file_system,
                                               const std::string& path);

Status RemoveFile(FileSystem* file_system, const std::string& path);

// Gives a file the name of another one, which loses it.
Status RenameFile(FileSystem* file_system, const std::string& from,
                  const std::string& to);

Status LinkFile(FileSystem* file_system, const std::string& from,
                const std::string& to);

Result<std::uint64_t> FileSize(FileSystem* file_system,
                               const std::string& path);

}  // namespace tdbg
