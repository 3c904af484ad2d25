// A file of /proc or /sys that is read again and again: it stays open, and each
// reading starts at its beginning.
//
// Thread safety: none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tdbg {

// Where files are read to; one for all files of a thread.
using TextBuffer = std::string;

class KernelFile {
 public:
  // More than any file of the kernel's that is read here, and the end of one
  // that never ends.
  static constexpr std::size_t kMaxBytes = 16U << 20;

  // How the kernel fills a file.  A table comes in parts, each of whole lines,
  // up to an empty one; a record comes in one part, which saves a call.
  enum class Content : std::uint8_t { kTable, kRecord };

  KernelFile() = default;
  // `stays_open`: whether it is open between readings.
  explicit KernelFile(std::string path, Content content = Content::kTable,
                      bool stays_open = true)
      : path_(std::move(path)), content_(content), stays_open_(stays_open) {}
  KernelFile(KernelFile&& other) noexcept;
  KernelFile& operator=(KernelFile&& other) noexcept;
  KernelFile(const KernelFile&) = delete;
  KernelFile& operator=(const KernelFile&) = delete;
  ~KernelFile();

  // What the file holds now, in `buffer` and until that changes; nothing if it
  // cannot be read, see error().
  std::optional<std::string_view> Read(TextBuffer* buffer);

  // The errno of the last reading that failed; 0: none has.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  bool Open();
  void Close();
  std::optional<std::string_view> Fail(int error);

  std::string path_;
  Content content_ = Content::kTable;
  bool stays_open_ = true;
  int fd_ = -1;
  int error_ = 0;
};

// What a file holds, read once.
std::optional<std::string_view> ReadOnce(const std::string& path,
                                         TextBuffer* buffer);

// The number that a file holds, read once; kNotMeasured if it holds none.
std::uint64_t ReadNumber(const std::string& path, TextBuffer* buffer);

}  // namespace tdbg
