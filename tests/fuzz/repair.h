// Makes the checksums of mutated bytes right again, as far as there is anything
// that has one: what a checksum would refuse shows nothing of the code behind
// it.

#pragma once

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "format/record.h"
#include "fuzz.h"

namespace tdbg::fuzz {

template <typename T>
T Load(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <typename T>
void Store(std::span<std::byte> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

inline std::uint32_t Crc(std::span<const std::byte> bytes) {
  return MaskedCrc32c(bytes.data(), bytes.size());
}

// Mutates a few times, then repairs: but for one input of eight, as those whose
// checksums are wrong will be met, too.
inline std::size_t MutateAndRepair(std::uint8_t* data, std::size_t size,
                                   std::size_t max_size, unsigned seed,
                                   void (*repair)(std::span<std::byte>)) {
  for (unsigned i = 0; i <= seed % 4; ++i) {
    size = LLVMFuzzerMutate(data, size, max_size);
  }
  if (seed / 4 % 8 != 0) repair({reinterpret_cast<std::byte*>(data), size});
  return size;
}

// Of a structure whose last four bytes are the checksum of those before.
inline void RepairLast(std::span<std::byte> bytes) {
  const std::size_t n = bytes.size() - 4;
  Store(bytes, n, Crc(bytes.first(n)));
}

// Of a shard: the file header and each record that begins with the magic.
inline void RepairShard(std::span<std::byte> bytes) {
  if (bytes.size() < limits::kFileHeader) return;
  RepairLast(bytes.first(limits::kFileHeader));
  for (std::size_t at = limits::kFileHeader;
       at + limits::kRecordHeader <= bytes.size(); at += limits::kAlignment) {
    if (std::memcmp(bytes.data() + at, "TDR1", 4) != 0) continue;
    const auto header = bytes.subspan(at, limits::kRecordHeader);
    std::memcpy(header.data() + 8, bytes.data() + 80, 8);  // The salt.
    const auto payload = bytes.subspan(at + limits::kRecordHeader);
    const auto checked = Load<std::uint64_t>(header, 40);
    if (checked <= payload.size()) {
      Store(header, 52, Crc(payload.first(checked)));
    }
    RepairLast(header);
  }
}

}  // namespace tdbg::fuzz
