// CommitWriter keeps the commit page of a writer directory.
//
// Implements docs/format.md, "The commit page": the page is written whole once,
// then its two slots alternately.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: a failed write is returned and may be repeated with the next slot:
// the other slot, and with it the last state that a reader saw, is still whole.

#pragma once

#include <string>

#include "base/file.h"
#include "base/status.h"
#include "format/commit_page.h"

namespace tdbg {

class CommitWriter {
 public:
  // Creates `path` with this process's identity.
  Status Open(FileSystem* file_system, const std::string& path,
              const CommitSlot& slot);

  // Writes `slot`; its counter and heartbeat are filled in here.
  Status Write(CommitSlot slot);

 private:
  File file_;
  std::uint64_t counter_ = 0;
};

}  // namespace tdbg
