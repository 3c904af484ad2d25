#include "format/commit_page.h"

#include <cstring>

#include "base/coding.h"
#include "base/crc32c.h"

namespace tdbg {
namespace {

constexpr std::array<unsigned char, 8> kCommitMagic = {0x89, 'T',  'D',  'C',
                                                       '\r', '\n', 0x1a, '\n'};
constexpr std::uint16_t kCommitVersion = 1;
constexpr std::uint16_t kHeaderBytes = 64;

}  // namespace

void EncodeCommitSlot(const CommitSlot& slot, std::span<std::byte, 64> out) {
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  Store(p, slot.counter);
  Store(p + 8, slot.visible);
  Store(p + 16, slot.durable);
  Store(p + 24, slot.heartbeat_ns);
  Store(p + 32, slot.written);
  Store(p + 40, slot.lost);
  Store(p + 48, slot.shard_number);
  Store(p + 52, static_cast<std::uint16_t>(slot.state));
  Store(p + 54, slot.last_errno);
  Store(p + 60, MaskedCrc32c(p, 60));
}

std::array<std::byte, kCommitPageBytes> EncodeCommitPage(
    const CommitHeader& header, const CommitSlot& slot) {
  std::array<std::byte, kCommitPageBytes> page{};
  std::byte* p = page.data();
  std::memcpy(p, kCommitMagic.data(), kCommitMagic.size());
  Store(p + 8, kCommitVersion);
  Store(p + 10, kHeaderBytes);
  Store(p + 12, header.pid);
  std::memcpy(p + 16, header.boot_id.data(), header.boot_id.size());
  Store(p + 32, header.process_start);
  std::memcpy(p + 40, header.host.data(), header.host.size());
  Store(p + 60, MaskedCrc32c(p, 60));
  EncodeCommitSlot(
      slot, std::span<std::byte, 64>(p + CommitSlotOffset(slot.counter), 64));
  return page;
}

Result<CommitHeader> DecodeCommitHeader(std::span<const std::byte> page) {
  if (page.size() < kHeaderBytes) {
    return Status::Corruption("commit page: too short", 0);
  }
  const std::byte* p = page.data();
  if (std::memcmp(p, kCommitMagic.data(), kCommitMagic.size()) != 0) {
    return Status::Corruption("commit page: the magic is not there", 0);
  }
  if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) {
    return Status::Corruption("commit page: checksum of the header", 0);
  }
  if (Load<std::uint16_t>(p + 8) != kCommitVersion ||
      Load<std::uint16_t>(p + 10) != kHeaderBytes) {
    return Status::Unsupported("commit page: another version");
  }
  CommitHeader header;
  header.pid = Load<std::uint32_t>(p + 12);
  std::memcpy(header.boot_id.data(), p + 16, header.boot_id.size());
  header.process_start = Load<std::uint64_t>(p + 32);
  std::memcpy(header.host.data(), p + 40, header.host.size());
  return header;
}

Result<CommitSlot> DecodeCommitSlots(std::span<const std::byte> page) {
  CommitSlot best;
  bool found = false;
  for (std::uint64_t number = 0; number < 2; ++number) {
    const std::size_t at = CommitSlotOffset(number);
    if (page.size() < at + kCommitSlotBytes) break;
    const std::byte* p = page.data() + at;
    if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) continue;
    CommitSlot slot;
    slot.counter = Load<std::uint64_t>(p);
    slot.visible = Load<std::uint64_t>(p + 8);
    slot.durable = Load<std::uint64_t>(p + 16);
    slot.heartbeat_ns = Load<std::int64_t>(p + 24);
    slot.written = Load<std::uint64_t>(p + 32);
    slot.lost = Load<std::uint64_t>(p + 40);
    slot.shard_number = Load<std::uint32_t>(p + 48);
    slot.state = static_cast<WriterState>(Load<std::uint16_t>(p + 52));
    slot.last_errno = Load<std::uint16_t>(p + 54);
    if ((slot.counter & 1) != number) continue;
    if (!found || slot.counter > best.counter) best = slot;
    found = true;
  }
  if (!found) return Status::Corruption("commit page: no valid slot", 64);
  return best;
}

}  // namespace tdbg
