#include "sampler/kernel_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "sampler/text.h"

namespace tdbg {

KernelFile::KernelFile(KernelFile&& other) noexcept
    : path_(std::move(other.path_)),
      content_(other.content_),
      stays_open_(other.stays_open_),
      fd_(std::exchange(other.fd_, -1)),
      error_(other.error_) {}

KernelFile& KernelFile::operator=(KernelFile&& other) noexcept {
  if (this == &other) return *this;
  Close();
  path_ = std::move(other.path_);
  content_ = other.content_;
  stays_open_ = other.stays_open_;
  fd_ = std::exchange(other.fd_, -1);
  error_ = other.error_;
  return *this;
}

KernelFile::~KernelFile() { Close(); }

bool KernelFile::Open() {
  if (fd_ >= 0) return true;
  int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0 && fd <= STDERR_FILENO) {
    // A stray message to a closed standard stream must not meet this file.
    const int higher = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    ::close(fd);
    fd = higher;
  }
  fd_ = fd;
  return fd_ >= 0;
}

void KernelFile::Close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::optional<std::string_view> KernelFile::Fail(int error) {
  error_ = error;
  Close();
  return std::nullopt;
}

std::optional<std::string_view> KernelFile::Read(TextBuffer* buffer) {
  if (!Open()) return Fail(errno);
  if (buffer->empty()) buffer->resize(8192);
  std::size_t n = 0;
  for (;;) {
    if (n == buffer->size()) {
      if (n >= kMaxBytes) return Fail(EFBIG);
      buffer->resize(2 * n);
    }
    const std::size_t room = buffer->size() - n;
    const ssize_t got =
        ::pread(fd_, buffer->data() + n, room, static_cast<off_t>(n));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(errno);
    n += static_cast<std::size_t>(got);
    const bool has_room = static_cast<std::size_t>(got) < room;
    if (got == 0 || (has_room && content_ == Content::kRecord)) break;
  }
  if (!stays_open_) Close();
  return std::string_view(buffer->data(), n);
}

std::optional<std::string_view> ReadOnce(const std::string& path,
                                         TextBuffer* buffer) {
  return KernelFile(path, KernelFile::Content::kTable, /*stays_open=*/false)
      .Read(buffer);
}

std::uint64_t ReadNumber(const std::string& path, TextBuffer* buffer) {
  return FirstNumber(ReadOnce(path, buffer).value_or(std::string_view()));
}

}  // namespace tdbg
