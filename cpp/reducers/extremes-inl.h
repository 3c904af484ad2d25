// The least, the greatest and the least absolute element, in vector lanes.
//
// Two ways: by comparing numbers, and by comparing their bits as integers, for
// which processors have twice the throughput.  Neither is given a NaN.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: values.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

constexpr double kInfinity = __builtin_huge_val();

// By comparing numbers.
template <typename L>
class NumberExtremes {
 public:
  using V = typename L::V;
  using Scalar = typename L::Scalar;

  void AddFour(const V* x, const V* a) {
    min_ = L::Min(min_, L::Min(L::Min(x[0], x[1]), L::Min(x[2], x[3])));
    max_ = L::Max(max_, L::Max(L::Max(x[0], x[1]), L::Max(x[2], x[3])));
    abs_min_ = L::Min(abs_min_, L::Min(L::Min(a[0], a[1]), L::Min(a[2], a[3])));
  }
  // Only the lanes in `mask` exist; others may be NaN.
  void AddMasked(typename L::M mask, V x, V a) {
    const V least = L::Set(static_cast<Scalar>(-kInfinity));
    const V greatest = L::Set(static_cast<Scalar>(kInfinity));
    min_ = L::Min(min_, L::Select(mask, x, greatest));
    max_ = L::Max(max_, L::Select(mask, x, least));
    abs_min_ = L::Min(abs_min_, L::Select(mask, a, greatest));
  }
  void Merge(const NumberExtremes& other) {
    min_ = L::Min(min_, other.min_);
    max_ = L::Max(max_, other.max_);
    abs_min_ = L::Min(abs_min_, other.abs_min_);
  }
  [[nodiscard]] bool HaveZero() const { return L::Any(L::IsZero(abs_min_)); }
  // False where there was no element.
  bool Get(double* min, double* max, double* abs_min) const {
    *min = L::Least(min_);
    *max = -L::Least(L::Sub(L::Set(0), max_));
    *abs_min = L::Least(abs_min_);
    return *min <= *max;
  }
  [[nodiscard]] bool AreEqual() const {
    double min = 0;
    double max = 0;
    double abs_min = 0;
    return !Get(&min, &max, &abs_min) || min == max;
  }

 private:
  V min_ = L::Set(static_cast<Scalar>(kInfinity));
  V max_ = L::Set(static_cast<Scalar>(-kInfinity));
  V abs_min_ = L::Set(static_cast<Scalar>(kInfinity));
};

// The least absolute element alone: the others are found as integers.
template <typename L>
class LeastMagnitude {
 public:
  using V = typename L::V;

  void AddFour(const V* /*x*/, const V* a) {
    abs_min_ = L::Min(abs_min_, L::Min(L::Min(a[0], a[1]), L::Min(a[2], a[3])));
  }
  void AddMasked(typename L::M mask, V /*x*/, V a) {
    abs_min_ = L::Min(abs_min_, L::Select(mask, a, L::Set(kInfinity)));
  }
  void Merge(const LeastMagnitude& other) {
    abs_min_ = L::Min(abs_min_, other.abs_min_);
  }
  [[nodiscard]] bool HaveZero() const { return L::Any(L::IsZero(abs_min_)); }
  [[nodiscard]] double Get() const { return L::Least(abs_min_); }

 private:
  V abs_min_ = L::Set(kInfinity);
};

// By comparing bits: as signed integers, numbers without a sign are in order
// and above all others; as unsigned ones, numbers with a sign are, in the order
// of their magnitude.  B has an integer vector type V of lanes as wide as the
// numbers, and the functions used below.
template <typename B>
class BitExtremes {
 public:
  using V = typename B::V;

  // `a` is `x` without signs.
  void AddFour(const V* x, const V* a) {
    signed_max_ = B::MaxSigned(
        signed_max_,
        B::MaxSigned(B::MaxSigned(x[0], x[1]), B::MaxSigned(x[2], x[3])));
    unsigned_max_ = B::MaxUnsigned(
        unsigned_max_,
        B::MaxUnsigned(B::MaxUnsigned(x[0], x[1]), B::MaxUnsigned(x[2], x[3])));
    abs_min_ = B::MinUnsigned(
        abs_min_,
        B::MinUnsigned(B::MinUnsigned(a[0], a[1]), B::MinUnsigned(a[2], a[3])));
  }
  void AddTwo(V x, V y, V x_magnitude, V y_magnitude) {
    signed_max_ = B::MaxSigned(signed_max_, B::MaxSigned(x, y));
    unsigned_max_ = B::MaxUnsigned(unsigned_max_, B::MaxUnsigned(x, y));
    abs_min_ =
        B::MinUnsigned(abs_min_, B::MinUnsigned(x_magnitude, y_magnitude));
  }
  void AddMasked(typename B::M mask, V x, V a) {
    signed_max_ = B::MaxSigned(signed_max_, B::Select(mask, x, B::SignBit()));
    unsigned_max_ =
        B::MaxUnsigned(unsigned_max_, B::Select(mask, x, B::None()));
    abs_min_ = B::MinUnsigned(abs_min_, B::Select(mask, a, B::All()));
  }
  void Merge(const BitExtremes& other) {
    signed_max_ = B::MaxSigned(signed_max_, other.signed_max_);
    unsigned_max_ = B::MaxUnsigned(unsigned_max_, other.unsigned_max_);
    abs_min_ = B::MinUnsigned(abs_min_, other.abs_min_);
  }
  [[nodiscard]] bool HaveZero() const { return B::AnyZero(abs_min_); }
  // Whether an element has the bits `infinity`, or is beyond them.
  [[nodiscard]] bool HaveAtLeast(typename B::Bits infinity) const {
    return B::AnyAtLeast(signed_max_, unsigned_max_, infinity);
  }
  // False where there was no element.
  bool Get(double* min, double* max, double* abs_min) const {
    using Bits = typename B::Bits;
    const Bits least = B::LeastUnsigned(abs_min_);
    constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
    if ((least & kSign) != 0) return false;
    const Bits greatest = B::GreatestSigned(signed_max_);
    const Bits lowest = B::GreatestUnsigned(unsigned_max_);
    *abs_min = B::ToDouble(least);
    *max = (greatest & kSign) == 0 ? B::ToDouble(greatest) : -*abs_min;
    *min = (lowest & kSign) != 0 ? B::ToDouble(lowest) : *abs_min;
    return true;
  }
  [[nodiscard]] bool AreEqual() const {
    double min = 0;
    double max = 0;
    double abs_min = 0;
    return !Get(&min, &max, &abs_min) || min == max;
  }

 private:
  V signed_max_ = B::SignBit();
  V unsigned_max_ = B::None();
  V abs_min_ = B::All();
};

// Extremes of floats, given as floats.
template <typename B, typename L>
class FloatExtremes : public BitExtremes<B> {
 public:
  void AddFour(const typename L::V* x, const typename L::V* a) {
    const typename B::V x_bits[] = {B::Cast(x[0]), B::Cast(x[1]), B::Cast(x[2]),
                                    B::Cast(x[3])};
    const typename B::V a_bits[] = {B::Cast(a[0]), B::Cast(a[1]), B::Cast(a[2]),
                                    B::Cast(a[3])};
    BitExtremes<B>::AddFour(x_bits, a_bits);
  }
  void AddMasked(typename L::M mask, typename L::V x, typename L::V a) {
    BitExtremes<B>::AddMasked(B::Cast(mask), B::Cast(x), B::Cast(a));
  }
};

}  // namespace
}  // namespace tdbg
