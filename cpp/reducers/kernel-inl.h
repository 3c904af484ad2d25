// The statistics kernel, written once over the vector types of an instruction
// set.  Implements docs/statistics.md, "How it is computed".
//
// A file that includes this defines `Floats` and `Doubles` in namespace
// tdbg::(anonymous) first.  Each has a vector type V, a mask type M, an
// accumulator of doubles Acc, kLanes, and the static functions used below
// (portable.cc is the one to read).  All is in an anonymous namespace: see
// reducers/moments.h for the reason.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/merge-inl.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

constexpr double kInfinity = __builtin_huge_val();

// Squares of floats lose digits to underflow when smaller than this.
constexpr double kLeastFloatSquare = 1e-28;
// Shifts beyond this bring sums of four floats near overflow.
constexpr float kGreatestFloatShift = 1e15F;
// Roundings of floats average out unless a few elements outweigh the others:
// blocks this short are summed in double, and those whose l1 this many equal
// elements might make up.
constexpr std::size_t kShortBlock = 256;
constexpr double kFewElements = 64;

// What is found of a block, in registers.
template <typename L>
struct BlockLanes {
  typename L::V min = L::Set(static_cast<typename L::Scalar>(kInfinity));
  typename L::V max = L::Set(static_cast<typename L::Scalar>(-kInfinity));
  typename L::V abs_min = L::Set(static_cast<typename L::Scalar>(kInfinity));
  typename L::Acc sum = L::Zero();  // Of x - shift, as the next.
  typename L::Acc squares = L::Zero();
  typename L::Acc l1 = L::Zero();
};

// What is found of all blocks of a call and does not depend on their order.
// (Sums are folded after each block, so that their bits do not depend on how
// a tensor is divided into calls.)
template <typename L>
struct RunLanes {
  typename L::V min = L::Set(static_cast<typename L::Scalar>(kInfinity));
  typename L::V max = L::Set(static_cast<typename L::Scalar>(-kInfinity));
  typename L::V abs_min = L::Set(static_cast<typename L::Scalar>(kInfinity));

  void Add(const BlockLanes<L>& block) {
    min = L::Min(min, block.min);
    max = L::Max(max, block.max);
    abs_min = L::Min(abs_min, block.abs_min);
  }
};

template <typename L>
double LeastLane(typename L::V v) {
  typename L::Scalar lanes[L::kLanes];
  L::Store(lanes, v);
  for (std::size_t half = L::kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      lanes[i] = lanes[i + half] < lanes[i] ? lanes[i + half] : lanes[i];
    }
  }
  return static_cast<double>(lanes[0]);
}

template <typename L>
double GreatestLane(typename L::V v) {
  return -LeastLane<L>(L::Sub(L::Set(0), v));
}

// Moves the extremes (unless the caller finds them as integers) to `*m`.
template <typename L>
void Finish(const RunLanes<L>& run, bool with_extremes, Moments* m) {
  if (with_extremes) {
    const double min = LeastLane<L>(run.min);
    const double max = GreatestLane<L>(run.max);
    if (min < m->min.f64) m->min.f64 = min;
    if (max > m->max.f64) m->max.f64 = max;
  }
  const double abs_min = LeastLane<L>(run.abs_min);
  if (abs_min < m->abs_min) m->abs_min = abs_min;
}

// Four vectors at once.  Adding four floats before they become doubles costs
// at most two roundings, whatever the length of the tensor.
constexpr std::size_t kVectorsInStep = 4;

template <typename L, typename T>
inline void FullStep(const T* p, typename L::V shift, BlockLanes<L>* b) {
  const auto x0 = L::Load(p);
  const auto x1 = L::Load(p + L::kLanes);
  const auto x2 = L::Load(p + 2 * L::kLanes);
  const auto x3 = L::Load(p + 3 * L::kLanes);
  const auto d0 = L::Sub(x0, shift);
  const auto d1 = L::Sub(x1, shift);
  const auto d2 = L::Sub(x2, shift);
  const auto d3 = L::Sub(x3, shift);
  const auto a0 = L::Abs(x0);
  const auto a1 = L::Abs(x1);
  const auto a2 = L::Abs(x2);
  const auto a3 = L::Abs(x3);
  b->min = L::Min(b->min, L::Min(L::Min(x0, x1), L::Min(x2, x3)));
  b->max = L::Max(b->max, L::Max(L::Max(x0, x1), L::Max(x2, x3)));
  b->abs_min = L::Min(b->abs_min, L::Min(L::Min(a0, a1), L::Min(a2, a3)));
  L::Accumulate(&b->sum, L::Add(L::Add(d0, d1), L::Add(d2, d3)));
  L::Accumulate(&b->squares, L::Add(L::MulAdd(d1, d1, L::Mul(d0, d0)),
                                    L::MulAdd(d3, d3, L::Mul(d2, d2))));
  L::Accumulate(&b->l1, L::Add(L::Add(a0, a1), L::Add(a2, a3)));
}

// One vector, of which only the lanes in `mask` exist.
template <typename L>
inline void MaskedStep(typename L::V x, typename L::M mask, typename L::V shift,
                       BlockLanes<L>* b) {
  const auto none = L::Set(0);
  const auto d = L::Select(mask, L::Sub(x, shift), none);
  const auto a = L::Abs(x);
  const auto least = L::Set(static_cast<typename L::Scalar>(-kInfinity));
  const auto greatest = L::Set(static_cast<typename L::Scalar>(kInfinity));
  L::Accumulate(&b->sum, d);
  L::Accumulate(&b->squares, L::Mul(d, d));
  L::Accumulate(&b->l1, L::Select(mask, a, none));
  b->min = L::Min(b->min, L::Select(mask, x, greatest));
  b->max = L::Max(b->max, L::Select(mask, x, least));
  b->abs_min = L::Min(b->abs_min, L::Select(mask, a, greatest));
}

// REQUIRES: 0 < n <= kBlockElements.
template <typename L, typename T>
BlockLanes<L> SumBlock(const T* p, std::size_t n,
                       typename L::Scalar shift_value) {
  BlockLanes<L> block;
  const auto shift = L::Set(shift_value);
  std::size_t i = 0;
  constexpr std::size_t kStep = kVectorsInStep * L::kLanes;
  for (; i + kStep <= n; i += kStep) {
    FullStep<L>(p + i, shift, &block);
  }
  for (; i + L::kLanes <= n; i += L::kLanes) {
    MaskedStep<L>(L::Load(p + i), L::FirstLanes(L::kLanes), shift, &block);
  }
  if (i < n) {
    MaskedStep<L>(L::LoadFirst(p + i, n - i), L::FirstLanes(n - i), shift,
                  &block);
  }
  return block;
}

// Adds the zeros of a block to `*m`.  Most blocks have none, which their least
// absolute value tells; only the others are read again.
template <typename L, typename T>
void CountZeros(const T* p, std::size_t n, const BlockLanes<L>& block,
                Moments* m) {
  if (!L::Any(L::IsZero(block.abs_min))) return;
  auto counts = L::Set(0);
  std::size_t i = 0;
  for (; i + L::kLanes <= n; i += L::kLanes) {
    counts = L::CountIf(counts, L::IsZero(L::Load(p + i)));
  }
  if (i < n) {
    const auto x = L::LoadFirst(p + i, n - i);
    counts = L::CountIf(counts, L::And(L::IsZero(x), L::FirstLanes(n - i)));
  }
  typename L::Acc sum = L::Zero();
  L::Accumulate(&sum, counts);
  m->zero += static_cast<std::uint64_t>(L::Sum(sum));
}

// Adds a block unless it has elements that are not finite, or whose squares
// L::Scalar cannot sum well; returns whether it did.
template <typename L, typename T>
bool AddFiniteBlock(const T* p, std::size_t n, RunLanes<L>* run, Moments* m) {
  using Scalar = typename L::Scalar;
  constexpr bool kIsFloat = sizeof(Scalar) == sizeof(float);
  const auto n_block = static_cast<double>(n);
  auto shift = static_cast<Scalar>(ShiftAfter(*m));
  if constexpr (kIsFloat) {
    // A shift that is NaN also fails this.
    if (!(shift < kGreatestFloatShift && shift > -kGreatestFloatShift)) {
      return false;
    }
  }
  BlockLanes<L> block = SumBlock<L>(p, n, shift);
  double sum = L::Sum(block.sum);
  double squares = L::Sum(block.squares);
  if (!(squares < kInfinity)) return false;
  if (ShiftIsFar(n_block, sum, squares, *m)) {
    shift = static_cast<Scalar>(static_cast<double>(shift) + sum / n_block);
    block = SumBlock<L>(p, n, shift);
    sum = L::Sum(block.sum);
    squares = L::Sum(block.squares);
    if (!(squares < kInfinity)) return false;
  }
  const double l1 = L::Sum(block.l1);
  if constexpr (kIsFloat) {
    if (squares * kFewElements > l1 * l1) return false;
    if (squares < n_block * kLeastFloatSquare &&
        LeastLane<L>(block.min) != GreatestLane<L>(block.max)) {
      return false;
    }
  }
  MergeBlock(n_block, static_cast<double>(shift), sum, squares, m);
  m->l1 += l1;
  CountZeros(p, n, block, m);
  run->Add(block);
  return true;
}

// The sums of the finite elements among `n`, whose number goes to `*n_finite`.
inline BlockLanes<Doubles> SumFinite(const double* p, std::size_t n,
                                     double shift_value, double* n_finite) {
  using L = Doubles;
  BlockLanes<L> block;
  const auto shift = L::Set(shift_value);
  auto counts = L::Set(0);
  for (std::size_t i = 0; i < n; i += L::kLanes) {
    const std::size_t left = n - i;
    const bool whole = left >= L::kLanes;
    const auto x = whole ? L::Load(p + i) : L::LoadFirst(p + i, left);
    const auto mask =
        L::And(L::IsFinite(x), L::FirstLanes(whole ? L::kLanes : left));
    counts = L::CountIf(counts, mask);
    MaskedStep<L>(x, mask, shift, &block);
  }
  *n_finite = L::Sum(counts);
  return block;
}

// Adds the finite elements of a block of doubles and counts the others.
inline void AddAnyBlock(const double* p, std::size_t n, RunLanes<Doubles>* run,
                        Moments* m) {
  using L = Doubles;
  double n_finite = 0;
  double shift = ShiftAfter(*m);
  BlockLanes<L> block = SumFinite(p, n, shift, &n_finite);
  double sum = L::Sum(block.sum);
  double squares = L::Sum(block.squares);
  if (n_finite > 0 && ShiftIsFar(n_finite, sum, squares, *m)) {
    shift += sum / n_finite;
    block = SumFinite(p, n, shift, &n_finite);
    sum = L::Sum(block.sum);
    squares = L::Sum(block.squares);
  }
  if (n_finite > 0) MergeBlock(n_finite, shift, sum, squares, m);
  m->l1 += L::Sum(block.l1);
  CountZeros(p, n, block, m);
  run->Add(block);
  if (n_finite == static_cast<double>(n)) return;
  for (std::size_t i = 0; i < n; ++i) {
    m->nan += __builtin_isnan(p[i]) != 0 ? 1U : 0U;
    m->positive_infinity += p[i] == kInfinity ? 1U : 0U;
    m->negative_infinity += p[i] == -kInfinity ? 1U : 0U;
  }
}

// Floats of up to 32 bits.
template <typename T>
void AccumulateFloats(const T* p, std::size_t n, Moments* m) {
  RunLanes<Floats> run;
  RunLanes<Doubles> double_run;
  bool in_double = false;
  while (n > 0) {
    const std::size_t n_block = n < kBlockElements ? n : kBlockElements;
    const bool added = n_block <= kShortBlock
                           ? AddFiniteBlock<Doubles>(p, n_block, &double_run, m)
                           : AddFiniteBlock<Floats>(p, n_block, &run, m);
    if (!added) {
      double wide[kBlockElements];
      Widen(p, n_block, 1.0, wide);
      AddAnyBlock(wide, n_block, &double_run, m);
    }
    in_double |= !added || n_block <= kShortBlock;
    p += n_block;
    n -= n_block;
  }
  Finish(run, true, m);
  if (in_double) Finish(double_run, true, m);
}

inline void AccumulateDoubles(const double* p, std::size_t n, double factor,
                              Moments* m) {
  RunLanes<Doubles> run;
  while (n > 0) {
    const std::size_t n_block = n < kBlockElements ? n : kBlockElements;
    if (factor != 1.0) {
      double scaled[kBlockElements];
      Widen(p, n_block, factor, scaled);
      AddAnyBlock(scaled, n_block, &run, m);
    } else if (!AddFiniteBlock<Doubles>(p, n_block, &run, m)) {
      AddAnyBlock(p, n_block, &run, m);
    }
    p += n_block;
    n -= n_block;
  }
  Finish(run, true, m);
}

// Integers: the moments of their values as doubles, the extremes exact.
template <typename T, typename Wide>
void AccumulateIntegers(const T* p, std::size_t n, Wide Extreme::* wide,
                        Moments* m) {
  RunLanes<Doubles> run;
  T min = p[0];
  T max = p[0];
  while (n > 0) {
    const std::size_t n_block = n < kBlockElements ? n : kBlockElements;
    for (std::size_t i = 0; i < n_block; ++i) {
      min = p[i] < min ? p[i] : min;
      max = p[i] > max ? p[i] : max;
    }
    double doubles[kBlockElements];
    for (std::size_t i = 0; i < n_block; ++i) {
      doubles[i] = static_cast<double>(p[i]);
    }
    AddFiniteBlock<Doubles>(doubles, n_block, &run, m);
    p += n_block;
    n -= n_block;
  }
  if (min < m->min.*wide) m->min.*wide = min;
  if (max > m->max.*wide) m->max.*wide = max;
  Finish(run, false, m);
}

inline void AccumulateAny(const void* data, std::size_t n, DType dtype,
                          double factor, Moments* m) {
  if (n == 0) return;
  switch (dtype) {
    case DType::kFloat32:
      return AccumulateFloats(static_cast<const float*>(data), n, m);
    case DType::kFloat16:
      return AccumulateFloats(static_cast<const Float16*>(data), n, m);
    case DType::kBFloat16:
      return AccumulateFloats(static_cast<const BFloat16*>(data), n, m);
    case DType::kFloat64:
      return AccumulateDoubles(static_cast<const double*>(data), n, factor, m);
    case DType::kInt16:
      return AccumulateIntegers(static_cast<const std::int16_t*>(data), n,
                                &Extreme::i64, m);
    case DType::kInt32:
      return AccumulateIntegers(static_cast<const std::int32_t*>(data), n,
                                &Extreme::i64, m);
    case DType::kInt64:
      return AccumulateIntegers(static_cast<const std::int64_t*>(data), n,
                                &Extreme::i64, m);
    case DType::kUInt16:
      return AccumulateIntegers(static_cast<const std::uint16_t*>(data), n,
                                &Extreme::u64, m);
    case DType::kUInt32:
      return AccumulateIntegers(static_cast<const std::uint32_t*>(data), n,
                                &Extreme::u64, m);
    case DType::kUInt64:
      return AccumulateIntegers(static_cast<const std::uint64_t*>(data), n,
                                &Extreme::u64, m);
    default:  // The 8-bit ones have a counter of their own: byte_counts.h.
      return;
  }
}

}  // namespace
}  // namespace tdbg
