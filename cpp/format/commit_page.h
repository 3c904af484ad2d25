// The commit page: how far a writer is and whether it lives.
//
// Implements docs/format.md, "The commit page".  Pure functions over bytes.
//
// Thread safety: values and pure functions.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "format/record.h"

namespace tdbg {

inline constexpr std::size_t kCommitPageBytes = 4096;
inline constexpr std::size_t kCommitSlotBytes = 64;

// On disk: never renumber.
enum class WriterState : std::uint16_t {
  kRunning = 1,
  kClosed = 2,
  kDegraded = 3,
};

struct CommitHeader {
  std::uint32_t pid = 0;
  Uuid boot_id{};
  std::uint64_t process_start = 0;
  Uuid host{};
};

struct CommitSlot {
  std::uint64_t counter = 0;
  std::uint64_t visible = 0;
  std::uint64_t durable = 0;
  std::int64_t heartbeat_ns = 0;
  std::uint64_t written = 0;
  std::uint64_t lost = 0;  // Dropped or failed.
  std::uint32_t shard_number = 0;
  WriterState state = WriterState::kRunning;
  std::uint16_t last_errno = 0;
};

// Offset in the page of the slot that `counter` is written to.
[[nodiscard]] constexpr std::size_t CommitSlotOffset(std::uint64_t counter) {
  return 64 + kCommitSlotBytes * static_cast<std::size_t>(counter & 1);
}

std::array<std::byte, kCommitPageBytes> EncodeCommitPage(
    const CommitHeader& header, const CommitSlot& slot);
void EncodeCommitSlot(const CommitSlot& slot, std::span<std::byte, 64> out);

Result<CommitHeader> DecodeCommitHeader(std::span<const std::byte> page);
// The valid slot with the highest counter.
Result<CommitSlot> DecodeCommitSlots(std::span<const std::byte> page);

}  // namespace tdbg
