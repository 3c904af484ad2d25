#include "base/crc32c.h"

#include <array>

#include "base/coding.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace tdbg {
namespace {

constexpr std::uint32_t kReflectedPolynomial = 0x82f63b78U;

// tables[k][b] is the CRC of byte b followed by k zero bytes.
constexpr auto MakeTables() {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1U) != 0 ? kReflectedPolynomial : 0U);
    }
    tables[0][b] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t b = 0; b < 256; ++b) {
      const std::uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xffU];
    }
  }
  return tables;
}
constexpr auto kTables = MakeTables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t Crc32cSse42(const std::byte* p,
                                                            std::size_t n,
                                                            std::uint32_t crc) {
  std::uint64_t state = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    state = _mm_crc32_u64(state, Load<std::uint64_t>(p));
  }
  auto narrow = static_cast<std::uint32_t>(state);
  for (; n > 0; --n, ++p) {
    narrow = _mm_crc32_u8(narrow, static_cast<std::uint8_t>(*p));
  }
  return ~narrow;
}
#endif

}  // namespace

std::uint32_t Crc32cPortable(const void* data, std::size_t n,
                             std::uint32_t crc) {
  const auto* p = static_cast<const std::byte*>(data);
  std::uint32_t state = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    const std::uint64_t x = Load<std::uint64_t>(p) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      state ^= kTables[7 - k][(x >> (8 * k)) & 0xffU];
    }
  }
  for (; n > 0; --n, ++p) {
    state = (state >> 8) ^
            kTables[0][(state ^ static_cast<std::uint32_t>(*p)) & 0xffU];
  }
  return ~state;
}

std::uint32_t Crc32c(const void* data, std::size_t n, std::uint32_t crc) {
#if defined(__x86_64__)
  static const bool has_sse42 = __builtin_cpu_supports("sse4.2") != 0;
  if (has_sse42) {
    return Crc32cSse42(static_cast<const std::byte*>(data), n, crc);
  }
#endif
  return Crc32cPortable(data, n, crc);
}

}  // namespace tdbg
