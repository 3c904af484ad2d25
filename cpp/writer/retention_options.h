// What retention removes: docs/retention.md.
//
// Thread safety: values.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tdbg {

struct RetentionOptions {
  // Values of the last so many steps stay; unset: age removes none.
  std::optional<std::int64_t> last_steps;
  // Of older ones, those of each step whose number in its mode is divisible by
  // it; 0: none.
  std::int64_t every = 0;
  // Bytes of all files; 0: any.
  std::uint64_t max_bytes = 0;

  static constexpr std::uint64_t kMinShardBytes = 64ULL << 10;
  static constexpr std::uint64_t kMaxShardBytes = 256ULL << 20;

  [[nodiscard]] bool is_set() const {
    return last_steps.has_value() || max_bytes != 0;
  }
  // How large a shard is to get that would be of `wanted` bytes: what goes is
  // what lies in one.
  [[nodiscard]] std::uint64_t ShardBytes(std::uint64_t wanted) const {
    if (is_set()) wanted = std::min(wanted, kMaxShardBytes);
    if (max_bytes == 0) return wanted;
    return std::min(wanted, std::max(max_bytes / 8, kMinShardBytes));
  }
};

}  // namespace tdbg
