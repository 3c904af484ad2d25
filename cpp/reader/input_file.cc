#include "reader/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "format/names.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kReadAhead = 256 << 10;
constexpr std::size_t kKeptBuffer = 1 << 20;

Status Error(const std::string& name, const char* call, int error) {
  return Status::IoError(name + ": " + call + ": " + std::strerror(error),
                         error);
}

}  // namespace

InputFile::InputFile(const Directory* directory, std::string name)
    : directory_(directory), name_(std::move(name)) {}

InputFile::InputFile(std::span<const std::byte> bytes, std::string name)
    : directory_(nullptr), name_(std::move(name)), memory_(bytes) {}

InputFile::~InputFile() { Close(); }

void InputFile::Close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  std::vector<std::byte>().swap(buffer_);
}

Status InputFile::Open() {
  if (descriptor_ >= 0 || memory_) return Status::Ok();
  const Status status = OpenNamed(name_);
  if (status.ok() || !was_open_) return status;
  return OpenNamed(name_ + kOldEnding).ok() ? Status::Ok() : status;
}

Status InputFile::OpenNamed(const std::string& name) {
  // O_NONBLOCK: opening a fifo must not wait for its writer.
  const int descriptor =
      ::openat(directory_->descriptor(), name.c_str(),
               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) {
    if (errno == ELOOP) {
      return Status::InvalidArgument(name + ": is a symbolic link");
    }
    return Error(name, "open", errno);
  }
  struct stat about{};
  if (::fstat(descriptor, &about) != 0) {
    const int error = errno;
    ::close(descriptor);
    return Error(name, "fstat", error);
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

std::optional<std::span<const std::byte>> InputFile::Held(
    std::uint64_t offset, std::uint64_t n) const {
  if (!memory_ && map_ == nullptr) return std::nullopt;
  const auto bytes = memory_ ? *memory_ : map_->bytes();
  if (offset > bytes.size() || n > bytes.size() - offset) return std::nullopt;
  return bytes.subspan(offset, n);
}

Result<std::uint64_t> InputFile::Size() {
  if (memory_) return std::uint64_t{memory_->size()};
  TDBG_RETURN_IF_ERROR(Open());
  struct stat about{};
  if (::fstat(descriptor_, &about) != 0) return Error(name_, "fstat", errno);
  return static_cast<std::uint64_t>(about.st_size);
}

std::uint64_t InputFile::AllocatedBytes() {
  if (memory_) return memory_->size();
  struct stat about{};
  if (!Open().ok() || ::fstat(descriptor_, &about) != 0) return 0;
  return static_cast<std::uint64_t>(about.st_blocks) * 512;
}

Status InputFile::Read(std::uint64_t offset, std::span<std::byte> out) {
  if (const auto held = Held(offset, out.size())) {
    std::copy(held->begin(), held->end(), out.begin());
    return Status::Ok();
  }
  TDBG_RETURN_IF_ERROR(Open());
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        memory_ ? 0
                : ::pread(descriptor_, out.data() + done, out.size() - done,
                          static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error(name_, "pread", errno);
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

Result<std::span<const std::byte>> InputFile::View(std::uint64_t offset,
                                                   std::uint64_t n,
                                                   std::uint64_t end) {
  if (const auto held = Held(offset, n)) return *held;
  const bool is_read = offset >= buffer_offset_ &&
                       offset - buffer_offset_ <= buffer_.size() &&
                       n <= buffer_.size() - (offset - buffer_offset_);
  if (!is_read) {
    const std::uint64_t wanted =
        std::max(n, std::min(kReadAhead, end > offset ? end - offset : 0));
    buffer_.resize(wanted);
    buffer_offset_ = offset;
    const Status status = Read(offset, buffer_);
    if (!status.ok()) {
      buffer_.clear();
      return status;
    }
  }
  return std::span<const std::byte>(buffer_).subspan(offset - buffer_offset_,
                                                     n);
}

void InputFile::Forget() {
  buffer_.clear();
  if (buffer_.capacity() > kKeptBuffer) buffer_.shrink_to_fit();
}

void InputFile::Map(std::uint64_t n_bytes) {
  if (map_ != nullptr || memory_ || n_bytes == 0 || !Open().ok()) return;
  // The size is asked for again: a map beyond the end would fault.
  const auto size = Size();
  if (!size.ok() || size.value() < n_bytes) return;
  auto map = MappedFile::Map(descriptor_, n_bytes);
  if (!map.ok()) return;
  map_ = std::move(map).value();
  Forget();
}

std::uint64_t InputFile::NextData(std::uint64_t offset, std::uint64_t end) {
  if (memory_ || !Open().ok()) return offset;
  const off_t at = ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_DATA);
  if (at >= 0) return std::min(static_cast<std::uint64_t>(at), end);
  return errno == ENXIO ? end : offset;
}

}  // namespace tdbg
