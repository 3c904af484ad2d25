// How the sums of a block join the moments of those before it.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>

#include "reducers/moments.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// The sum of squared deviations from their mean of `n` elements, given their
// sum and that of their squares.
inline double SquaredDeviations(double n, double sum, double squares) {
  const double m2 = squares - sum * (sum / n);
  return m2 < 0 ? 0 : m2;
}

// Merges a block of `n` elements, given the sum of x - shift and their squared
// deviations, into `*m` (Chan, Golub and LeVeque 1983).
inline void MergeBlock(double n, double shift, double sum, double block_m2,
                       Moments* m) {
  double delta = sum / n;
  double weight = 1.0;
  if (m->finite == 0) {
    m->mean = shift;
    m->mean_low = 0.0;
    m->m2 = block_m2;
  } else {
    const auto n_before = static_cast<double>(m->finite);
    delta += (shift - m->mean) - m->mean_low;
    weight = n / (n_before + n);
    m->m2 += block_m2 + delta * delta * (n_before * weight);
  }
  // The exact sum of mean and step as two doubles (Dekker).
  const double step = m->mean_low + delta * weight;
  const double mean = m->mean + step;
  const double part = mean - m->mean;
  m->mean_low = (m->mean - (mean - part)) + (step - part);
  m->mean = mean;
  m->finite += static_cast<std::uint64_t>(n);
}

// The value to subtract from the next block's elements before squaring them:
// the mean so far, unless that is small beside the standard deviation.  Zero
// rounds nothing, and costs little where no digits need saving.
inline double ShiftAfter(const Moments& m) {
  const auto n = static_cast<double>(m.finite);
  return 4 * n * (m.mean * m.mean) <= m.m2 ? 0.0 : m.mean;
}

// Whether a shift was so far from the block's mean that digits of the block's
// m2 are lost which the merge will not make up for: where most elements came
// before, a distant block adds more to m2 than it can blur.
inline bool ShiftIsFar(double n, double sum, double squares, const Moments& m) {
  return static_cast<double>(m.finite) < n && sum * sum > 0.5 * squares * n;
}

}  // namespace
}  // namespace tdbg
