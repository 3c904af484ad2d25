// The 8-bit float types as 16-bit ones of the same digits: float16 but for an
// exact power of two, or bfloat16.
//
// Sign, exponent and mantissa of a byte stand in the leading bits of the wider
// number.  Its exponent has another bias, so all numbers (subnormal ones, too)
// are too small or too large by the same power of two.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>

#include "reducers/byte_values.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

// Each has: Half; kScale, by which halves are to be multiplied; Bits of the
// halves of bytes; and Key, which is 0xff for bytes that are not finite
// numbers, or not as halves.
struct E4M3Fn {
  using Half = Float16;
  static constexpr DType kDType = DType::kFloat8E4M3Fn;
  static constexpr double kScale = 0x1p8;
  static Shorts::V Key(Shorts::V b) { return Shorts::Or(b, Shorts::Set(0x80)); }
  static Shorts::V Bits(Shorts::V b) {
    const Shorts::V magnitude = Shorts::And(b, Shorts::Set(0x7f));
    const Shorts::V sign = Shorts::And(b, Shorts::Set(0x80));
    return Shorts::Or(Shorts::ShiftLeft<8>(sign),
                      Shorts::ShiftLeft<7>(magnitude));
  }
};
struct E4M3FnUz {
  using Half = Float16;
  static constexpr DType kDType = DType::kFloat8E4M3FnUz;
  static constexpr double kScale = 0x1p7;
  static Shorts::V Key(Shorts::V b) {
    return Shorts::Xor(b, Shorts::Set(0x7f));
  }
  static Shorts::V Bits(Shorts::V b) { return E4M3Fn::Bits(b); }
};
struct E5M2 {
  using Half = Float16;
  static constexpr DType kDType = DType::kFloat8E5M2;
  static constexpr double kScale = 1;
  static Shorts::V Key(Shorts::V b) { return Shorts::Or(b, Shorts::Set(0x83)); }
  static Shorts::V Bits(Shorts::V b) { return Shorts::ShiftLeft<8>(b); }
};
struct E5M2FnUz {
  using Half = Float16;
  static constexpr DType kDType = DType::kFloat8E5M2FnUz;
  static constexpr double kScale = 0x1p-1;
  // The top exponent is a number here, and infinite in float16.
  static Shorts::V Key(Shorts::V b) {
    return Shorts::MaxUnsigned(E5M2::Key(b), E4M3FnUz::Key(b));
  }
  static Shorts::V Bits(Shorts::V b) { return E5M2::Bits(b); }
};
struct E8M0Fnu {
  using Half = BFloat16;
  static constexpr DType kDType = DType::kFloat8E8M0Fnu;
  static constexpr double kScale = 1;
  // 2^-127 is subnormal in bfloat16.
  static Shorts::V Key(Shorts::V b) {
    return Shorts::MaxUnsigned(b, Shorts::Xor(b, Shorts::Set(0xff)));
  }
  static Shorts::V Bits(Shorts::V b) { return Shorts::ShiftLeft<7>(b); }
};

// False where one of the bytes has no half; `out` then holds nothing of use.
// `out` has room for whole vectors.
template <typename F>
bool ToHalves(const std::uint8_t* p, std::size_t n, typename F::Half* out) {
  Shorts::V key = Shorts::None();
  std::size_t i = 0;
  for (; i + Shorts::kLanes <= n; i += Shorts::kLanes) {
    const Shorts::V b = Shorts::Widen(p + i);
    key = Shorts::MaxUnsigned(key, F::Key(b));
    Shorts::Store(out + i, F::Bits(b));
  }
  if (i < n) {
    std::uint8_t rest[Shorts::kLanes];
    for (std::size_t k = 0; k < Shorts::kLanes; ++k) {
      rest[k] = p[i + k < n ? i + k : i];
    }
    const Shorts::V b = Shorts::Widen(rest);
    key = Shorts::MaxUnsigned(key, F::Key(b));
    Shorts::Store(out + i, F::Bits(b));
  }
  return Shorts::GreatestUnsigned(key) != 0xff;
}

// As if each element had been multiplied by `scale`, a power of two.
inline void ScaleMoments(double scale, Moments* m) {
  m->min.f64 *= scale;
  m->max.f64 *= scale;
  m->abs_min *= scale;
  m->mean *= scale;
  m->mean_low *= scale;
  m->m2 *= scale * scale;
  m->l1 *= scale;
}

}  // namespace
}  // namespace tdbg
