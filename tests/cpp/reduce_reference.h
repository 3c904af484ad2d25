// Elements of every type and kind, and their row by two plain passes in long
// double: what the tests of the reducers compare with.
//
// The 8-bit floats are decoded here by arithmetic of their own, bit by bit.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg::testing {

enum class Values {
  kNormal,
  kLargeMean,
  kMixedSizes,
  kSprinkled,  // NaN and Inf among numbers.
  kAllNan,
  kAllInf,
  kAllZero,
  kNegativeZero,
  kDenormal,
  kExtremes,  // The greatest and least numbers of the type.
  kSorted,
  kHugePairs,  // +-1e8.
  kOutlier,    // One 1e30.
  kConstant,
  kPattern,
  kRelu,       // Half zeros.
  kFlatFirst,  // Zeros, then numbers far away.
  kRandomBits,
};
constexpr int kNumberOfValues = 18;

inline const char* ValuesName(Values values) {
  constexpr const char* kNames[] = {
      "normal",  "large mean", "mixed sizes", "sprinkled", "all NaN",
      "all Inf", "all zero",   "-0",          "denormal",  "extremes",
      "sorted",  "huge pairs", "outlier",     "constant",  "pattern",
      "ReLU",    "flat first", "random bits"};
  return kNames[static_cast<int>(values)];
}

// The value of an 8-bit float.
inline long double Float8(std::uint8_t byte, DType dtype) {
  const long double nan = std::numeric_limits<long double>::quiet_NaN();
  const long double inf = std::numeric_limits<long double>::infinity();
  if (dtype == DType::kFloat8E8M0Fnu) {
    return byte == 0xff ? nan : std::ldexp(1.0L, byte - 127);
  }
  const bool wide =
      dtype == DType::kFloat8E5M2 || dtype == DType::kFloat8E5M2FnUz;
  const bool fnuz =
      dtype == DType::kFloat8E4M3FnUz || dtype == DType::kFloat8E5M2FnUz;
  const int n_mantissa = wide ? 2 : 3;
  const int bias = (wide ? 15 : 7) + (fnuz ? 1 : 0);
  const int mantissa = byte & ((1 << n_mantissa) - 1);
  const int exponent = (byte & 0x7f) >> n_mantissa;
  const long double sign = (byte & 0x80) != 0 ? -1 : 1;
  if (fnuz && byte == 0x80) return nan;
  if (dtype == DType::kFloat8E4M3Fn && (byte & 0x7f) == 0x7f) return nan;
  if (dtype == DType::kFloat8E5M2 && exponent == 31) {
    return mantissa == 0 ? sign * inf : nan;
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<long double>(mantissa),
                             1 - bias - n_mantissa);
  }
  return sign *
         std::ldexp(static_cast<long double>(mantissa + (1 << n_mantissa)),
                    exponent - bias - n_mantissa);
}

// IEEE binary16 and the like, with `n_mantissa` bits and a bias.
inline long double Float16Bits(std::uint16_t bits, int n_mantissa, int bias) {
  const int mantissa = bits & ((1 << n_mantissa) - 1);
  const int exponent = (bits & 0x7fff) >> n_mantissa;
  const long double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x7fff >> n_mantissa) {
    return mantissa == 0 ? sign * std::numeric_limits<long double>::infinity()
                         : std::numeric_limits<long double>::quiet_NaN();
  }
  const int whole = exponent == 0 ? 0 : 1 << n_mantissa;
  return sign * std::ldexp(static_cast<long double>(mantissa + whole),
                           (exponent == 0 ? 1 : exponent) - bias - n_mantissa);
}

template <typename T>
T At(const std::byte* p) {
  T x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}

inline long double ValueAt(const std::byte* p, DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return At<std::uint8_t>(p) != 0 ? 1 : 0;
    case DType::kUInt8:
      return At<std::uint8_t>(p);
    case DType::kInt8:
      return At<std::int8_t>(p);
    case DType::kUInt16:
      return At<std::uint16_t>(p);
    case DType::kInt16:
      return At<std::int16_t>(p);
    case DType::kUInt32:
      return At<std::uint32_t>(p);
    case DType::kInt32:
      return At<std::int32_t>(p);
    case DType::kUInt64:
      return At<std::uint64_t>(p);
    case DType::kInt64:
      return At<std::int64_t>(p);
    case DType::kFloat16:
      return Float16Bits(At<std::uint16_t>(p), 10, 15);
    case DType::kBFloat16:
      return Float16Bits(At<std::uint16_t>(p), 7, 127);
    case DType::kFloat32:
      return At<float>(p);
    case DType::kFloat64:
      return At<double>(p);
    default:
      return Float8(At<std::uint8_t>(p), dtype);
  }
}

// The n-th element of a kind of values, as a double.
inline double Draw(Values values, std::size_t i, std::size_t n,
                   std::mt19937_64* random) {
  std::normal_distribution<double> normal;
  const double g = normal(*random);
  const auto at = static_cast<double>(i);
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  switch (values) {
    case Values::kNormal:
      return g;
    case Values::kLargeMean:
      return 1e4 + g;
    case Values::kMixedSizes:
      return g * std::exp(8 * normal(*random));
    case Values::kSprinkled: {
      const auto r = (*random)() % 16;
      return r == 0 ? nan : r == 1 ? inf : r == 2 ? -inf : g;
    }
    case Values::kAllNan:
      return nan;
    case Values::kAllInf:
      return i % 3 == 0 ? -inf : inf;
    case Values::kAllZero:
      return 0.0;
    case Values::kNegativeZero:
      return -0.0;
    case Values::kSorted:
      return at / static_cast<double>(n);
    case Values::kHugePairs:
      return (i % 2 == 0 ? 1e8 : -1e8) + g;
    case Values::kOutlier:
      return i == n / 2 ? 1e30 : g;
    case Values::kConstant:
      return 0.1;
    case Values::kPattern:
      return i % 3 == 0 ? 0.1 : i % 3 == 1 ? -0.7 : 1.3;
    case Values::kRelu:
      return g > 0 ? g : 0;
    case Values::kFlatFirst:
      return i < 40 ? 0.0 : 1e4 + 0.02 * g;
    default:
      return g;
  }
}

template <typename T>
void Put(T x, std::byte* p) {
  std::memcpy(p, &x, sizeof(x));
}

inline std::uint16_t ToBFloat16(double x) {
  std::uint32_t bits = 0;
  const auto narrow = static_cast<float>(x);
  std::memcpy(&bits, &narrow, sizeof(bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

// A binary16 near x; exactness does not matter here.
inline std::uint16_t ToFloat16(double x) {
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (std::isnan(x)) return 0x7e00;
  if (magnitude > 65504) return sign | 0x7c00;
  if (magnitude < 0x1p-14) {
    return static_cast<std::uint16_t>(
        sign | static_cast<int>(std::ldexp(magnitude, 24)));
  }
  const int exponent = std::ilogb(magnitude);
  const int mantissa =
      static_cast<int>(std::ldexp(magnitude, 10 - exponent)) - 1024;
  return static_cast<std::uint16_t>(sign | ((exponent + 15) << 10) | mantissa);
}

template <typename T>
void PutInteger(Values values, double x, std::uint64_t bits, std::byte* p) {
  using Limits = std::numeric_limits<T>;
  if (values == Values::kExtremes) {
    Put(bits % 2 == 0 ? Limits::min() : Limits::max(), p);
  } else if (values == Values::kRandomBits || values == Values::kDenormal) {
    Put(static_cast<T>(bits), p);
  } else if (std::isfinite(x) && x * 100 < static_cast<double>(Limits::max()) &&
             x * 100 > static_cast<double>(Limits::min())) {
    Put(static_cast<T>(x * 100), p);
  } else {
    Put(Limits::max(), p);
  }
}

// `n` elements; the same ones at every call.
inline std::vector<std::byte> Make(DType dtype, Values values, std::size_t n) {
  std::mt19937_64 random(n + 977 * static_cast<std::size_t>(values));
  const std::size_t item = ItemSize(dtype);
  std::vector<std::byte> elements(n * item);
  for (std::size_t i = 0; i < n; ++i) {
    std::byte* p = elements.data() + i * item;
    const double x = Draw(values, i, n, &random);
    const std::uint64_t bits = random();
    const bool any_bits = values == Values::kRandomBits;
    const bool extremes = values == Values::kExtremes;
    const bool denormal = values == Values::kDenormal;
    switch (dtype) {
      case DType::kBool:
        Put<std::uint8_t>(values == Values::kAllZero ? 0 : bits & 1, p);
        break;
      case DType::kUInt8:
        PutInteger<std::uint8_t>(values, x, bits, p);
        break;
      case DType::kInt8:
        PutInteger<std::int8_t>(values, x, bits, p);
        break;
      case DType::kUInt16:
        PutInteger<std::uint16_t>(values, x, bits, p);
        break;
      case DType::kInt16:
        PutInteger<std::int16_t>(values, x, bits, p);
        break;
      case DType::kUInt32:
        PutInteger<std::uint32_t>(values, x, bits, p);
        break;
      case DType::kInt32:
        PutInteger<std::int32_t>(values, x, bits, p);
        break;
      case DType::kUInt64:
        PutInteger<std::uint64_t>(values, x, bits, p);
        break;
      case DType::kInt64:
        PutInteger<std::int64_t>(values, x, bits, p);
        break;
      case DType::kFloat16:
        Put(any_bits   ? static_cast<std::uint16_t>(bits)
            : extremes ? static_cast<std::uint16_t>(0x7bff | (bits & 0x8000))
            : denormal ? static_cast<std::uint16_t>(bits & 0x83ff)
                       : ToFloat16(x),
            p);
        break;
      case DType::kBFloat16:
        Put(any_bits   ? static_cast<std::uint16_t>(bits)
            : extremes ? static_cast<std::uint16_t>(0x7f7f | (bits & 0x8000))
            : denormal ? static_cast<std::uint16_t>(bits & 0x807f)
                       : ToBFloat16(x),
            p);
        break;
      case DType::kFloat32:
        if (any_bits || denormal) {
          const auto mask = any_bits ? 0xffffffffU : 0x807fffffU;
          Put(static_cast<std::uint32_t>(bits) & mask, p);
        } else if (extremes) {
          const float most = std::numeric_limits<float>::max();
          Put(bits % 2 == 0 ? most : -most, p);
        } else {
          Put(static_cast<float>(x), p);
        }
        break;
      case DType::kFloat64:
        if (denormal) {
          Put(bits & 0x800fffffffffffffU, p);
        } else if (extremes) {
          // Sums of greater ones overflow, as NumPy's do.
          Put(bits % 2 == 0 ? 1e303 : -1e303, p);
        } else {
          Put(x, p);
        }
        break;
      default:
        Put(static_cast<std::uint8_t>(values == Values::kAllZero    ? 0
                                      : values == Values::kConstant ? 0x31
                                                                    : bits),
            p);
    }
  }
  return elements;
}

inline Summary ReferenceRow(std::span<const std::byte> elements, DType dtype) {
  const std::size_t item = ItemSize(dtype);
  const ExtremeClass extremes = ExtremeClassOf(dtype);
  Summary row = Summary::Empty(extremes);
  row.count = elements.size() / item;
  const auto value = [&](std::size_t i) {
    const long double x = ValueAt(elements.data() + i * item, dtype);
    // Moments are those of the values as doubles.
    return static_cast<long double>(static_cast<double>(x));
  };
  long double sum = 0;
  long double l1 = 0;
  long double squares = 0;
  for (std::size_t i = 0; i < row.count; ++i) {
    const long double x = value(i);
    if (std::isnan(x)) {
      ++row.nan;
      continue;
    }
    if (std::isinf(x)) {
      ++(x > 0 ? row.positive_infinity : row.negative_infinity);
      continue;
    }
    if (x == 0) ++row.zero;
    sum += x;
    l1 += std::fabs(x);
    squares += x * x;
    const std::byte* p = elements.data() + i * item;
    const auto exact = ValueAt(p, dtype);
    if (extremes == ExtremeClass::kFloat64) {
      row.min.f64 = std::fmin(row.min.f64, static_cast<double>(x));
      row.max.f64 = std::fmax(row.max.f64, static_cast<double>(x));
    } else if (extremes == ExtremeClass::kInt64) {
      const auto integer = static_cast<std::int64_t>(exact);
      if (integer < row.min.i64) row.min.i64 = integer;
      if (integer > row.max.i64) row.max.i64 = integer;
    } else {
      const auto integer = static_cast<std::uint64_t>(exact);
      if (integer < row.min.u64) row.min.u64 = integer;
      if (integer > row.max.u64) row.max.u64 = integer;
    }
    row.abs_min = std::fmin(row.abs_min, static_cast<double>(std::fabs(x)));
  }
  if (row.finite() == 0) return row;
  const auto n = static_cast<long double>(row.finite());
  const long double mean = sum / n;
  // The second pass also finds what the first one's mean is off, which matters
  // where the spread is tiny beside the mean.
  long double m2 = 0;
  long double off = 0;
  for (std::size_t i = 0; i < row.count; ++i) {
    const long double x = value(i);
    if (!std::isfinite(x)) continue;
    m2 += (x - mean) * (x - mean);
    off += x - mean;
  }
  m2 -= off * (off / n);
  row.mean = static_cast<double>(mean + off / n);
  row.m2 = row.min.u64 == row.max.u64 ? 0 : static_cast<double>(m2);
  row.l1 = static_cast<double>(l1);
  row.l2 = static_cast<double>(std::sqrt(squares));
  return row;
}

}  // namespace tdbg::testing
