// The statistics kernel, written once over the vectors of an instruction set:
// lanes_*-inl.h or portable.cc, included before this.  Implements
// cpp/reducers/README.md.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/block-inl.h"
#include "reducers/float8-inl.h"
#include "reducers/half-inl.h"
#include "reducers/integer-inl.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Any elements, in double, each times `factor`.
template <typename T>
void AddWidened(const T* p, std::size_t n, double factor,
                Doubles::Extremes* run, Moments* m) {
  while (n > 0) {
    const std::size_t n_block = n < kWideElements ? n : kWideElements;
    double wide[kWideElements];
    Widen(p, n_block, factor, wide);
    AddAnyBlock(wide, n_block, run, m);
    p += n_block;
    n -= n_block;
  }
}

template <typename T>
[[gnu::noinline]] void AccumulateWidened(const T* p, std::size_t n,
                                         double factor, Moments* m) {
  Doubles::Extremes run;
  AddWidened(p, n, factor, &run, m);
  FinishExtremes(run, m);
}

// In double lanes: float64, and what is to be as precise.
// Not inlined, so that AccumulateAny needs no registers of its own.
template <typename T>
[[gnu::noinline]] void AccumulateDoubles(const T* p, std::size_t n,
                                         double factor, Moments* m) {
  Doubles::Extremes run;
  while (n > 0) {
    const std::size_t n_block = BlockOf<T>(n);
    if (factor != 1.0 || !AddFiniteBlock<Doubles>(p, n_block, &run, m)) {
      AddWidened(p, n_block, factor, &run, m);
    }
    p += n_block;
    n -= n_block;
  }
  FinishExtremes(run, m);
}

// AddFiniteBlock of all that a call is given: the extremes, too, stay in
// registers.
template <typename L>
[[gnu::flatten]] bool AddOnlyBlock(const float* p, std::size_t n, Moments* m) {
  typename L::Extremes run;
  if (!AddFiniteBlock<L>(p, n, &run, m)) return false;
  FinishExtremes(run, m);
  return true;
}

// The blocks of a larger tensor; not inlined, as AccumulateDoubles.
template <typename Source>
[[gnu::noinline]] void AccumulateFloatBlocks(Source source, std::size_t n,
                                             Moments* m) {
  Floats::Extremes run;
  Doubles::Extremes double_run;
  bool in_double = false;
  while (n > 0) {
    const std::size_t n_block = BlockOf<float>(n);
    if (n_block <= kShortBlock ||
        !AddFiniteBlock<Floats>(source, n_block, &run, m)) {
      const float* const p = LoadAll<Floats>(source, n_block);
      in_double = true;
      if (!AddFiniteBlock<Doubles>(p, n_block, &double_run, m)) {
        AddWidened(p, n_block, 1.0, &double_run, m);
      }
    }
    source = NextBlock(source, n_block);
    n -= n_block;
  }
  FinishExtremes(run, m);
  if (in_double) FinishExtremes(double_run, m);
}

inline void AccumulateFloats(const float* p, std::size_t n, Moments* m) {
  if (n > BlockElements(sizeof(float))) return AccumulateFloatBlocks(p, n, m);
  if (n > kShortBlock && AddOnlyBlock<Floats>(p, n, m)) return;
  if (!AddOnlyBlock<Doubles>(p, n, m)) AccumulateWidened(p, n, 1.0, m);
}

// Extremes of the ways that blocks of 16-bit floats can go.
template <typename T>
struct HalfRuns {
  HalfExtremes<T> centered;
  Floats::Extremes shifted;
  Doubles::Extremes in_double;
};

template <typename T>
void AddHalfBlock(const T* p, std::size_t n, HalfRuns<T>* runs, Moments* m) {
  if (n > kShortBlock && WereCentered(*m) &&
      AddCenteredBlock(p, n, &runs->centered, m)) {
    return;
  }
  if (n <= kShortBlock || !AddFiniteBlock<Floats>(p, n, &runs->shifted, m)) {
    AddWidened(p, n, 1.0, &runs->in_double, m);
  }
}

template <typename T>
void Finish(const HalfRuns<T>& runs, Moments* m) {
  FinishExtremes(runs.centered, m);
  FinishExtremes(runs.shifted, m);
  FinishExtremes(runs.in_double, m);
}

template <typename T>
void AccumulateHalves(const T* p, std::size_t n, Moments* m) {
  HalfRuns<T> runs;
  while (n > 0) {
    const std::size_t n_block = BlockOf<T>(n);
    AddHalfBlock(p, n_block, &runs, m);
    p += n_block;
    n -= n_block;
  }
  Finish(runs, m);
}

// Bytes as 16-bit floats; blocks with others than those have, as doubles.
template <typename F>
void AccumulateFloat8(const std::uint8_t* p, std::size_t n, bool precise,
                      Moments* m) {
  const double* values = ByteValueTable(F::kDType);
  HalfRuns<typename F::Half> runs;
  ScaleMoments(1 / F::kScale, m);
  while (n > 0) {
    const std::size_t n_block = BlockOf<std::uint8_t>(n);
    typename F::Half halves[BlockElements(1)];
    if (!precise && ToHalves<F>(p, n_block, halves)) {
      AddHalfBlock(halves, n_block, &runs, m);
    } else {
      for (std::size_t i = 0; i < n_block;) {
        double wide[kWideElements];
        std::size_t n_wide = 0;
        for (; i < n_block && n_wide < kWideElements; ++i) {
          wide[n_wide++] = values[p[i]] / F::kScale;
        }
        AddAnyBlock(wide, n_wide, &runs.in_double, m);
      }
    }
    p += n_block;
    n -= n_block;
  }
  Finish(runs, m);
  ScaleMoments(F::kScale, m);
}

template <typename T>
void AccumulateNarrow(const void* data, std::size_t n, bool precise,
                      Moments* m) {
  const auto* p = static_cast<const T*>(data);
  return precise ? AccumulateDoubles(p, n, 1.0, m) : AccumulateHalves(p, n, m);
}

inline void AccumulateAny(const void* data, std::size_t n, DType dtype,
                          Pass pass, Moments* m) {
  if (n == 0) return;
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  switch (dtype) {
    case DType::kFloat32: {
      const auto* p = static_cast<const float*>(data);
      return pass.precise ? AccumulateDoubles(p, n, 1.0, m)
                          : AccumulateFloats(p, n, m);
    }
    case DType::kFloat16:
      return AccumulateNarrow<Float16>(data, n, pass.precise, m);
    case DType::kBFloat16:
      return AccumulateNarrow<BFloat16>(data, n, pass.precise, m);
    case DType::kFloat64:
      return AccumulateDoubles(static_cast<const double*>(data), n, pass.factor,
                               m);
    case DType::kBool:
      return AccumulateShorts<FromBool>(data, n, &Extreme::u64, m);
    case DType::kUInt8:
      return AccumulateShorts<FromUInt8>(data, n, &Extreme::u64, m);
    case DType::kInt8:
      return AccumulateShorts<FromInt8>(data, n, &Extreme::i64, m);
    case DType::kUInt16:
      return AccumulateShorts<FromUInt16>(data, n, &Extreme::u64, m);
    case DType::kInt16:
      return AccumulateShorts<FromInt16>(data, n, &Extreme::i64, m);
    case DType::kUInt32:
      return AccumulateIntegers<std::uint32_t>(data, n, &Extreme::u64, m);
    case DType::kInt32:
      return AccumulateIntegers<std::int32_t>(data, n, &Extreme::i64, m);
    case DType::kUInt64:
      return AccumulateIntegers<std::uint64_t>(data, n, &Extreme::u64, m);
    case DType::kInt64:
      return AccumulateIntegers<std::int64_t>(data, n, &Extreme::i64, m);
    case DType::kFloat8E4M3Fn:
      return AccumulateFloat8<E4M3Fn>(bytes, n, pass.precise, m);
    case DType::kFloat8E5M2:
      return AccumulateFloat8<E5M2>(bytes, n, pass.precise, m);
    case DType::kFloat8E4M3FnUz:
      return AccumulateFloat8<E4M3FnUz>(bytes, n, pass.precise, m);
    case DType::kFloat8E5M2FnUz:
      return AccumulateFloat8<E5M2FnUz>(bytes, n, pass.precise, m);
    case DType::kFloat8E8M0Fnu:
      return AccumulateFloat8<E8M0Fnu>(bytes, n, pass.precise, m);
    default:
      return;
  }
}

}  // namespace
}  // namespace tdbg
