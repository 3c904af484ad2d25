// Blocks of integers: those of up to 16 bits and small ones of 32 and 64 in
// integer arithmetic, without any rounding, the others as doubles.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/block-inl.h"
#include "reducers/extremes-inl.h"
#include "reducers/merge-inl.h"
#include "reducers/moments.h"
#include "reducers/small_integers-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Sums and counts of a block of 16-bit integers, in registers.
struct ShortLanes {
  Shorts::V min = Shorts::Set(INT16_MAX);
  Shorts::V max = Shorts::Set(INT16_MIN);
  Shorts::V abs_min = Shorts::All();
  Shorts::Words sum = Shorts::NoWords();
  Shorts::Words negative = Shorts::NoWords();  // Sum of those below zero.
  // In 64 bits unless kSmall: those of 9 bits add up in 32.
  Shorts::Words squares = Shorts::NoWords();
};

template <bool kSmall>
inline void AddShortSums(Shorts::V x, ShortLanes* b) {
  const Shorts::V one = Shorts::Set(1);
  const Shorts::V negative = Shorts::MinSigned(x, Shorts::None());
  const Shorts::Words squares = Shorts::MulAdd(x, x);
  b->sum = Shorts::Add(b->sum, Shorts::MulAdd(x, one));
  b->negative = Shorts::Add(b->negative, Shorts::MulAdd(negative, one));
  b->squares = kSmall ? Shorts::Add(b->squares, squares)
                      : Shorts::AddWide(b->squares, squares);
}

template <bool kSmall>
inline void AddShorts(Shorts::V x, ShortLanes* b) {
  b->min = Shorts::MinSigned(b->min, x);
  b->max = Shorts::MaxSigned(b->max, x);
  b->abs_min = Shorts::MinUnsigned(b->abs_min, Shorts::Abs(x));
  AddShortSums<kSmall>(x, b);
}

// Only the lanes in `mask` exist; the others are zero.
template <bool kSmall>
inline void AddMaskedShorts(Shorts::V x, Shorts::M mask, ShortLanes* b) {
  b->min = Shorts::MinSigned(b->min,
                             Shorts::Select(mask, x, Shorts::Set(INT16_MAX)));
  b->max = Shorts::MaxSigned(b->max,
                             Shorts::Select(mask, x, Shorts::Set(INT16_MIN)));
  b->abs_min = Shorts::MinUnsigned(
      b->abs_min, Shorts::Select(mask, Shorts::Abs(x), Shorts::All()));
  AddShortSums<kSmall>(x, b);
}

// Where 16-bit integers come from, and what they are less than the elements by.
struct FromInt16 {
  using T = std::int16_t;
  static constexpr bool kSmall = false;
  static constexpr int kOffset = 0;
  static Shorts::V Load(const T* p) { return Shorts::Load(p); }
};
struct FromUInt16 {
  using T = std::uint16_t;
  static constexpr bool kSmall = false;
  static constexpr int kOffset = 32768;
  static Shorts::V Load(const T* p) {
    return Shorts::Xor(Shorts::Load(p), Shorts::Set(INT16_MIN));
  }
};
struct FromInt8 {
  using T = std::int8_t;
  static constexpr bool kSmall = true;
  static constexpr int kOffset = 0;
  static Shorts::V Load(const T* p) { return Shorts::Widen(p); }
};
struct FromUInt8 {
  using T = std::uint8_t;
  static constexpr bool kSmall = true;
  static constexpr int kOffset = 0;
  static Shorts::V Load(const T* p) { return Shorts::Widen(p); }
};
struct FromBool {
  using T = std::uint8_t;
  static constexpr bool kSmall = true;
  static constexpr int kOffset = 0;
  static Shorts::V Load(const T* p) {
    return Shorts::MinUnsigned(Shorts::Widen(p), Shorts::Set(1));
  }
};

template <typename From>
inline ShortLanes SumShorts(const typename From::T* p, std::size_t n) {
  ShortLanes block;
  std::size_t i = 0;
  for (; i + Shorts::kLanes <= n; i += Shorts::kLanes) {
    AddShorts<From::kSmall>(From::Load(p + i), &block);
  }
  if (i < n) {
    typename From::T rest[Shorts::kLanes];
    for (std::size_t k = 0; k < Shorts::kLanes; ++k) {
      rest[k] =
          i + k < n ? p[i + k] : static_cast<typename From::T>(From::kOffset);
    }
    AddMaskedShorts<From::kSmall>(From::Load(rest), Shorts::FirstLanes(n - i),
                                  &block);
  }
  return block;
}

// REQUIRES: 0 < n <= BlockElements(sizeof(From::T)).
template <typename From, typename Wide>
void AddShortBlock(const typename From::T* p, std::size_t n,
                   Wide Extreme::* wide, Moments* m) {
  constexpr std::int64_t kOffset = From::kOffset;
  const ShortLanes block = SumShorts<From>(p, n);
  const auto count = static_cast<std::int64_t>(n);
  const auto n_block = static_cast<double>(n);
  const std::int64_t sum = Shorts::Sum(block.sum);
  const std::int64_t squares = From::kSmall ? Shorts::Sum(block.squares)
                                            : Shorts::SumWide(block.squares);
  // Both products are below 2^57: no overflow.
  const std::int64_t deviations = count * squares - sum * sum;
  MergeBlock(n_block, static_cast<double>(kOffset), static_cast<double>(sum),
             static_cast<double>(deviations) / n_block, m);
  // With all bits flipped, the least is the greatest.
  const auto least = static_cast<std::int16_t>(
      Shorts::GreatestSigned(Shorts::Xor(block.min, Shorts::All())) ^ 0xffffU);
  const auto greatest =
      static_cast<std::int16_t>(Shorts::GreatestSigned(block.max));
  const auto min = static_cast<Wide>(least + kOffset);
  const auto max = static_cast<Wide>(greatest + kOffset);
  if (min < m->min.*wide) m->min.*wide = min;
  if (max > m->max.*wide) m->max.*wide = max;
  auto abs_min = static_cast<double>(min);
  std::int64_t l1 = sum + kOffset * count;
  if constexpr (kOffset == 0) {
    abs_min = static_cast<double>(Shorts::LeastUnsigned(block.abs_min));
    l1 -= 2 * Shorts::Sum(block.negative);
  }
  m->l1 += static_cast<double>(l1);
  if (abs_min < m->abs_min) m->abs_min = abs_min;
  if (abs_min == 0) m->zero += CountZeroIntegers(p, n);
}

template <typename From, typename Wide>
[[gnu::noinline]] void AccumulateShorts(const void* data, std::size_t n,
                                        Wide Extreme::* wide, Moments* m) {
  const auto* p = static_cast<const typename From::T*>(data);
  while (n > 0) {
    const std::size_t n_block = BlockOf<typename From::T>(n);
    AddShortBlock<From>(p, n_block, wide, m);
    p += n_block;
    n -= n_block;
  }
}

// Integers of 32 and 64 bits: exact while all are small; else the moments of
// their values as doubles, the extremes exact.
template <typename T, typename Wide>
void AccumulateIntegers(const void* data, std::size_t n, Wide Extreme::* wide,
                        Moments* m) {
  const auto* p = static_cast<const T*>(data);
  LeastMagnitude<Doubles> run;
  while (n > 0) {
    const std::size_t n_block = BlockOf<T>(n);
    const bool were_small =
        m->finite == 0 || (IsSmall(m->min.*wide) && IsSmall(m->max.*wide));
    if (!were_small || !AddSmallBlock(p, n_block, wide, m)) {
      T min = p[0];
      T max = p[0];
      for (std::size_t i = 0; i < n_block; ++i) {
        min = p[i] < min ? p[i] : min;
        max = p[i] > max ? p[i] : max;
      }
      AddFiniteBlock<Doubles>(p, n_block, &run, m);
      if (min < m->min.*wide) m->min.*wide = min;
      if (max > m->max.*wide) m->max.*wide = max;
    }
    p += n_block;
    n -= n_block;
  }
  if (run.Get() < m->abs_min) m->abs_min = run.Get();
}

}  // namespace
}  // namespace tdbg
