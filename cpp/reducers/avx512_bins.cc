// The kernel of histograms for AVX-512 (F, BW, VL, DQ).  Compiled with those
// flags, so that only CountBinsAvx512 may have external linkage
// (reducers/moments.h).

// False alarms of GCC from within its own intrinsics: see avx512.cc.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "reducers/bins-inl.h"
#include "reducers/bins.h"

namespace tdbg {
namespace {

// Moves the other keys together: fewer are left to count.  Reads and writes
// whole vectors, kBinBlock being a multiple of them.
struct Compressed {
  static std::size_t WithoutZeros(std::uint16_t* keys, std::size_t n) {
    constexpr std::size_t kLanes = 16;
    std::size_t n_left = 0;
    for (std::size_t i = 0; i < n; i += kLanes) {
      const std::size_t n_lanes = n - i < kLanes ? n - i : kLanes;
      const auto lanes = static_cast<__mmask16>((1U << n_lanes) - 1U);
      const __m512i v =
          _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, keys + i));
      const __mmask16 others = _mm512_test_epi32_mask(v, v);
      // Never beyond what has been read: n_left <= i.
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(keys + n_left),
          _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(others, v)));
      n_left += static_cast<std::size_t>(__builtin_popcount(others));
    }
    return n_left;
  }
};

}  // namespace

void CountBinsAvx512(const void* data, std::size_t n, DType dtype, double scale,
                     BinTable* table) {
  CountBinsAny<Compressed>(data, n, dtype, scale, table);
}

}  // namespace tdbg
