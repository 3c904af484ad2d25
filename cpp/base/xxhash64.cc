#include "base/xxhash64.h"

#include <array>
#include <bit>
#include <cstring>

namespace tdbg {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5;
constexpr std::size_t kStripe = 32;

static_assert(std::endian::native == std::endian::little);

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

std::uint64_t Round(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

std::uint64_t MergeLane(std::uint64_t hash, std::uint64_t lane) {
  return (hash ^ Round(0, lane)) * kPrime1 + kPrime4;
}

// Takes all whole stripes of the input; moves `at` behind them.
std::uint64_t HashStripes(const std::byte** at, const std::byte* end,
                          std::uint64_t seed) {
  std::array<std::uint64_t, 4> lanes = {seed + kPrime1 + kPrime2,
                                        seed + kPrime2, seed, seed - kPrime1};
  const std::byte* next = *at;
  while (static_cast<std::size_t>(end - next) >= kStripe) {
    for (std::uint64_t& lane : lanes) {
      lane = Round(lane, Load<std::uint64_t>(next));
      next += sizeof(lane);
    }
  }
  *at = next;
  std::uint64_t hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) +
                       std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
  for (const std::uint64_t lane : lanes) hash = MergeLane(hash, lane);
  return hash;
}

std::uint64_t HashRest(const std::byte* at, const std::byte* end,
                       std::uint64_t hash) {
  for (; end - at >= 8; at += 8) {
    hash ^= Round(0, Load<std::uint64_t>(at));
    hash = std::rotl(hash, 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash ^= Load<std::uint32_t>(at) * kPrime1;
    hash = std::rotl(hash, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) {
    hash ^= std::to_integer<std::uint64_t>(*at) * kPrime5;
    hash = std::rotl(hash, 11) * kPrime1;
  }
  return hash;
}

}  // namespace

std::uint64_t XxHash64(const void* data, std::size_t n, std::uint64_t seed) {
  const auto* at = static_cast<const std::byte*>(data);
  const std::byte* const end = at + n;
  std::uint64_t hash = seed + kPrime5;
  if (n >= kStripe) hash = HashStripes(&at, end, seed);
  hash = HashRest(at, end, hash + n);
  hash = (hash ^ (hash >> 33U)) * kPrime2;
  hash = (hash ^ (hash >> 29U)) * kPrime3;
  return hash ^ (hash >> 32U);
}

}  // namespace tdbg
