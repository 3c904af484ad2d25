// Blocks of float16 and bfloat16.
//
// Products of two of them are exact as floats, so where the mean is not far
// from zero the blocks need no shift.  Extremes are found in the 16 bits as
// they are; the sums alone need floats.  All other blocks go the way of
// float32.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reducers/block-inl.h"
#include "reducers/extremes-inl.h"
#include "reducers/merge-inl.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

inline std::uint16_t InfinityOf(const Float16* /*p*/) { return 0x7c00; }
inline std::uint16_t InfinityOf(const BFloat16* /*p*/) { return 0x7f80; }

// Elements of type T as bits.
template <typename T>
struct HalfBits : Shorts {
  static double ToDouble(std::uint16_t bits) {
    return static_cast<double>(ToFloat(T{bits}));
  }
};

template <typename T>
using HalfExtremes = BitExtremes<HalfBits<T>>;

// Sums and squares keep their digits while the mean is at most sqrt(3) standard
// deviations: n*mean^2 <= 3*m2.
inline bool IsCentered(double n, double sum, double squares) {
  return sum * sum <= 0.75 * n * squares;
}

// The sums of two vectors of Shorts.
template <typename T>
inline Sums<Floats> SumTwoShorts(const T* p) {
  using L = Floats;
  const L::V x[] = {Halves::First(p), Halves::Second(p),
                    Halves::First(p + Shorts::kLanes),
                    Halves::Second(p + Shorts::kLanes)};
  // Squares one after the other: as exact as in a tree, and an addition less.
  return {L::Add(L::Add(x[0], x[1]), L::Add(x[2], x[3])),
          L::MulAdd(
              x[3], x[3],
              L::MulAdd(x[2], x[2], L::MulAdd(x[1], x[1], L::Mul(x[0], x[0])))),
          L::Add(L::Add(L::Abs(x[0]), L::Abs(x[1])),
                 L::Add(L::Abs(x[2]), L::Abs(x[3])))};
}

#ifdef TDBG_HAVE_DOT_OF_BFLOAT16
inline Sums<Floats> SumTwoShorts(const BFloat16* p) {
  using L = Floats;
  const Shorts::V x = Shorts::Load(p);
  const Shorts::V y = Shorts::Load(p + Shorts::kLanes);
  const Shorts::V one = Shorts::Set(0x3f80);
  const L::V none = L::Set(0);
  return {Halves::Dot(Halves::Dot(none, x, one), y, one),
          Halves::Dot(Halves::Dot(none, x, x), y, y),
          Halves::Dot(Halves::Dot(none, Shorts::WithoutSign(x), one),
                      Shorts::WithoutSign(y), one)};
}
#endif

// Elements that are added up as floats.
constexpr std::size_t kHalfStep = 8 * Shorts::kLanes;

// Two vectors at a time, so that few registers are held.
template <typename T>
inline Sums<Floats> SumEightShorts(const T* p, HalfExtremes<T>* extremes) {
  constexpr std::size_t kTwo = 2 * Shorts::kLanes;
  Sums<Floats> sums{};
  for (std::size_t k = 0; k < 4; ++k) {
    if (extremes != nullptr) {
      const Shorts::V x[] = {Shorts::Load(p + k * kTwo),
                             Shorts::Load(p + k * kTwo + Shorts::kLanes)};
      extremes->AddTwo(x[0], x[1], Shorts::WithoutSign(x[0]),
                       Shorts::WithoutSign(x[1]));
    }
    const Sums<Floats> two = SumTwoShorts(p + k * kTwo);
    sums = k == 0 ? two : sums + two;
    Floats::Hold(&sums.sum, &sums.squares, &sums.l1);
  }
  return sums;
}

// The sums without a shift; extremes go to `*extremes`.
template <typename T>
BlockLanes<Floats> SumHalfBlock(const T* p, std::size_t n,
                                HalfExtremes<T>* extremes) {
  BlockLanes<Floats> block;
  std::size_t i = 0;
  for (; i + kHalfStep <= n; i += kHalfStep) {
    Accumulate(SumEightShorts(p + i, extremes), &block);
  }
  if (i < n) {
    T rest[kHalfStep] = {};
    std::memcpy(rest, p + i, (n - i) * sizeof(T));
    Accumulate(SumEightShorts<T>(rest, nullptr), &block);
    for (std::size_t k = 0; i + k < n; k += Shorts::kLanes) {
      const Shorts::V x = Shorts::Load(rest + k);
      const std::size_t left = n - i - k;
      const Shorts::M mask =
          Shorts::FirstLanes(left < Shorts::kLanes ? left : Shorts::kLanes);
      extremes->AddMasked(mask, x, Shorts::WithoutSign(x));
    }
  }
  return block;
}

// Adds a block that is finite, about zero and not dominated by a few elements;
// returns whether it was.
template <typename T>
bool AddCenteredBlock(const T* p, std::size_t n, HalfExtremes<T>* run,
                      Moments* m) {
  const auto n_block = static_cast<double>(n);
  HalfExtremes<T> extremes;
  const BlockLanes<Floats> block = SumHalfBlock(p, n, &extremes);
  if (extremes.HaveAtLeast(InfinityOf(p))) return false;
  const double sum = Floats::Sum(block.sum);
  const double squares = Floats::Sum(block.squares);
  const double l1 = Floats::Sum(block.l1);
  if (!(squares < kInfinity) || !IsCentered(n_block, sum, squares) ||
      squares * kFewElements > l1 * l1) {
    return false;
  }
  if (squares < n_block * kLeastFloatSquare && !extremes.AreEqual()) {
    return false;
  }
  MergeBlock(n_block, 0.0, sum, SquaredDeviations(n_block, sum, squares), m);
  m->l1 += l1;
  if (extremes.HaveZero()) {
    std::uint16_t n_zero = 0;  // At most a block: it fits.
    for (std::size_t i = 0; i < n; ++i) {
      const bool is_zero = static_cast<std::uint16_t>(p[i].bits << 1) == 0;
      n_zero = static_cast<std::uint16_t>(n_zero + (is_zero ? 1 : 0));
    }
    m->zero += n_zero;
  }
  run->Merge(extremes);
  return true;
}

// Whether the elements so far make it likely that the next block is centered.
inline bool WereCentered(const Moments& m) {
  const auto n = static_cast<double>(m.finite);
  return n * (m.mean * m.mean) <= 3 * m.m2 || m.finite == 0;
}

}  // namespace
}  // namespace tdbg
