// Directory is the directory of a writer, held open.
//
// Its descriptor can be given up, and is opened again when it is needed: a run
// may have more writers than a process may have descriptors.
//
// Thread safety: none.

#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"

namespace tdbg {

class Directory {
 public:
  // Errors: kNotFound or kIoError when there is no such directory.
  static Result<std::unique_ptr<Directory>> Open(const std::string& path);
  ~Directory() { Close(); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // An open descriptor; -1, with errno, where it cannot be opened again, or
  // another directory has taken its place.
  [[nodiscard]] int descriptor() const;
  // Gives the descriptor up.
  void Close() const;

 private:
  explicit Directory(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  mutable int descriptor_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace tdbg
