#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace tdbg {
namespace {

// A call that is interrupted this often in a row has failed: the bound keeps a
// broken file system from holding the writer for ever.
constexpr int kMaxInterruptions = 100;

// Linux writes no more than this in one call.
constexpr std::size_t kMaxWrite = 1U << 30;

constexpr unsigned kFileMode = 0600;
constexpr unsigned kDirectoryMode = 0700;

class PosixFileSystem final : public FileSystem {
 public:
  int Open(const char* path, int flags, unsigned mode) override {
    int fd = ::open(path, flags, mode);
    if (fd < 0) return -errno;
    if (fd <= STDERR_FILENO) {
      const int high = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
      const int error = errno;
      ::close(fd);
      if (high < 0) return -error;
      fd = high;
    }
    return fd;
  }
  int Close(int fd) override { return Outcome(::close(fd)); }
  std::int64_t Pwrite(int fd, const void* data, std::size_t n,
                      std::uint64_t offset) override {
    const ssize_t done = ::pwrite(fd, data, n, static_cast<off_t>(offset));
    return done < 0 ? -errno : done;
  }
  int SetDirect(int fd, bool on) override {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0) return -errno;
    return Outcome(
        ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT));
  }
  int Fdatasync(int fd) override { return Outcome(::fdatasync(fd)); }
  int Fsync(int fd) override { return Outcome(::fsync(fd)); }
  int Fallocate(int fd, std::uint64_t offset, std::uint64_t n) override {
    return Outcome(::fallocate(fd, FALLOC_FL_KEEP_SIZE,
                               static_cast<off_t>(offset),
                               static_cast<off_t>(n)));
  }
  int Ftruncate(int fd, std::uint64_t length) override {
    return Outcome(::ftruncate(fd, static_cast<off_t>(length)));
  }
  int LinkCount(int fd) override {
    struct stat about{};
    if (::fstat(fd, &about) != 0) return -errno;
    return about.st_nlink > 0 ? 1 : 0;
  }
  int Mkdir(const char* path, unsigned mode) override {
    return Outcome(::mkdir(path, mode));
  }
  int Unlink(const char* path) override { return Outcome(::unlink(path)); }
  int Rename(const char* from, const char* to) override {
    return Outcome(::rename(from, to));
  }
  int Link(const char* from, const char* to) override {
    return Outcome(::link(from, to));
  }
  std::int64_t Pread(int fd, void* data, std::size_t n,
                     std::uint64_t offset) override {
    const ssize_t done = ::pread(fd, data, n, static_cast<off_t>(offset));
    return done < 0 ? -errno : done;
  }
  std::int64_t Size(const char* path) override {
    struct stat about{};
    if (::lstat(path, &about) != 0) return -errno;
    return about.st_size;
  }
  int Lock(int fd, bool on) override {
    return Outcome(::flock(fd, on ? LOCK_EX | LOCK_NB : LOCK_UN));
  }
  int FreeBytes(const char* path, std::uint64_t* n) override {
    struct statvfs info{};
    if (::statvfs(path, &info) != 0) return -errno;
    *n = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
    return 0;
  }
  int BytesIn(const char* path, std::uint64_t* n) override {
    std::vector<std::string> names;
    if (const int result = List(path, &names); result < 0) return result;
    *n = 0;
    for (const std::string& name : names) {
      struct stat about{};
      // One that is gone meanwhile takes no room.
      if (::lstat((path + ("/" + name)).c_str(), &about) != 0) continue;
      *n += static_cast<std::uint64_t>(about.st_size);
    }
    return 0;
  }
  int List(const char* path, std::vector<std::string>* names) override {
    DIR* directory = ::opendir(path);
    if (directory == nullptr) return -errno;
    names->clear();
    errno = 0;
    while (const dirent* entry = ::readdir(directory)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names->emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(directory);
    return -error;
  }

 private:
  static int Outcome(int result) { return result < 0 ? -errno : result; }
};

// Repeats `call` while it is interrupted.
template <typename Call>
auto Uninterrupted(Call call) {
  auto result = call();
  for (int i = 0; result == -EINTR && i < kMaxInterruptions; ++i) {
    result = call();
  }
  return result;
}

Status Error(const char* action, const std::string& path, int error) {
  return Status::IoError(std::string(action) + " " + path + ": " +
                             std::generic_category().message(error),
                         error);
}

Status Outcome(const char* action, const std::string& path, int result) {
  if (result < 0) return Error(action, path, -result);
  return Status::Ok();
}

// Whether a direct write failed because it was direct.
bool IsRefusal(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == EFAULT ||
         error == ENOMEM;
}

}  // namespace

FileSystem* FileSystem::Posix() {
  // Never destroyed: a writer thread that was left behind may still use it
  // while the process exits.
  static auto* const instance = new PosixFileSystem;
  return instance;
}

File::File(File&& other) noexcept
    : file_system_(other.file_system_),
      fd_(std::exchange(other.fd_, -1)),
      can_write_direct_(other.can_write_direct_),
      is_direct_(other.is_direct_),
      path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    (void)Close();
    file_system_ = other.file_system_;
    fd_ = std::exchange(other.fd_, -1);
    can_write_direct_ = other.can_write_direct_;
    is_direct_ = other.is_direct_;
    path_ = std::move(other.path_);
  }
  return *this;
}

File::~File() { (void)Close(); }

Result<File> File::Create(FileSystem* file_system, std::string path) {
  const int fd = Uninterrupted([&] {
    return file_system->Open(
        path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
        kFileMode);
  });
  if (fd < 0) return Error("create", path, -fd);
  return File(file_system, fd, std::move(path));
}

Status File::SetDirect(bool on) {
  if (is_direct_ == on) return Status::Ok();
  TDBG_RETURN_IF_ERROR(Outcome("set the mode of", path_, Uninterrupted([&] {
                                 return file_system_->SetDirect(fd_, on);
                               })));
  is_direct_ = on;
  return Status::Ok();
}

Status File::WriteAt(std::span<const std::byte> bytes, std::uint64_t offset) {
  TDBG_RETURN_IF_ERROR(SetDirect(false));
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kMaxWrite);
    const std::int64_t done = Uninterrupted(
        [&] { return file_system_->Pwrite(fd_, bytes.data(), n, offset); });
    if (done < 0) return Error("write", path_, static_cast<int>(-done));
    // A disk that takes nothing and says nothing is full.
    if (done == 0) return Error("write", path_, ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return Status::Ok();
}

Status File::WriteDirectAt(std::span<const std::byte> bytes,
                           std::uint64_t offset) {
  TDBG_DCHECK(
      reinterpret_cast<std::uintptr_t>(bytes.data()) % kDirectAlignment == 0);
  TDBG_DCHECK(bytes.size() % kDirectAlignment == 0 &&
              offset % kDirectAlignment == 0);
  if (can_write_direct_ && !SetDirect(true).ok()) can_write_direct_ = false;
  if (!can_write_direct_) return WriteAt(bytes, offset);
  while (!bytes.empty()) {
    const std::size_t n = std::min(bytes.size(), kMaxWrite);
    const std::int64_t done = Uninterrupted(
        [&] { return file_system_->Pwrite(fd_, bytes.data(), n, offset); });
    if (done < 0 && IsRefusal(static_cast<int>(-done))) {
      can_write_direct_ = false;
      break;
    }
    if (done < 0) return Error("write", path_, static_cast<int>(-done));
    const auto n_done = static_cast<std::size_t>(done);
    bytes = bytes.subspan(n_done);
    offset += n_done;
    // What follows a short write need not be aligned; and a disk that takes
    // nothing says why to the next one.
    if (n_done == 0 || n_done % kDirectAlignment != 0) break;
  }
  return bytes.empty() ? Status::Ok() : WriteAt(bytes, offset);
}

Status File::SyncData() {
  // Repeating an interrupted sync is safe: EINTR says that it did not finish,
  // not that pages were given up.
  return Outcome("sync", path_,
                 Uninterrupted([&] { return file_system_->Fdatasync(fd_); }));
}

Status File::Reserve(std::uint64_t offset, std::uint64_t n) {
  return Outcome("reserve", path_, Uninterrupted([&] {
                   return file_system_->Fallocate(fd_, offset, n);
                 }));
}

Status File::ReleaseReserve(std::uint64_t length) {
  return Outcome("release", path_, Uninterrupted([&] {
                   return file_system_->Ftruncate(fd_, length);
                 }));
}

Status File::CheckName() {
  const int n = file_system_->LinkCount(fd_);
  // A system that does not tell is believed to have it.
  if (n != 0) return Status::Ok();
  return Status::IoError(path_ + " was deleted while it was written", ENOENT);
}

Status File::Close() {
  if (fd_ < 0) return Status::Ok();
  // Not repeated when interrupted: on Linux the descriptor is gone by then.
  const int result = file_system_->Close(std::exchange(fd_, -1));
  if (result == -EINTR) return Status::Ok();
  return Outcome("close", path_, result);
}

Status MakeDirectory(FileSystem* file_system, const std::string& path) {
  return Outcome("create", path, Uninterrupted([&] {
                   return file_system->Mkdir(path.c_str(), kDirectoryMode);
                 }));
}

Status SyncDirectory(FileSystem* file_system, const std::string& path) {
  const int fd = Uninterrupted([&] {
    return file_system->Open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                             0);
  });
  if (fd < 0) return Error("open", path, -fd);
  const int result = Uninterrupted([&] { return file_system->Fsync(fd); });
  (void)file_system->Close(fd);
  return Outcome("sync", path, result);
}

Result<std::uint64_t> FreeBytes(FileSystem* file_system,
                                const std::string& path) {
  std::uint64_t n = 0;
  const int result =
      Uninterrupted([&] { return file_system->FreeBytes(path.c_str(), &n); });
  if (result < 0) return Error("statvfs", path, -result);
  return n;
}

Result<std::uint64_t> BytesInDirectory(FileSystem* file_system,
                                       const std::string& path) {
  std::uint64_t n = 0;
  const int result =
      Uninterrupted([&] { return file_system->BytesIn(path.c_str(), &n); });
  if (result < 0) return Error("list", path, -result);
  return n;
}

Result<std::vector<std::string>> ListDirectory(FileSystem* file_system,
                                               const std::string& path) {
  std::vector<std::string> names;
  const int result =
      Uninterrupted([&] { return file_system->List(path.c_str(), &names); });
  if (result < 0) return Error("list", path, -result);
  return names;
}

Status RemoveFile(FileSystem* file_system, const std::string& path) {
  return Outcome("remove", path, Uninterrupted([&] {
                   return file_system->Unlink(path.c_str());
                 }));
}

Status RenameFile(FileSystem* file_system, const std::string& from,
                  const std::string& to) {
  return Outcome("rename", from, Uninterrupted([&] {
                   return file_system->Rename(from.c_str(), to.c_str());
                 }));
}

Status LinkFile(FileSystem* file_system, const std::string& from,
                const std::string& to) {
  return Outcome("link", from, Uninterrupted([&] {
                   return file_system->Link(from.c_str(), to.c_str());
                 }));
}

Result<std::uint64_t> FileSize(FileSystem* file_system,
                               const std::string& path) {
  const std::int64_t size =
      Uninterrupted([&] { return file_system->Size(path.c_str()); });
  if (size < 0) return Error("look at", path, static_cast<int>(-size));
  return static_cast<std::uint64_t>(size);
}

// --- Reading and locking -----------------------------------------------------

Result<SourceFile> SourceFile::Open(FileSystem* file_system, std::string path) {
  const auto size = FileSize(file_system, path);
  if (!size.ok()) return size.status();
  const int fd = Uninterrupted([&] {
    return file_system->Open(path.c_str(),
                             O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  });
  if (fd < 0) return Error("open", path, -fd);
  return SourceFile(file_system, fd, std::move(path), size.value());
}

SourceFile::SourceFile(SourceFile&& other) noexcept
    : file_system_(other.file_system_),
      fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      size_(other.size_) {}

SourceFile::~SourceFile() {
  if (fd_ >= 0) (void)file_system_->Close(fd_);
}

Status SourceFile::ReadAt(std::uint64_t offset,
                          std::span<std::byte> out) const {
  while (!out.empty()) {
    const std::int64_t done = Uninterrupted([&] {
      return file_system_->Pread(fd_, out.data(), out.size(), offset);
    });
    if (done < 0) return Error("read", path_, static_cast<int>(-done));
    if (done == 0) return Status::Corruption(path_ + ": too short", offset);
    out = out.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return Status::Ok();
}

Result<DirectoryLock> DirectoryLock::Take(FileSystem* file_system,
                                          const std::string& path) {
  const int fd = Uninterrupted([&] {
    return file_system->Open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                             0);
  });
  if (fd < 0) return Error("open", path, -fd);
  DirectoryLock lock(file_system, fd);
  TDBG_RETURN_IF_ERROR(Outcome("lock", path, Uninterrupted([&] {
                                 return file_system->Lock(fd, true);
                               })));
  return lock;
}

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept
    : file_system_(other.file_system_), fd_(std::exchange(other.fd_, -1)) {}

DirectoryLock::~DirectoryLock() {
  if (fd_ < 0) return;
  // A child that was forked meanwhile has the descriptor, too.
  (void)file_system_->Lock(fd_, false);
  (void)file_system_->Close(fd_);
}

}  // namespace tdbg
