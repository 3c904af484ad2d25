#include "reader/local_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "format/names.h"

namespace tdbg {
namespace {

Status FailedCall(const std::string& name, const char* call, int error) {
  return Status::IoError(name + ": " + call + ": " + std::strerror(error),
                         error);
}

}  // namespace

void LocalFile::Close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Status LocalFile::Open() {
  if (descriptor_ >= 0) return Status::Ok();
  const Status status = OpenNamed(name_);
  if (status.ok() || !was_open_) return status;
  return OpenNamed(name_ + kOldEnding).ok() ? Status::Ok() : status;
}

Status LocalFile::OpenNamed(const std::string& name) {
  // O_NONBLOCK: opening a fifo must not wait for its writer.
  const int descriptor =
      ::openat(directory_->descriptor(), name.c_str(),
               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) {
    if (errno == ELOOP) {
      return Status::InvalidArgument(name + ": is a symbolic link");
    }
    return FailedCall(name, "open", errno);
  }
  struct stat about{};
  if (::fstat(descriptor, &about) != 0) {
    const int error = errno;
    ::close(descriptor);
    return FailedCall(name, "fstat", error);
  }
  if (!S_ISREG(about.st_mode)) {
    ::close(descriptor);
    return Status::InvalidArgument(name + ": is no regular file");
  }
  if (was_open_ && (device_ != about.st_dev || inode_ != about.st_ino)) {
    ::close(descriptor);
    return Status::Corruption(name + ": was replaced by another file", 0);
  }
  was_open_ = true;
  device_ = about.st_dev;
  inode_ = about.st_ino;
  descriptor_ = descriptor;
  return Status::Ok();
}

Result<std::uint64_t> LocalFile::Size() {
  TDBG_RETURN_IF_ERROR(Open());
  struct stat about{};
  if (::fstat(descriptor_, &about) != 0) {
    return FailedCall(name_, "fstat", errno);
  }
  return static_cast<std::uint64_t>(about.st_size);
}

std::uint64_t LocalFile::AllocatedBytes() {
  struct stat about{};
  if (!Open().ok() || ::fstat(descriptor_, &about) != 0) return 0;
  return static_cast<std::uint64_t>(about.st_blocks) * 512;
}

Status LocalFile::Read(std::uint64_t offset, std::span<std::byte> out) {
  TDBG_RETURN_IF_ERROR(Open());
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(descriptor_, out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FailedCall(name_, "pread", errno);
    if (n == 0) {
      return Status::Corruption(name_ + ": the file ends at " +
                                    std::to_string(offset + done) +
                                    ": it has become shorter",
                                offset + done);
    }
    done += static_cast<std::size_t>(n);
  }
  return Status::Ok();
}

std::uint64_t LocalFile::NextData(std::uint64_t offset, std::uint64_t end) {
  if (!Open().ok()) return offset;
  const off_t at = ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_DATA);
  if (at >= 0) return std::min(static_cast<std::uint64_t>(at), end);
  return errno == ENXIO ? end : offset;
}

std::shared_ptr<const MappedFile> LocalFile::Map(std::uint64_t n_bytes) {
  // The size is asked for again: a map beyond the end would fault.
  const auto size = Size();
  if (!size.ok() || size.value() < n_bytes) return nullptr;
  auto map = MappedFile::Map(descriptor_, n_bytes);
  return map.ok() ? std::move(map).value() : nullptr;
}

}  // namespace tdbg
