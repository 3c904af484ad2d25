// CommitReader follows the commit page of a writer directory, and says whether
// the writer lives.
//
// Implements docs/format.md, "The commit page".  What it says is about the
// writer, never about recorded data.
//
// Limit: a process is looked for in this process's pid namespace; a writer in
// another one on the same host, under the same host name, passes for dead.
//
// Thread safety: none.

#pragma once

#include <optional>

#include "base/status.h"
#include "format/commit_page.h"
#include "reader/directory.h"
#include "reader/liveness.h"

namespace tdbg {

class CommitReader {
 public:
  // Reads COMMIT in `directory`.  A page that cannot be
  // read or does not hold leaves everything as it was.
  void Poll(const Directory* directory);

  // What the system refused at the last Poll; ok where there is no page, too.
  [[nodiscard]] const Status& refusal() const { return refusal_; }
  // State at the last Poll.
  [[nodiscard]] Liveness liveness() const { return liveness_; }
  // Who writes, once the page was read.
  [[nodiscard]] const std::optional<CommitHeader>& header() const {
    return header_;
  }
  // The last valid slot seen; its counter never falls.
  [[nodiscard]] const std::optional<CommitSlot>& slot() const { return slot_; }
  // Whether the page was written on this machine since it was booted.
  // REQUIRES: slot().
  [[nodiscard]] bool IsOnThisMachine() const;

 private:
  void ReadPage(const Directory* directory);

  std::optional<CommitHeader> header_;
  std::optional<CommitSlot> slot_;
  Status refusal_;
  Liveness liveness_ = Liveness::kUnknown;
};

}  // namespace tdbg
