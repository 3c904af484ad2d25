#include "format/plane_kernels.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace tdbg {
namespace {

template <typename T>
T At(const std::byte* p, std::size_t i) {
  T value;
  std::memcpy(&value, p + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Split(const std::byte* raw, std::size_t n, bool rotate,
           std::byte* const* planes) {
  const int by = rotate ? 1 : 0;
  // A block at a time, so that all planes find it in the cache.
  constexpr std::size_t kBlock = 4096;
  T block[kBlock];
  for (std::size_t from = 0; from < n; from += kBlock) {
    const std::size_t m = n - from < kBlock ? n - from : kBlock;
    std::memcpy(block, raw + from * sizeof(T), m * sizeof(T));
    for (std::size_t i = 0; i < m; ++i) block[i] = std::rotl(block[i], by);
    for (std::size_t p = 0; p < sizeof(T); ++p) {
      std::byte* to = planes[p] + from;
      for (std::size_t i = 0; i < m; ++i) {
        to[i] = static_cast<std::byte>(block[i] >> (8 * p));
      }
    }
  }
}

template <typename T>
void Join(const std::byte* const* planes, std::size_t n, bool rotate,
          std::byte* raw) {
  const int by = rotate ? 1 : 0;
  constexpr std::size_t kBlock = 4096;
  T block[kBlock];
  for (std::size_t from = 0; from < n; from += kBlock) {
    const std::size_t m = n - from < kBlock ? n - from : kBlock;
    std::memset(block, 0, sizeof(block));
    for (std::size_t p = 0; p < sizeof(T); ++p) {
      const std::byte* in = planes[p] + from;
      for (std::size_t i = 0; i < m; ++i) {
        block[i] |= static_cast<T>(static_cast<T>(in[i]) << (8 * p));
      }
    }
    for (std::size_t i = 0; i < m; ++i) block[i] = std::rotr(block[i], by);
    std::memcpy(raw + from * sizeof(T), block, m * sizeof(T));
  }
}

template <typename T>
std::size_t Compact(const std::byte* raw, std::size_t n, std::byte* bitmap,
                    std::byte* values) {
  std::size_t n_values = 0;
  for (std::size_t from = 0; from < n; from += 8) {
    const std::size_t m = n - from < 8 ? n - from : 8;
    unsigned bits = 0;
    for (std::size_t i = 0; i < m; ++i) {
      const T value = At<T>(raw, from + i);
      const unsigned is_value = value != 0 ? 1 : 0;
      bits |= is_value << i;
      // Written always, so that nothing depends on a branch that is guessed.
      std::memcpy(values + n_values * sizeof(T), &value, sizeof(T));
      n_values += is_value;
    }
    bitmap[from / 8] = static_cast<std::byte>(bits);
  }
  return n_values;
}

template <typename T>
void Expand(const std::byte* bitmap, const std::byte* values, std::size_t n,
            std::byte* raw) {
  if (n == 0) return;
  std::memset(raw, 0, n * sizeof(T));
  for (std::size_t from = 0; from < n; from += 8) {
    auto bits = static_cast<unsigned>(bitmap[from / 8]);
    while (bits != 0) {
      const auto i = static_cast<std::size_t>(std::countr_zero(bits));
      std::memcpy(raw + (from + i) * sizeof(T), values, sizeof(T));
      values += sizeof(T);
      bits &= bits - 1;
    }
  }
}

void SplitAny(const std::byte* raw, std::size_t n, std::uint32_t width,
              bool rotate, std::byte* const* planes) {
  if (width == 8) return Split<std::uint64_t>(raw, n, rotate, planes);
  if (width == 4) return Split<std::uint32_t>(raw, n, rotate, planes);
  if (width == 2) return Split<std::uint16_t>(raw, n, rotate, planes);
  return Split<std::uint8_t>(raw, n, rotate, planes);
}

void JoinAny(const std::byte* const* planes, std::size_t n, std::uint32_t width,
             bool rotate, std::byte* raw) {
  if (width == 8) return Join<std::uint64_t>(planes, n, rotate, raw);
  if (width == 4) return Join<std::uint32_t>(planes, n, rotate, raw);
  if (width == 2) return Join<std::uint16_t>(planes, n, rotate, raw);
  return Join<std::uint8_t>(planes, n, rotate, raw);
}

std::size_t CompactAny(const std::byte* raw, std::size_t n, std::uint32_t width,
                       std::byte* bitmap, std::byte* values) {
  if (width == 8) return Compact<std::uint64_t>(raw, n, bitmap, values);
  if (width == 4) return Compact<std::uint32_t>(raw, n, bitmap, values);
  if (width == 2) return Compact<std::uint16_t>(raw, n, bitmap, values);
  return Compact<std::uint8_t>(raw, n, bitmap, values);
}

std::size_t CountBits(const std::byte* bitmap, std::size_t n) {
  std::size_t n_bits = 0;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    n_bits += static_cast<std::size_t>(
        std::popcount(At<std::uint64_t>(bitmap + i, 0)));
  }
  for (; i < n; ++i) {
    n_bits += static_cast<std::size_t>(
        std::popcount(static_cast<std::uint8_t>(bitmap[i])));
  }
  return n_bits;
}

void ExpandAny(const std::byte* bitmap, const std::byte* values,
               std::size_t /*n_values*/, std::size_t n, std::uint32_t width,
               std::byte* raw) {
  if (width == 8) return Expand<std::uint64_t>(bitmap, values, n, raw);
  if (width == 4) return Expand<std::uint32_t>(bitmap, values, n, raw);
  if (width == 2) return Expand<std::uint16_t>(bitmap, values, n, raw);
  return Expand<std::uint8_t>(bitmap, values, n, raw);
}

constexpr PlaneKernels kPortable = {"portable",  &SplitAny,  &JoinAny,
                                    &CompactAny, &CountBits, &ExpandAny};

#ifdef TDBG_HAVE_AVX2
constexpr PlaneKernels kAvx2 = {"avx2",       &SplitPlanesAvx2, &JoinPlanesAvx2,
                                &CompactAvx2, &CountBitsAvx2,   &ExpandAvx2};
#endif

}  // namespace

const PlaneKernels& PortablePlaneKernels() { return kPortable; }

const PlaneKernels* Avx2PlaneKernels() {
#ifdef TDBG_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") != 0 &&
      __builtin_cpu_supports("popcnt") != 0) {
    return &kAvx2;
  }
#endif
  return nullptr;
}

const PlaneKernels& PlaneKernelsInUse() {
  static const PlaneKernels* const in_use = [] {
    const char* forced = std::getenv("TDBG_FORCE_IMPLEMENTATION");
    const bool is_plain =
        forced != nullptr && std::string_view(forced) == "portable";
    const PlaneKernels* best = Avx2PlaneKernels();
    return is_plain || best == nullptr ? &kPortable : best;
  }();
  return *in_use;
}

}  // namespace tdbg
