// Blocks of integers of 32 and 64 bits that are small, as counts, labels and
// indices are: in integer arithmetic, without any rounding, and faster than as
// doubles.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "reducers/merge-inl.h"
#include "reducers/moments.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Numbers are small if these bits of number + kSmallOffset are all there is: so
// the sums of a block fit 32 bits in each of four lanes, those of squares 64.
constexpr int kSmallBits = 20;
template <typename T>
constexpr T kSmallOffset = std::is_signed_v<T> ? T{1} << (kSmallBits - 1) : T{};

template <typename T>
constexpr bool IsSmall(T x) {
  using Bits = std::make_unsigned_t<T>;
  return (static_cast<Bits>(static_cast<Bits>(x) +
                            static_cast<Bits>(kSmallOffset<T>)) >>
          kSmallBits) == 0;
}

// Vectors of the compiler, as wide as Shorts::V.
struct Words {
  static constexpr std::size_t kLanes = sizeof(Shorts::V) / 4;
  using V = std::int32_t __attribute__((vector_size(sizeof(Shorts::V))));
  using Unsigned =
      std::uint32_t __attribute__((vector_size(sizeof(Shorts::V))));
  using Long = std::uint64_t __attribute__((vector_size(sizeof(Shorts::V))));

  template <typename To, typename From>
  static To As(From v) {
    return reinterpret_cast<To>(v);
  }
  // kLanes elements, in any order; those of 64 bits without their upper halves.
  // Sets bits beyond kSmallBits in `*beyond` if one is not small.
  template <typename T>
  static V Load(const T* p, Unsigned* beyond)
    requires(sizeof(T) == 4)
  {
    Unsigned x;
    __builtin_memcpy(&x, p, sizeof(x));
    *beyond |= x + static_cast<std::uint32_t>(kSmallOffset<T>);
    return As<V>(x);
  }
  template <typename T>
  static V Load(const T* p, Long* beyond)
    requires(sizeof(T) == 8)
  {
    Long x;
    Long y;
    __builtin_memcpy(&x, p, sizeof(x));
    __builtin_memcpy(&y, p + kLanes / 2, sizeof(y));
    constexpr auto kOffset = static_cast<std::uint64_t>(kSmallOffset<T>);
    *beyond |= (x + kOffset) | (y + kOffset);
    return As<V>(Shorts::LowerHalves(As<Shorts::V>(x), As<Shorts::V>(y)));
  }
};

// Sums and counts of a block, in registers.  Sums are unsigned: that a number
// is not small is known at the end of its block only, and until then they may
// wrap.
struct WordLanes {
  Words::V min = Words::V{} + INT32_MAX;
  Words::V max = Words::V{} + INT32_MIN;
  Words::Unsigned abs_min = Words::Unsigned{} + UINT32_MAX;
  Words::Unsigned sum{};  // In two's complement.
  Words::Unsigned l1{};
  Words::Unsigned others{};  // How many are not zero.
  Words::Long squares{};
};

inline void AddWords(Words::V x, WordLanes* b) {
  const auto a = Words::As<Words::Unsigned>(
      Shorts::MagnitudesOfWords(Words::As<Shorts::V>(x)));
  const Words::Unsigned one = Words::Unsigned{} + 1;
  b->min = x < b->min ? x : b->min;
  b->max = x > b->max ? x : b->max;
  b->abs_min = a < b->abs_min ? a : b->abs_min;
  b->sum += Words::As<Words::Unsigned>(x);
  b->l1 += a;
  b->others += a < one ? a : one;
  b->squares +=
      Words::As<Words::Long>(Shorts::SquaresOfWords(Words::As<Shorts::V>(a)));
}

inline void AddToFirstLane(std::int32_t x, WordLanes* b) {
  const auto a = static_cast<std::uint32_t>(x < 0 ? -x : x);
  if (x < b->min[0]) b->min[0] = x;
  if (x > b->max[0]) b->max[0] = x;
  if (a < b->abs_min[0]) b->abs_min[0] = a;
  b->sum[0] += static_cast<std::uint32_t>(x);
  b->l1[0] += a;
  b->others[0] += a == 0 ? 0U : 1U;
  b->squares[0] += std::uint64_t{a} * a;
}

template <typename T, typename Wide>
void MergeWords(const WordLanes& b, std::size_t n, Wide Extreme::* wide,
                Moments* m) {
  std::int32_t min = b.min[0];
  std::int32_t max = b.max[0];
  std::uint32_t abs_min = b.abs_min[0];
  std::int64_t sum = 0;
  std::uint64_t l1 = 0;
  std::uint64_t others = 0;
  for (std::size_t i = 0; i < Words::kLanes; ++i) {
    min = b.min[i] < min ? b.min[i] : min;
    max = b.max[i] > max ? b.max[i] : max;
    abs_min = b.abs_min[i] < abs_min ? b.abs_min[i] : abs_min;
    sum += static_cast<std::int32_t>(b.sum[i]);
    l1 += b.l1[i];
    others += b.others[i];
  }
  std::int64_t squares = 0;
  for (std::size_t i = 0; i < Words::kLanes / 2; ++i) {
    squares += static_cast<std::int64_t>(b.squares[i]);
  }
  // About the integer next to the mean, all is exact in 64 bits.
  const auto count = static_cast<std::int64_t>(n);
  const auto n_block = static_cast<double>(n);
  const double shift = std::floor(static_cast<double>(sum) / n_block + 0.5);
  const auto center = static_cast<std::int64_t>(shift);
  const std::int64_t rest = sum - count * center;
  const std::int64_t deviations =
      squares - 2 * center * sum + count * center * center;
  MergeBlock(n_block, shift, static_cast<double>(rest),
             SquaredDeviations(n_block, static_cast<double>(rest),
                               static_cast<double>(deviations)),
             m);
  const auto least = static_cast<Wide>(static_cast<T>(min));
  const auto greatest = static_cast<Wide>(static_cast<T>(max));
  if (least < m->min.*wide) m->min.*wide = least;
  if (greatest > m->max.*wide) m->max.*wide = greatest;
  if (abs_min < m->abs_min) m->abs_min = abs_min;
  m->l1 += static_cast<double>(l1);
  m->zero += n - others;
}

// Adds a block if all its elements are small; returns whether they are.
// REQUIRES: 0 < n <= BlockElements(sizeof(T)).
template <typename T, typename Wide>
bool AddSmallBlock(const T* p, std::size_t n, Wide Extreme::* wide,
                   Moments* m) {
  using Beyond =
      std::conditional_t<sizeof(T) == 8, Words::Long, Words::Unsigned>;
  // Most blocks that are not small show it at once.
  if (!IsSmall(p[0]) || !IsSmall(p[n / 2]) || !IsSmall(p[n - 1])) return false;
  WordLanes block;
  Beyond beyond{};
  std::size_t i = 0;
  for (; i + Words::kLanes <= n; i += Words::kLanes) {
    AddWords(Words::Load(p + i, &beyond), &block);
  }
  for (std::size_t k = 0; k < sizeof(Beyond) / sizeof(T); ++k) {
    if ((beyond[k] >> kSmallBits) != 0) return false;
  }
  for (; i < n; ++i) {
    if (!IsSmall(p[i])) return false;
    AddToFirstLane(static_cast<std::int32_t>(p[i]), &block);
  }
  MergeWords<T>(block, n, wide, m);
  return true;
}

}  // namespace
}  // namespace tdbg
