// A commit page: its header and both slots.
//
// Promises: of two slots that hold, the one with the higher counter is taken.

#include "format/commit_page.h"
#include "fuzz.h"
#include "repair.h"

namespace tdbg::fuzz {

std::vector<Bytes> Seeds() {
  CommitSlot slot;
  slot.counter = 7;
  slot.visible = 4096;
  slot.durable = 128;
  slot.shard_number = 3;
  auto page = EncodeCommitPage({.pid = 42}, slot);
  const Bytes with_one(page.begin(), page.end());
  ++slot.counter;
  EncodeCommitSlot(slot, std::span(page)
                             .subspan(CommitSlotOffset(slot.counter))
                             .first<kCommitSlotBytes>());
  return {with_one, Bytes(page.begin(), page.end())};
}

namespace {

constexpr std::size_t kPart = 64;  // The header and the slots.

void RepairPage(std::span<std::byte> bytes) {
  for (std::size_t at = 0;
       at + kPart <= std::min<std::size_t>(bytes.size(), 192); at += kPart) {
    RepairLast(bytes.subspan(at, kPart));
  }
}

}  // namespace
}  // namespace tdbg::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data,
                                               std::size_t size,
                                               std::size_t max_size,
                                               unsigned seed) {
  return tdbg::fuzz::MutateAndRepair(data, size, max_size, seed,
                                     tdbg::fuzz::RepairPage);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace tdbg;  // NOLINT
  const auto page = fuzz::AsBytes(data, size);
  static_cast<void>(DecodeCommitHeader(page));
  const auto slot = DecodeCommitSlots(page);
  if (!slot.ok()) return 0;
  std::uint64_t highest = 0;
  for (const std::uint64_t other : {1U, 0U}) {
    // The page with one of its slots alone.
    fuzz::Bytes alone(page.begin(), page.end());
    const std::size_t at = CommitSlotOffset(other);
    if (at < size)
      std::fill_n(alone.begin() + static_cast<std::ptrdiff_t>(at),
                  std::min(size - at, kCommitSlotBytes), std::byte{0xff});
    const auto found = DecodeCommitSlots(alone);
    if (found.ok()) highest = std::max(highest, found.value().counter);
  }
  fuzz::Expect(slot.value().counter == highest, "the newest slot is taken");
  return 0;
}
