// The element types as the kernels see them: bits, and their value in double.

#pragma once

#include <cstdint>

#include "reducers/cuda/device-inl.h"

namespace tdbg::cuda {
namespace {  // NOLINT(google-build-namespaces): kernels are one unit.

__device__ inline double NanValue() {
  return __longlong_as_double(0x7ff8000000000000LL);
}

// An 8-bit float as the float16 of the same digits: too small by kScale.
__device__ inline std::uint32_t E5M2Half(std::uint32_t byte) {
  return byte << 8;
}
__device__ inline std::uint32_t E4M3Half(std::uint32_t byte) {
  return (byte & 0x80U) << 8 | (byte & 0x7fU) << 7;
}

// Each has Bits and Value, exact; those whose extremes are not found as floats
// also Number and ToNumber.
struct Float32Element {
  using Bits = std::uint32_t;
  __device__ static double Value(Bits b) {
    return static_cast<double>(__int_as_float(static_cast<int>(b)));
  }
};
struct Float64Element {
  using Bits = std::uint64_t;
  using Number = double;
  __device__ static double Value(Bits b) {
    return __longlong_as_double(static_cast<long long>(b));
  }
  __device__ static Number ToNumber(Bits b) { return Value(b); }
};
struct Float16Element {
  using Bits = std::uint16_t;
  __device__ static double Value(Bits b) {
    return static_cast<double>(HalfPair::Low(b));
  }
};
struct BFloat16Element {
  using Bits = std::uint16_t;
  __device__ static double Value(Bits b) {
    return static_cast<double>(BFloatPair::Low(b));
  }
};
struct E4M3FnElement {
  using Bits = std::uint8_t;
  __device__ static double Value(Bits b) {
    if ((b & 0x7fU) == 0x7fU) return NanValue();
    return static_cast<double>(HalfPair::Low(E4M3Half(b))) * 0x1p8;
  }
};
struct E4M3FnUzElement {
  using Bits = std::uint8_t;
  __device__ static double Value(Bits b) {
    if (b == 0x80U) return NanValue();
    return static_cast<double>(HalfPair::Low(E4M3Half(b))) * 0x1p7;
  }
};
struct E5M2Element {
  using Bits = std::uint8_t;
  __device__ static double Value(Bits b) {
    return static_cast<double>(HalfPair::Low(E5M2Half(b)));
  }
};
struct E5M2FnUzElement {
  using Bits = std::uint8_t;
  // The top exponent is a number here, and infinite in float16: half of it is
  // one less in the exponent.
  __device__ static double Value(Bits b) {
    if (b == 0x80U) return NanValue();
    if ((b & 0x7cU) == 0x7cU) {
      return static_cast<double>(HalfPair::Low(E5M2Half(b - 4U)));
    }
    return static_cast<double>(HalfPair::Low(E5M2Half(b))) * 0x1p-1;
  }
};
struct E8M0FnuElement {
  using Bits = std::uint8_t;
  __device__ static double Value(Bits b) {
    if (b == 0xffU) return NanValue();
    return __longlong_as_double(static_cast<long long>(b + 1023U - 127U) << 52);
  }
};

template <typename T, typename B>
struct IntegerElement {
  using Bits = B;
  using Number = T;
  __device__ static T ToNumber(Bits b) { return static_cast<T>(b); }
  __device__ static double Value(Bits b) {
    return static_cast<double>(static_cast<T>(b));
  }
};
using Int8Element = IntegerElement<std::int8_t, std::uint8_t>;
using UInt8Element = IntegerElement<std::uint8_t, std::uint8_t>;
using Int16Element = IntegerElement<std::int16_t, std::uint16_t>;
using UInt16Element = IntegerElement<std::uint16_t, std::uint16_t>;
using Int32Element = IntegerElement<std::int32_t, std::uint32_t>;
using UInt32Element = IntegerElement<std::uint32_t, std::uint32_t>;
using Int64Element = IntegerElement<std::int64_t, std::uint64_t>;
using UInt64Element = IntegerElement<std::uint64_t, std::uint64_t>;
struct TruthElement {
  using Bits = std::uint8_t;
  using Number = std::uint8_t;
  __device__ static std::uint8_t ToNumber(Bits b) { return b != 0 ? 1 : 0; }
  __device__ static double Value(Bits b) { return b != 0 ? 1 : 0; }
};

// Calls use.template operator()<Element>() for the element type of `dtype`.
template <typename Use>
__device__ inline void WithElement(std::uint32_t dtype, Use use) {
  switch (static_cast<DType>(dtype)) {
    case DType::kBool:
      return use.template operator()<TruthElement>();
    case DType::kUInt8:
      return use.template operator()<UInt8Element>();
    case DType::kInt8:
      return use.template operator()<Int8Element>();
    case DType::kUInt16:
      return use.template operator()<UInt16Element>();
    case DType::kInt16:
      return use.template operator()<Int16Element>();
    case DType::kUInt32:
      return use.template operator()<UInt32Element>();
    case DType::kInt32:
      return use.template operator()<Int32Element>();
    case DType::kUInt64:
      return use.template operator()<UInt64Element>();
    case DType::kInt64:
      return use.template operator()<Int64Element>();
    case DType::kFloat16:
      return use.template operator()<Float16Element>();
    case DType::kFloat32:
      return use.template operator()<Float32Element>();
    case DType::kFloat64:
      return use.template operator()<Float64Element>();
    case DType::kBFloat16:
      return use.template operator()<BFloat16Element>();
    case DType::kFloat8E4M3Fn:
      return use.template operator()<E4M3FnElement>();
    case DType::kFloat8E5M2:
      return use.template operator()<E5M2Element>();
    case DType::kFloat8E4M3FnUz:
      return use.template operator()<E4M3FnUzElement>();
    case DType::kFloat8E5M2FnUz:
      return use.template operator()<E5M2FnUzElement>();
    case DType::kFloat8E8M0Fnu:
      return use.template operator()<E8M0FnuElement>();
    default:
      return;
  }
}

// --- Where elements lie ------------------------------------------------------

// A part of a tensor: `n` elements from the `first`-th on.
struct Part {
  std::uint64_t address;  // Of element `first` where contiguous, else of 0.
  std::uint32_t first;    // Used where strided.
  std::uint32_t n;
  std::uint32_t n_dims;  // 0: contiguous.
  const std::int64_t* extents;
  const std::int64_t* strides;
};

// Of the `i`-th of elements that are `size` bytes each.
__device__ inline std::uint64_t AddressOf(const Part& part, std::uint32_t i,
                                          std::uint32_t size) {
  if (part.n_dims == 0) {
    return part.address + static_cast<std::uint64_t>(i) * size;
  }
  std::uint64_t address = part.address;
  std::uint32_t left = part.first + i;
#pragma unroll 1
  for (std::uint32_t d = part.n_dims; d-- > 0;) {
    const auto extent = static_cast<std::uint32_t>(part.extents[d]);
    const std::uint32_t outer = left / extent;
    address += static_cast<std::uint64_t>(
        static_cast<std::int64_t>(left - outer * extent) * part.strides[d]);
    left = outer;
  }
  return address;
}

// The `i`-th 16 bytes of elements, from wherever they lie.
template <typename Bits>
__device__ inline Vec GatherVec(const Part& part, std::uint32_t i) {
  constexpr std::uint32_t kSize = sizeof(Bits);
  constexpr std::uint32_t kPerWord = kSize < 4 ? 4 / kSize : 1;
  Vec v{};
#pragma unroll 1
  for (std::uint32_t word = 0; word < 4; ++word) {
    std::uint32_t bits = 0;
#pragma unroll 1
    for (std::uint32_t k = 0; k < kPerWord; ++k) {
      const std::uint32_t at = i * 16 + word * 4 + k * kSize;
      const std::uint64_t address = AddressOf(part, at / kSize, kSize);
      if constexpr (kSize >= 4) {
        bits = Load<std::uint32_t>(address + at % kSize);
      } else {
        bits |= static_cast<std::uint32_t>(Load<Bits>(address))
                << (8 * kSize * k);
      }
    }
    // Turned by a word, for the sake of constant indices.
    v.w[0] = v.w[1];
    v.w[1] = v.w[2];
    v.w[2] = v.w[3];
    v.w[3] = bits;
  }
  return v;
}

}  // namespace
}  // namespace tdbg::cuda
