// Elements of the narrow float types as floats and doubles, exactly, and floats
// as elements of these types.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// IEEE binary16.
struct Float16 {
  std::uint16_t bits;
};

// The upper half of a float.
struct BFloat16 {
  std::uint16_t bits;
};

inline float ToFloat(float x) { return x; }
inline double ToFloat(double x) { return x; }

inline float ToFloat(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

// Read as a float, the magnitude is too small by 2^112; for subnormal numbers,
// too.
inline float ToFloat(Float16 x) {
  const std::uint32_t magnitude = (x.bits & 0x7fffU) << 13;
  const std::uint32_t sign = (x.bits & 0x8000U) << 16;
  const bool finite = (x.bits & 0x7c00U) != 0x7c00U;
  const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112F;
  const std::uint32_t bits = finite ? __builtin_bit_cast(std::uint32_t, scaled)
                                    : magnitude | 0x7f800000U;
  return __builtin_bit_cast(float, bits | sign);
}

// To the nearest, ties to even; a NaN stays one.
inline void RoundTo(float x, BFloat16* out) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  out->bits = static_cast<std::uint16_t>(is_nan ? 0x7fc0U : rounded);
}

// Subnormal numbers are rounded by an addition in whose sum their last bit
// stands last; what others are rounded up to may carry into the exponent.
inline void RoundTo(float x, Float16* out) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const float sum = __builtin_bit_cast(float, magnitude) + 0.5F;
  const std::uint32_t subnormal =
      __builtin_bit_cast(std::uint32_t, sum) - 0x3f000000U;
  // The biases of the exponents are 112 apart.
  const std::uint32_t normal =
      (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;
  half = magnitude >= 0x477ff000U ? 0x7c00U : half;  // From 65520 on.
  half = magnitude > 0x7f800000U ? 0x7e00U : half;
  out->bits = static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000U));
}

template <typename T>
inline void Widen(const T* in, std::size_t n, double factor, double* out) {
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<double>(ToFloat(in[i])) * factor;
  }
}

}  // namespace
}  // namespace tdbg
