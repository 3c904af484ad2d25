// The kernel of histograms, written once as plain loops that the compiler turns
// into vectors of the instruction set it compiles for.
//
// A block of elements becomes keys, then the keys are counted.  The loops about
// keys are cheap: they run at the speed of vectors, while counting takes more
// than a cycle for each element, whatever the instruction set.  So everything
// that saves an increment is done before: zeros are counted as vectors, and a
// block whose elements are alike but for their signs is counted at once.
//
// How keys are rid of zeros is a parameter, Zeros: SpareKeys for any
// instruction set, or what a file defines for its own.
//
// In an anonymous namespace: see reducers/moments.h.  Thread safety: pure
// functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/bin_keys-inl.h"
#include "reducers/bins.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Elements of a block: their keys stay in L1 beside the counters in use.
constexpr std::size_t kBinBlock = 1024;

// --- Keys --------------------------------------------------------------------
//
// KeyOf is the key of an element.  KeyIfOrdinary is the same where it is
// neither kZeroKey nor kInfinityKey or beyond, and costs less: where it is one
// of those, with or without a sign, KeyOf may be another.

inline std::uint16_t KeyOf(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const auto low = static_cast<std::uint16_t>(bits);
  return KeyOfHalves(static_cast<std::uint16_t>(bits >> 16), low, low == 0);
}
inline std::uint16_t KeyIfOrdinary(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return static_cast<std::uint16_t>(bits >> 16);
}

inline std::uint16_t KeyOf(BFloat16 x) {
  const std::uint16_t magnitude = x.bits & kMagnitudeOfKey;
  const std::uint16_t key = magnitude > kInfinityKey ? kNanKey : x.bits;
  return magnitude == 0 ? kZeroKey : key;
}
inline std::uint16_t KeyIfOrdinary(BFloat16 x) { return x.bits; }

// Subnormal numbers are integers times 2^-24.
inline std::uint16_t KeyOf(Float16 x) {
  const std::uint32_t bits = x.bits;
  const std::uint32_t magnitude = bits & 0x7fffU;
  const auto integer = static_cast<float>(static_cast<std::int32_t>(magnitude));
  const std::uint32_t subnormal =
      (__builtin_bit_cast(std::uint32_t, integer) >> 16) - (24U << 7);
  const std::uint32_t normal = (magnitude >> 3) + ((127U - 15U) << 7);
  // Masks: given a choice, compilers branch, and make no vectors.
  const std::uint32_t is_normal = magnitude < 0x400U ? 0U : 0xffffU;
  std::uint32_t key = (normal & is_normal) | (subnormal & ~is_normal);
  key = magnitude >= 0x7c00U ? kInfinityKey : key;
  key |= bits & kSignBit;
  key = magnitude > 0x7c00U ? kNanKey : key;
  key = magnitude == 0 ? kZeroKey : key;
  return static_cast<std::uint16_t>(key);
}

// The exponent counts from 2^-1023, that of the key from 2^-127.
inline std::uint16_t KeyIfOrdinary(double x) {
  const auto bits =
      static_cast<std::uint32_t>(__builtin_bit_cast(std::uint64_t, x) >> 32);
  constexpr std::uint32_t kLeastNormal = 0x80;
  const std::uint32_t key =
      ((bits & 0x7fffffffU) >> 13) - ((1023U - 127U) << 7);
  const bool is_normal = key - kLeastNormal < kInfinityKey - kLeastNormal;
  return static_cast<std::uint16_t>(is_normal ? key | (bits >> 31 << 15) : 0U);
}

template <typename T>
inline std::uint16_t KeyOf(T x) {
  static_assert(T{1} / T{2} == T{0}, "an integer");
  if constexpr (sizeof(T) == 2) return KeyOf(static_cast<float>(x));
  if constexpr (sizeof(T) == 4) return KeyOf(static_cast<double>(x));
  const auto bits = static_cast<std::uint64_t>(x);
  if constexpr (T(-1) > T{0}) return KeyOfMagnitude(bits);
  const std::uint16_t sign = x < 0 ? kSignBit : 0U;
  return KeyOfMagnitude(x < 0 ? 0U - bits : bits) | sign;
}
// --- Blocks of keys ----------------------------------------------------------

// The bits that the keys of a block have in common; without signs.
struct KeySummary {
  std::uint16_t least_but_zero = 0xffff;  // Less one.
  std::uint16_t greatest = 0;
  std::uint16_t zeros = 0;
  std::uint16_t negatives = 0;
};

inline KeySummary SummaryOf(const std::uint16_t* keys, std::size_t n) {
  KeySummary s;
  for (std::size_t i = 0; i < n; ++i) {
    const auto magnitude =
        static_cast<std::uint16_t>(keys[i] & kMagnitudeOfKey);
    const auto less = static_cast<std::uint16_t>(magnitude - 1U);
    s.least_but_zero = less < s.least_but_zero ? less : s.least_but_zero;
    s.greatest = magnitude > s.greatest ? magnitude : s.greatest;
    s.zeros = static_cast<std::uint16_t>(s.zeros + (magnitude == 0 ? 1U : 0U));
    s.negatives = static_cast<std::uint16_t>(s.negatives + (keys[i] >> 15));
  }
  return s;
}

// The keys of a block of elements.
template <typename T>
inline KeySummary MakeKeys(const T* p, std::size_t n, std::uint16_t* keys) {
  if constexpr (requires { KeyIfOrdinary(p[0]); }) {
    for (std::size_t i = 0; i < n; ++i) keys[i] = KeyIfOrdinary(p[i]);
    const KeySummary s = SummaryOf(keys, n);
    if (s.zeros == 0 && s.greatest < kInfinityKey) return s;
  }
  for (std::size_t i = 0; i < n; ++i) keys[i] = KeyOf(p[i]);
  return SummaryOf(keys, n);
}
template <typename T>
inline KeySummary MakeKeys(const T* p, std::size_t n, double scale,
                           std::uint16_t* keys) {
  if constexpr (requires { ToFloat(p[0]); }) {
    if (scale != 1.0) {
      double scaled[kBinBlock];
      Widen(p, n, scale, scaled);
      return MakeKeys(scaled, n, keys);
    }
  }
  return MakeKeys(p, n, keys);
}

// Spreads zeros over counters that nobody reads: a counter of their own would
// have each increment wait for the one before.
struct SpareKeys {
  // Replaces kZeroKey among the n keys, of which some are others, and returns
  // how many keys there are then.
  static std::size_t WithoutZeros(std::uint16_t* keys, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto spare =
          static_cast<std::uint16_t>(kFirstSpareKey + i % kSpareKeys);
      keys[i] = keys[i] == kZeroKey ? spare : keys[i];
    }
    return n;
  }
};

// Increments the counter of each key, and meanwhile fetches the memory of a
// block that comes later: `bytes_per_key` for each key.
inline void CountKeys(const std::uint16_t* keys, std::size_t n,
                      const char* later, std::size_t bytes_per_key,
                      std::uint32_t* counts) {
  constexpr std::size_t kKeysInStep = 8;
  std::size_t i = 0;
  for (; i + kKeysInStep <= n; i += kKeysInStep) {
    __builtin_prefetch(later + i * bytes_per_key);
    for (std::size_t half = 0; half < kKeysInStep; half += 4) {
      std::uint64_t four;
      __builtin_memcpy(&four, keys + i + half, sizeof(four));
      ++counts[four & 0xffffU];
      ++counts[(four >> 16) & 0xffffU];
      ++counts[(four >> 32) & 0xffffU];
      ++counts[four >> 48];
    }
  }
  for (; i < n; ++i) ++counts[keys[i]];
}

// Adds the keys of a block, which it may overwrite.
template <typename Zeros>
inline void AddKeys(const KeySummary& s, std::uint16_t* keys, std::size_t n,
                    const char* later, std::size_t bytes_per_key,
                    BinTable* table) {
  table->zeros += s.zeros;
  const std::size_t n_counted = n - s.zeros;
  if (n_counted == 0) return;
  const auto least = static_cast<std::uint16_t>(s.least_but_zero + 1U);
  table->least = least < table->least ? least : table->least;
  table->greatest = s.greatest > table->greatest ? s.greatest : table->greatest;
  table->has_negative |= s.negatives > 0;
  table->has_positive |= s.negatives < n_counted;
  if (least == s.greatest) {
    const auto n_negative = static_cast<std::uint32_t>(s.negatives);
    table->counts[kSignBit | least] += n_negative;
    table->counts[least] += static_cast<std::uint32_t>(n_counted) - n_negative;
    return;
  }
  const std::size_t n_keys = s.zeros == 0 ? n : Zeros::WithoutZeros(keys, n);
  CountKeys(keys, n_keys, later, bytes_per_key, table->counts);
}

template <typename Zeros, typename T>
inline void CountElements(const void* data, std::size_t n, double scale,
                          BinTable* table) {
  // Two blocks ahead: memory answers while one is counted.
  constexpr std::size_t kAhead = 2 * kBinBlock;
  const auto* p = static_cast<const T*>(data);
  alignas(64) std::uint16_t keys[kBinBlock];
  while (n > 0) {
    const std::size_t n_block = n < kBinBlock ? n : kBinBlock;
    const KeySummary s = MakeKeys(p, n_block, scale, keys);
    const bool is_far = n >= kAhead + kBinBlock;
    const void* later = is_far ? static_cast<const void*>(p + kAhead) : keys;
    AddKeys<Zeros>(s, keys, n_block, static_cast<const char*>(later),
                   is_far ? sizeof(T) : 0, table);
    p += n_block;
    n -= n_block;
  }
}

template <typename Zeros>
inline void CountBinsAny(const void* data, std::size_t n, DType dtype,
                         double scale, BinTable* table) {
  switch (dtype) {
    case DType::kFloat32:
      return CountElements<Zeros, float>(data, n, scale, table);
    case DType::kFloat16:
      return CountElements<Zeros, Float16>(data, n, scale, table);
    case DType::kBFloat16:
      return CountElements<Zeros, BFloat16>(data, n, scale, table);
    case DType::kFloat64:
      return CountElements<Zeros, double>(data, n, scale, table);
    case DType::kInt16:
      return CountElements<Zeros, std::int16_t>(data, n, 1.0, table);
    case DType::kInt32:
      return CountElements<Zeros, std::int32_t>(data, n, 1.0, table);
    case DType::kInt64:
      return CountElements<Zeros, std::int64_t>(data, n, 1.0, table);
    case DType::kUInt16:
      return CountElements<Zeros, std::uint16_t>(data, n, 1.0, table);
    case DType::kUInt32:
      return CountElements<Zeros, std::uint32_t>(data, n, 1.0, table);
    case DType::kUInt64:
      return CountElements<Zeros, std::uint64_t>(data, n, 1.0, table);
    default:  // Those of 8 bits have a counter of their own: byte_values.h.
      return;
  }
}

}  // namespace
}  // namespace tdbg
