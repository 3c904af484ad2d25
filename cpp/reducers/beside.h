// What a pass over a tensor reads and writes beside the elements that it
// reduces, and the kernels for it.
//
// For the reason given in reducers/moments.h this header holds plain data and
// declarations only.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>

#include "reducers/moments.h"
#include "tensor/dtype.h"

namespace tdbg {

// Memory beside that of the elements of a tensor, laid out alike.  One of the
// two at most.
struct Beside {
  // Is subtracted from the elements before they are reduced; null: nothing is.
  const std::byte* minus = nullptr;
  // Receives the elements as they are; null: nobody does.
  std::byte* copy = nullptr;
};

// Whether differences of such elements are defined here.
[[nodiscard]] constexpr bool HasDifference(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 ||
         dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Adds the differences a - b of `n` contiguous elements to `*moments`, as the
// kernel of statistics adds elements (reducers/moments.h): bit by bit what it
// adds of an array of the differences.  Narrow floats are subtracted as
// float32, and each difference is rounded to the nearest of its type, ties to
// even: as frameworks do it.
// REQUIRES: HasDifference(dtype), and as there; all are aligned to elements.
void AccumulateDifferencePortable(const void* a, const void* b, std::size_t n,
                                  DType dtype, Pass pass, Moments* moments);
void AccumulateDifferenceAvx2(const void* a, const void* b, std::size_t n,
                              DType dtype, Pass pass, Moments* moments);
void AccumulateDifferenceAvx512(const void* a, const void* b, std::size_t n,
                                DType dtype, Pass pass, Moments* moments);
void AccumulateDifferenceAvx512BFloat16(const void* a, const void* b,
                                        std::size_t n, DType dtype, Pass pass,
                                        Moments* moments);

// Adds `n` contiguous elements of float32 to `*moments` as the kernel of
// statistics does, and copies them to `copy` past the caches.
// REQUIRES: both are aligned to elements, `copy` to 64 bytes.
void AccumulateAndCopyPortable(const float* data, std::size_t n, float* copy,
                               Moments* moments);
void AccumulateAndCopyAvx2(const float* data, std::size_t n, float* copy,
                           Moments* moments);
void AccumulateAndCopyAvx512(const float* data, std::size_t n, float* copy,
                             Moments* moments);

// Writes the differences a - b to `out`, which may be `a` or `b`.
// REQUIRES: HasDifference(dtype); all are aligned to elements.
void SubtractPortable(const void* a, const void* b, std::size_t n, DType dtype,
                      void* out);
void SubtractAvx2(const void* a, const void* b, std::size_t n, DType dtype,
                  void* out);
void SubtractAvx512(const void* a, const void* b, std::size_t n, DType dtype,
                    void* out);

}  // namespace tdbg
