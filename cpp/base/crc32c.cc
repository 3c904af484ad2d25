#include "base/crc32c.h"

#include <array>
#include <bit>

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
// The instruction takes three cycles and one can start every cycle, so four
// streams at a time are summed, and then joined: the CRC of a then b is the CRC
// of a followed by as many zeros as b is long, xor that of b.
constexpr int kStreams = 4;
// Streams within pages of their own keep the prefetcher of the memory busy: a
// chunk of 256 KiB in four is read at twice the speed of blocks of 4 KiB.
constexpr std::size_t kLongStream = 64U << 10;
constexpr std::size_t kMiddleStream = 4096;
constexpr std::size_t kShortStream = 256;

// What `n` zero bytes make of a CRC: a linear map, as tables by byte.
using ZerosTable = std::array<std::array<std::uint32_t, 256>, 4>;

constexpr ZerosTable MakeZerosTable(std::size_t n) {
  // Bit i of a CRC becomes columns[i]; squaring doubles the number of zeros.
  std::array<std::uint32_t, 32> columns{};
  for (std::uint32_t i = 0; i < 32; ++i) {
    const std::uint32_t crc = 1U << i;
    columns[i] = (crc >> 8) ^ kTables[0][crc & 0xffU];
  }
  for (std::size_t zeros = 1; zeros < n; zeros *= 2) {
    const auto half = columns;
    for (std::uint32_t i = 0; i < 32; ++i) {
      std::uint32_t crc = 0;
      for (std::uint32_t bit = 0; bit < 32; ++bit) {
        if ((half[i] >> bit & 1U) != 0) crc ^= half[bit];
      }
      columns[i] = crc;
    }
  }
  ZerosTable table{};
  for (std::uint32_t k = 0; k < 4; ++k) {
    for (std::uint32_t b = 0; b < 256; ++b) {
      for (std::uint32_t bit = 0; bit < 8; ++bit) {
        if ((b >> bit & 1U) != 0) table[k][b] ^= columns[8 * k + bit];
      }
    }
  }
  return table;
}
static_assert(std::has_single_bit(kLongStream) &&
              std::has_single_bit(kMiddleStream) &&
              std::has_single_bit(kShortStream));
constexpr ZerosTable kLongZeros = MakeZerosTable(kLongStream);
constexpr ZerosTable kMiddleZeros = MakeZerosTable(kMiddleStream);
constexpr ZerosTable kShortZeros = MakeZerosTable(kShortStream);

std::uint64_t WithZeros(const ZerosTable& table, std::uint64_t crc) {
  return table[0][crc & 0xffU] ^ table[1][crc >> 8 & 0xffU] ^
         table[2][crc >> 16 & 0xffU] ^ table[3][crc >> 24 & 0xffU];
}

// Sums blocks of kStreams * kStream bytes while there are any.
template <std::size_t kStream>
__attribute__((target("sse4.2"))) std::uint64_t SumStreams(
    const ZerosTable& zeros, const std::byte** p, std::size_t* n,
    std::uint64_t state) {
  for (; *n >= kStreams * kStream; *n -= kStreams * kStream) {
    const std::byte* q = *p;
    std::uint64_t s0 = state;
    std::uint64_t s1 = 0;
    std::uint64_t s2 = 0;
    std::uint64_t s3 = 0;
    for (std::size_t i = 0; i < kStream; i += 8, q += 8) {
      s0 = _mm_crc32_u64(s0, Load<std::uint64_t>(q));
      s1 = _mm_crc32_u64(s1, Load<std::uint64_t>(q + kStream));
      s2 = _mm_crc32_u64(s2, Load<std::uint64_t>(q + 2 * kStream));
      s3 = _mm_crc32_u64(s3, Load<std::uint64_t>(q + 3 * kStream));
    }
    state = WithZeros(zeros, s0) ^ s1;
    state = WithZeros(zeros, state) ^ s2;
    state = WithZeros(zeros, state) ^ s3;
    *p += kStreams * kStream;
  }
  return state;
}

__attribute__((target("sse4.2"))) std::uint32_t Crc32cSse42(const std::byte* p,
                                                            std::size_t n,
                                                            std::uint32_t crc) {
  std::uint64_t state = static_cast<std::uint32_t>(~crc);
  state = SumStreams<kLongStream>(kLongZeros, &p, &n, state);
  state = SumStreams<kMiddleStream>(kMiddleZeros, &p, &n, state);
  state = SumStreams<kShortStream>(kShortZeros, &p, &n, state);
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
