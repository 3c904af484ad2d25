#include "reader/local_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "reader/local_file.h"

namespace tdbg {
namespace {

// The times of files are those of the last tick of the kernel's clock.
constexpr std::int64_t kClockSlackNs = 2'000'000'000;

int OpenAt(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

Status Refused(const std::string& name, int error) {
  return Status::IoError(name + ": " + std::strerror(error), error);
}

}  // namespace

Result<std::unique_ptr<LocalDirectory>> LocalDirectory::Open(
    const std::string& path) {
  std::unique_ptr<LocalDirectory> directory(new LocalDirectory(path));
  directory->descriptor_ = OpenAt(path);
  struct stat about{};
  if (directory->descriptor_ < 0 ||
      ::fstat(directory->descriptor_, &about) != 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      return Status::NotFound(path + ": " + std::strerror(error));
    }
    return Refused(path, error);
  }
  directory->device_ = about.st_dev;
  directory->inode_ = about.st_ino;
  return directory;
}

int LocalDirectory::descriptor() const {
  if (descriptor_ >= 0) return descriptor_;
  const int descriptor = OpenAt(path_);
  struct stat about{};
  if (descriptor < 0) return -1;
  if (::fstat(descriptor, &about) != 0 || about.st_dev != device_ ||
      about.st_ino != inode_) {
    ::close(descriptor);
    errno = ENOENT;
    return -1;
  }
  return descriptor_ = descriptor;
}

void LocalDirectory::Close() const {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

std::unique_ptr<FileBytes> LocalDirectory::File(const std::string& name) const {
  return std::make_unique<LocalFile>(this, name);
}

Result<struct stat> LocalDirectory::Look(const std::string& name) const {
  struct stat about{};
  const int directory = descriptor();
  if (directory >= 0 &&
      ::fstatat(directory, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) == 0) {
    return about;
  }
  return Refused(name, errno);
}

Result<std::uint64_t> LocalDirectory::SizeOf(const std::string& name) const {
  const auto about = Look(name);
  if (!about.ok()) return about.status();
  return static_cast<std::uint64_t>(about.value().st_size);
}

Result<std::uint64_t> LocalDirectory::InodeOf(const std::string& name) const {
  const auto about = Look(name);
  if (!about.ok()) return about.status();
  return static_cast<std::uint64_t>(about.value().st_ino);
}

Status LocalDirectory::ForEachName(const VisitName& visit) const {
  const int directory = descriptor();
  if (directory < 0) return Refused(path_, errno);
  // A descriptor of its own: a listing has a position.
  const int own = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return Refused(path_, errno);
  DIR* listing = ::fdopendir(own);
  if (listing == nullptr) {
    const int error = errno;
    ::close(own);
    return Refused(path_, error);
  }
  errno = 0;
  while (const dirent* entry = ::readdir(listing)) {
    visit(entry->d_name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(listing);
  return error == 0 ? Status::Ok() : Refused(path_, error);
}

std::uint64_t LocalDirectory::CountBytes() const {
  std::uint64_t total = 0;
  (void)ForEachName([&](const char* name) {
    struct stat about{};
    if (::fstatat(descriptor(), name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(about.st_mode)) {
      total += static_cast<std::uint64_t>(about.st_size);
    }
  });
  return total;
}

std::optional<std::int64_t> LocalDirectory::Version() const {
  struct stat about{};
  if (::fstat(descriptor(), &about) != 0) return std::nullopt;
  const std::int64_t changed =
      std::int64_t{about.st_mtim.tv_sec} * 1'000'000'000 +
      about.st_mtim.tv_nsec;
  // After a change this recent, a further one may leave the same time.
  if (changed > WallNs() - kClockSlackNs) return std::nullopt;
  return changed;
}

}  // namespace tdbg
