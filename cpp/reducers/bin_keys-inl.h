// The key of the bin of a number: one source for the host and for CUDA kernels
// (docs/statistics.md, "The histogram").
//
// In an anonymous namespace: see reducers/moments.h.  Thread safety: pure
// functions.

#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "reducers/bins.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

constexpr std::uint16_t kMagnitudeOfKey = 0x7fff;

// Of a float with these halves that is rounded towards zero from a number that
// is zero when `is_zero` says so.  (Vectors hold more halves than floats.)
TDBG_HOST_DEVICE inline std::uint16_t KeyOfHalves(std::uint16_t high,
                                                  std::uint16_t low,
                                                  bool is_zero) {
  const auto magnitude = static_cast<std::uint16_t>(high & kMagnitudeOfKey);
  const std::uint16_t more = low != 0 ? 1U : 0U;
  const auto up = static_cast<std::uint16_t>(magnitude + more);
  const std::uint16_t number = up > kInfinityKey ? kNanKey : high;
  const auto least = static_cast<std::uint16_t>(high | kLeastKey);
  const std::uint16_t small = is_zero ? kZeroKey : least;
  return magnitude == 0 ? small : number;
}

// The nearest float, brought one towards zero where that is beyond x: so
// infinity, too, becomes the greatest float unless x is infinite.
TDBG_HOST_DEVICE inline std::uint16_t KeyOf(double x) {
  const auto nearest = static_cast<float>(x);
  const double magnitude = __builtin_fabs(x);
  const auto rounded = static_cast<double>(__builtin_fabsf(nearest));
  auto bits = __builtin_bit_cast(std::uint32_t, nearest);
  bits -= rounded > magnitude ? 1U : 0U;
  return KeyOfHalves(static_cast<std::uint16_t>(bits >> 16),
                     static_cast<std::uint16_t>(bits), magnitude == 0);
}

// A double holds the 52 leading bits of any magnitude; those below do not reach
// the key.
TDBG_HOST_DEVICE inline std::uint16_t KeyOfMagnitude(std::uint64_t magnitude) {
  const std::uint64_t is_long = magnitude >> 52 != 0 ? 4095U : 0U;
  return KeyOf(static_cast<double>(magnitude & ~is_long));
}

}  // namespace
}  // namespace tdbg
