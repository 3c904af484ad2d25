// The kernels of reducers/beside.h, written once over the vectors of an
// instruction set, as kernel-inl.h.
//
// In an anonymous namespace, so that each translation unit has its own, for
// its own instruction set (see reducers/moments.h).
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>

#include "reducers/block-inl.h"
#include "reducers/kernel-inl.h"
#include "reducers/moments.h"
#include "reducers/widen-inl.h"

namespace tdbg {
namespace {  // NOLINT(google-build-namespaces): see above.

template <typename L, typename T>
void SubtractAs(const void* a, const void* b, std::size_t n, void* out) {
  SubtractElements<L>(static_cast<const T*>(a), static_cast<const T*>(b), n,
                      static_cast<T*>(out));
}

inline void SubtractAny(const void* a, const void* b, std::size_t n,
                        DType dtype, void* out) {
  switch (dtype) {
    case DType::kFloat32:
      return SubtractAs<Floats, float>(a, b, n, out);
    case DType::kFloat64:
      return SubtractAs<Doubles, double>(a, b, n, out);
    case DType::kBFloat16:
      return SubtractAs<Floats, BFloat16>(a, b, n, out);
    case DType::kFloat16:
      return SubtractAs<Floats, Float16>(a, b, n, out);
    default:
      return;
  }
}

// Differences of float32 are made while they are summed, so that sums go on
// while memory is read; of the others, a block in the first cache at a time
// before.
inline void AccumulateDifferenceAny(const void* a, const void* b, std::size_t n,
                                    DType dtype, Pass pass, Moments* m) {
  alignas(64) std::byte block[kBlockBytes];
  if (dtype == DType::kFloat32 && !pass.precise) {
    const Differences<float> source{static_cast<const float*>(a),
                                    static_cast<const float*>(b),
                                    reinterpret_cast<float*>(block)};
    return AccumulateFloatBlocks(source, n, m);
  }
  const std::size_t item_size = ItemSize(dtype);
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  while (n > 0) {
    const std::size_t most = BlockElements(item_size);
    const std::size_t n_block = n < most ? n : most;
    SubtractAny(x, y, n_block, dtype, block);
    AccumulateAny(block, n_block, dtype, pass, m);
    x += n_block * item_size;
    y += n_block * item_size;
    n -= n_block;
  }
}

inline void AccumulateAndCopyFloats(const float* data, std::size_t n,
                                    float* copy, Moments* m) {
  AccumulateFloatBlocks(Copied<float>{data, copy}, n, m);
  Floats::EndStream();
}

}  // namespace
}  // namespace tdbg
