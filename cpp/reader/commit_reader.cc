#include "reader/commit_reader.h"

#include <array>
#include <cerrno>

#include "base/clock.h"
#include "base/process.h"
#include "reader/input_file.h"

namespace tdbg {
namespace {

constexpr std::int64_t kStalledAfterNs = 10'000'000'000;

}  // namespace

void CommitReader::ReadPage(const Directory* directory) {
  InputFile file(directory, "COMMIT");
  std::array<std::byte, 64 + 2 * kCommitSlotBytes> page{};
  refusal_ = file.Read(0, page);
  if (!refusal_.ok()) {
    const bool is_refused = refusal_.code() == StatusCode::kIoError &&
                            refusal_.system_error() != ENOENT;
    if (!is_refused) refusal_ = Status::Ok();
    return;
  }
  const auto header = DecodeCommitHeader(page);
  if (!header.ok()) return;
  header_ = header.value();
  const auto slot = DecodeCommitSlots(page);
  if (!slot.ok()) return;
  // A torn slot makes the other one, an older one, the highest.
  if (!slot_ || slot.value().counter >= slot_->counter) slot_ = slot.value();
}

bool CommitReader::IsOnThisMachine() const {
  static const auto boot = BootId();
  static const auto host = HostId();
  return header_->boot_id == boot && header_->host == host && boot != Uuid{};
}

void CommitReader::Poll(const Directory* directory) {
  ReadPage(directory);
  if (const auto told = directory->ToldLiveness()) {
    liveness_ = *told;
    return;
  }
  liveness_ = Liveness::kUnknown;
  if (!header_ || !slot_) return;
  if (slot_->state == WriterState::kClosed) {
    liveness_ = Liveness::kClosed;
    return;
  }
  if (!IsOnThisMachine()) return;
  if (ProcessStart(header_->pid) != header_->process_start) {
    // It may have closed between our look at the page and at the process.
    ReadPage(directory);
    liveness_ = slot_->state == WriterState::kClosed ? Liveness::kClosed
                                                     : Liveness::kDead;
    return;
  }
  liveness_ = slot_->heartbeat_ns < BootNs() - kStalledAfterNs
                  ? Liveness::kStalled
                  : Liveness::kRunning;
}

}  // namespace tdbg
