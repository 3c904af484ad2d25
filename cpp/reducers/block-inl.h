// The sums of a block of elements in the vector types of an instruction set,
// and how a block joins the moments.  Implements cpp/reducers/README.md.
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
#include <type_traits>

#include "reducers/extremes-inl.h"
#include "reducers/merge-inl.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Squares of floats lose digits to underflow when smaller than this.
constexpr double kLeastFloatSquare = 1e-28;
// Shifts beyond this bring sums of four floats near overflow.
constexpr float kGreatestFloatShift = 1e15F;
// Roundings of floats average out unless a few elements outweigh the others:
// blocks this short are summed in double, and those whose l1 this many equal
// elements might make up.
constexpr std::size_t kShortBlock = 128;
constexpr double kFewElements = 64;

// How many of `n` elements the next block holds.
template <typename T>
constexpr std::size_t BlockOf(std::size_t n) {
  return n < BlockElements(sizeof(T)) ? n : BlockElements(sizeof(T));
}

// Elements that are widened to double at once.
constexpr std::size_t kWideElements = BlockElements(sizeof(double));

// Sums and counts of a block, in registers.
template <typename L, typename E = typename L::Extremes>
struct BlockLanes {
  E extremes;
  typename L::Acc sum = L::Zero();  // Of x - shift, as the next.
  typename L::Acc squares = L::Zero();
  typename L::Acc l1 = L::Zero();
};

// Moves the extremes that all blocks of a call have in common to `*m`.  (Sums
// are folded after each block, so that their bits do not depend on how a tensor
// is divided into calls.)
template <typename Extremes>
inline void FinishExtremes(const Extremes& extremes, Moments* m) {
  double min = kInfinity;
  double max = -kInfinity;
  double abs_min = kInfinity;
  if (!extremes.Get(&min, &max, &abs_min)) return;
  if (min < m->min.f64) m->min.f64 = min;
  if (max > m->max.f64) m->max.f64 = max;
  if (abs_min < m->abs_min) m->abs_min = abs_min;
}

// Where the first pass over a block finds its elements: a pointer to them, or
// one of the next two.  A further pass finds them at AfterLoading(source, n).

// The differences of the elements at `a` and `b`.  For a further pass, which
// few blocks need, AfterLoading writes them to `block`.
template <typename T>
struct Differences {
  const T* a;
  const T* b;
  T* block;

  Differences operator+(std::size_t n) const {
    return {a + n, b + n, block + n};
  }
};

// The elements at `a`, which are copied past the caches to `copy`.
// REQUIRES: `copy` is aligned to 64 bytes.
template <typename T>
struct Copied {
  const T* a;
  T* copy;

  Copied operator+(std::size_t n) const { return {a + n, copy + n}; }
};

template <typename L, typename T>
[[gnu::always_inline]] inline typename L::V LoadFrom(const T* p) {
  L::Prefetch(p);
  return L::Load(p);
}
template <typename L, typename T>
[[gnu::always_inline]] inline typename L::V LoadFrom(Differences<T> p) {
  L::Prefetch(p.a);
  L::Prefetch(p.b);
  return L::Sub(L::Load(p.a), L::Load(p.b));
}
template <typename L, typename T>
[[gnu::always_inline]] inline typename L::V LoadFrom(Copied<T> p) {
  L::Prefetch(p.a);
  const typename L::V x = L::Load(p.a);
  L::Stream(p.copy, x);
  return x;
}

// The first n < L::kLanes elements; the other lanes are zero.
template <typename L, typename T>
[[gnu::always_inline]] inline typename L::V LoadFirstFrom(const T* p,
                                                          std::size_t n) {
  return L::LoadFirst(p, n);
}
template <typename L, typename T>
[[gnu::always_inline]] inline typename L::V LoadFirstFrom(Differences<T> p,
                                                          std::size_t n) {
  return L::Sub(L::LoadFirst(p.a, n), L::LoadFirst(p.b, n));
}
template <typename L, typename T>
[[gnu::always_inline]] inline typename L::V LoadFirstFrom(Copied<T> p,
                                                          std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) p.copy[i] = p.a[i];
  return L::LoadFirst(p.a, n);
}

// Writes `n` differences.
template <typename L, typename T>
void SubtractElements(const T* a, const T* b, std::size_t n, T* out) {
  std::size_t i = 0;
  for (; i + L::kLanes <= n; i += L::kLanes) {
    L::Store(out + i, L::Sub(L::Load(a + i), L::Load(b + i)));
  }
  if (i < n) {
    T rest[L::kLanes];
    L::Store(rest,
             L::Sub(L::LoadFirst(a + i, n - i), L::LoadFirst(b + i, n - i)));
    for (std::size_t k = 0; i + k < n; ++k) out[i + k] = rest[k];
  }
}

// The `n` elements of a block that a pass has read.
template <typename L, typename T>
const T* AfterLoading(const T* p, std::size_t /*n*/) {
  return p;
}
template <typename L, typename T>
const T* AfterLoading(Differences<T> p, std::size_t n) {
  SubtractElements<L>(p.a, p.b, n, p.block);
  return p.block;
}
template <typename L, typename T>
const T* AfterLoading(Copied<T> p, std::size_t /*n*/) {
  return p.a;
}

// Does what the first pass over a block of `n` elements would have done.
// Returns where the elements are.
template <typename L, typename T>
const T* LoadAll(const T* p, std::size_t /*n*/) {
  return p;
}
template <typename L, typename T>
const T* LoadAll(Differences<T> p, std::size_t n) {
  return AfterLoading<L>(p, n);
}
template <typename L, typename T>
const T* LoadAll(Copied<T> p, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) p.copy[i] = p.a[i];
  return p.a;
}

// The source of the block behind one of `n` elements.
template <typename T>
const T* NextBlock(const T* p, std::size_t n) {
  return p + n;
}
template <typename T>
Differences<T> NextBlock(Differences<T> p, std::size_t n) {
  return {p.a + n, p.b + n, p.block};
}
template <typename T>
Copied<T> NextBlock(Copied<T> p, std::size_t n) {
  return p + n;
}

// Functions that take a block are inlined: left to the compiler, some of it is
// called, and all that is found of the block goes through memory.

// The sums of four vectors.  Adding a few floats before they become doubles
// costs as many roundings as the tree is high, whatever the length of the
// tensor.
template <typename L>
struct Sums {
  typename L::V sum;
  typename L::V squares;
  typename L::V l1;
};

template <typename L>
[[gnu::always_inline]] inline Sums<L> operator+(const Sums<L>& a,
                                                const Sums<L>& b) {
  return {L::Add(a.sum, b.sum), L::Add(a.squares, b.squares),
          L::Add(a.l1, b.l1)};
}

template <typename L, typename E>
[[gnu::always_inline]] inline void Accumulate(const Sums<L>& sums,
                                              BlockLanes<L, E>* b) {
  L::Accumulate(&b->sum, sums.sum);
  L::Accumulate(&b->squares, sums.squares);
  L::Accumulate(&b->l1, sums.l1);
}

template <typename L, bool kShifted, typename P, typename E>
[[gnu::always_inline]] inline Sums<L> SumFour(P p, typename L::V shift,
                                              E* extremes) {
  // Spelled out: of loops over these GCC leaves arrays in memory.
  using V = typename L::V;
  const auto shifted = [&](V v) { return kShifted ? L::Sub(v, shift) : v; };
  const V x[] = {LoadFrom<L>(p), LoadFrom<L>(p + L::kLanes),
                 LoadFrom<L>(p + 2 * L::kLanes),
                 LoadFrom<L>(p + 3 * L::kLanes)};
  const V d[] = {shifted(x[0]), shifted(x[1]), shifted(x[2]), shifted(x[3])};
  const V a[] = {L::Abs(x[0]), L::Abs(x[1]), L::Abs(x[2]), L::Abs(x[3])};
  extremes->AddFour(x, a);
  return {L::Add(L::Add(d[0], d[1]), L::Add(d[2], d[3])),
          L::Add(L::MulAdd(d[1], d[1], L::Mul(d[0], d[0])),
                 L::MulAdd(d[3], d[3], L::Mul(d[2], d[2]))),
          L::Add(L::Add(a[0], a[1]), L::Add(a[2], a[3]))};
}

// One vector, of which only the lanes in `mask` exist.
template <typename L, typename E>
[[gnu::always_inline]] inline void MaskedStep(typename L::V x,
                                              typename L::M mask,
                                              typename L::V shift,
                                              BlockLanes<L, E>* b) {
  const auto none = L::Set(0);
  const auto d = L::Select(mask, L::Sub(x, shift), none);
  const auto a = L::Abs(x);
  b->extremes.AddMasked(mask, x, a);
  Accumulate(Sums<L>{d, L::Mul(d, d), L::Select(mask, a, none)}, b);
}

// REQUIRES: shift_value is 0 unless kShifted.
template <typename L, typename E, bool kShifted, typename P>
[[gnu::always_inline]] inline BlockLanes<L, E> SumBlock(
    P p, std::size_t n, typename L::Scalar shift_value) {
  BlockLanes<L, E> block;
  const auto shift = L::Set(shift_value);
  constexpr std::size_t kFour = 4 * L::kLanes;
  std::size_t i = 0;
  for (; i + 2 * kFour <= n; i += 2 * kFour) {
    const Sums<L> first = SumFour<L, kShifted>(p + i, shift, &block.extremes);
    Accumulate(
        first + SumFour<L, kShifted>(p + i + kFour, shift, &block.extremes),
        &block);
  }
  if (i + kFour <= n) {
    Accumulate(SumFour<L, kShifted>(p + i, shift, &block.extremes), &block);
    i += kFour;
  }
  for (; i + L::kLanes <= n; i += L::kLanes) {
    MaskedStep(LoadFrom<L>(p + i), L::FirstLanes(L::kLanes), shift, &block);
  }
  if (i < n) {
    MaskedStep(LoadFirstFrom<L>(p + i, n - i), L::FirstLanes(n - i), shift,
               &block);
  }
  return block;
}

template <typename L, typename E, typename P>
[[gnu::always_inline]] inline BlockLanes<L, E> SumShifted(
    P p, std::size_t n, typename L::Scalar shift) {
  return shift == 0 ? SumBlock<L, E, false>(p, n, 0)
                    : SumBlock<L, E, true>(p, n, shift);
}

// How many of the elements are zero.
template <typename T>
std::uint64_t CountZeroIntegers(const T* p, std::size_t n) {
  std::uint64_t n_zero = 0;
  // A count fits the element.
  constexpr std::size_t kPart = sizeof(T) == 1 ? 128 : 8192;
  using Count = std::make_unsigned_t<T>;
  for (std::size_t i = 0; i < n;) {
    const std::size_t end = n - i < kPart ? n : i + kPart;
    Count count = 0;
    for (; i < end; ++i)
      count = static_cast<Count>(count + (p[i] == 0 ? 1 : 0));
    n_zero += count;
  }
  return n_zero;
}

// Adds the zeros of a block to `*m`.  Most blocks have none, which their least
// absolute value shows; only the others are read again.
template <typename L, typename T>
void CountZeros(const T* p, std::size_t n, Moments* m) {
  if constexpr (std::is_integral_v<T>) {
    m->zero += CountZeroIntegers(p, n);
    return;
  }
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
template <typename L, typename E, typename P>
bool AddFiniteBlock(P first, std::size_t n, E* run, Moments* m) {
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
  BlockLanes<L, E> block = SumShifted<L, E>(first, n, shift);
  double sum = L::Sum(block.sum);
  double squares = L::Sum(block.squares);
  if (!(squares < kInfinity)) return false;
  if (ShiftIsFar(n_block, sum, squares, *m)) {
    shift = static_cast<Scalar>(static_cast<double>(shift) + sum / n_block);
    block = SumShifted<L, E>(AfterLoading<L>(first, n), n, shift);
    sum = L::Sum(block.sum);
    squares = L::Sum(block.squares);
    if (!(squares < kInfinity)) return false;
  }
  const double l1 = L::Sum(block.l1);
  if constexpr (kIsFloat) {
    if (squares * kFewElements > l1 * l1) return false;
    if (squares < n_block * kLeastFloatSquare && !block.extremes.AreEqual()) {
      return false;
    }
  }
  MergeBlock(n_block, static_cast<double>(shift), sum,
             SquaredDeviations(n_block, sum, squares), m);
  m->l1 += l1;
  if (block.extremes.HaveZero()) CountZeros<L>(AfterLoading<L>(first, n), n, m);
  run->Merge(block.extremes);
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
    MaskedStep(x, mask, shift, &block);
  }
  *n_finite = L::Sum(counts);
  return block;
}

// Adds the finite elements of a block of doubles and counts the others.
inline void AddAnyBlock(const double* p, std::size_t n, Doubles::Extremes* run,
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
  if (n_finite > 0) {
    MergeBlock(n_finite, shift, sum, SquaredDeviations(n_finite, sum, squares),
               m);
  }
  m->l1 += L::Sum(block.l1);
  if (block.extremes.HaveZero()) CountZeros<L>(p, n, m);
  run->Merge(block.extremes);
  if (n_finite == static_cast<double>(n)) return;
  for (std::size_t i = 0; i < n; ++i) {
    m->nan += __builtin_isnan(p[i]) != 0 ? 1U : 0U;
    m->positive_infinity += p[i] == kInfinity ? 1U : 0U;
    m->negative_infinity += p[i] == -kInfinity ? 1U : 0U;
  }
}

}  // namespace
}  // namespace tdbg
