#include "writer/commit_writer.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "base/clock.h"
#include "base/process.h"

namespace tdbg {

Status CommitWriter::Open(FileSystem* file_system, const std::string& path,
                          const CommitSlot& slot) {
  Result<File> file = File::Create(file_system, path);
  if (!file.ok()) return file.status();
  file_ = std::move(file).value();
  const auto pid = static_cast<std::uint32_t>(::getpid());
  const CommitHeader header{.pid = pid,
                            .boot_id = BootId(),
                            .process_start = ProcessStart(pid),
                            .host = HostId()};
  CommitSlot first = slot;
  first.counter = ++counter_;
  first.heartbeat_ns = BootNs();
  return file_.WriteAt(EncodeCommitPage(header, first), 0);
}

Status CommitWriter::Write(CommitSlot slot) {
  slot.counter = counter_ + 1;
  slot.heartbeat_ns = BootNs();
  std::array<std::byte, kCommitSlotBytes> bytes{};
  EncodeCommitSlot(slot, bytes);
  TDBG_RETURN_IF_ERROR(file_.WriteAt(bytes, CommitSlotOffset(slot.counter)));
  // Only now: after a torn write the same slot is tried again, never the one
  // that is still whole.
  ++counter_;
  return Status::Ok();
}

}  // namespace tdbg
