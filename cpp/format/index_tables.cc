#include "format/index_tables.h"

#include <algorithm>

#include "base/crc32c.h"

namespace tdbg {

std::uint32_t Signatures::Add(std::span<const std::uint32_t> ids) {
  const std::uint32_t hash = MaskedCrc32c(ids.data(), ids.size_bytes());
  const auto [first, last] = numbers_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const auto known = Get(it->second);
    if (std::equal(known.begin(), known.end(), ids.begin(), ids.end())) {
      return it->second;
    }
  }
  const auto number = static_cast<std::uint32_t>(ends_.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ends_.push_back(ids_.size());
  numbers_.emplace(hash, number);
  return number;
}

}  // namespace tdbg
