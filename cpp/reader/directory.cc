#include "reader/directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tdbg {
namespace {

int OpenAt(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

}  // namespace

Result<std::unique_ptr<Directory>> Directory::Open(const std::string& path) {
  std::unique_ptr<Directory> directory(new Directory(path));
  directory->descriptor_ = OpenAt(path);
  struct stat about{};
  if (directory->descriptor_ < 0 ||
      ::fstat(directory->descriptor_, &about) != 0) {
    const int error = errno;
    const std::string message = path + ": " + std::strerror(error);
    if (error == ENOENT || error == ENOTDIR) return Status::NotFound(message);
    return Status::IoError(message, error);
  }
  directory->device_ = about.st_dev;
  directory->inode_ = about.st_ino;
  return directory;
}

int Directory::descriptor() const {
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

void Directory::Close() const {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace tdbg
