// LocalDirectory is the directory of a writer on this machine, held open.
//
// It never follows a symbolic link in there, and never blocks on a fifo or a
// device.  Its descriptor can be given up, and is opened again when it is
// needed: a run may have more writers than a process may have descriptors.
//
// Thread safety: none.

#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "reader/directory.h"

namespace tdbg {

class LocalDirectory final : public Directory {
 public:
  // Errors: kNotFound or kIoError when there is no such directory.
  static Result<std::unique_ptr<LocalDirectory>> Open(const std::string& path);
  ~LocalDirectory() override { Close(); }
  LocalDirectory(const LocalDirectory&) = delete;
  LocalDirectory& operator=(const LocalDirectory&) = delete;

  [[nodiscard]] std::unique_ptr<FileBytes> File(
      const std::string& name) const override;
  [[nodiscard]] Result<std::uint64_t> SizeOf(
      const std::string& name) const override;
  [[nodiscard]] Result<std::uint64_t> InodeOf(
      const std::string& name) const override;
  Status ForEachName(const VisitName& visit) const override;
  [[nodiscard]] std::uint64_t CountBytes() const override;
  [[nodiscard]] std::optional<std::int64_t> Version() const override;
  void Close() const override;

  // An open descriptor; -1, with errno, where it cannot be opened again, or
  // another directory has taken its place.
  [[nodiscard]] int descriptor() const;

 private:
  // What has a name, without following a link.
  [[nodiscard]] Result<struct stat> Look(const std::string& name) const;

  explicit LocalDirectory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  mutable int descriptor_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace tdbg
