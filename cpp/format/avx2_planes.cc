// Splitting and joining planes with AVX2.  Compiled with its flags, so that
// only what format/plane_kernels.h declares may have external linkage.
//
// Registers hold two runs of 16 elements, one in each 128-bit lane: the
// instructions that shuffle work within lanes, and so nothing need cross them.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "format/plane_kernels.h"

namespace tdbg {
namespace {

using Byte = std::byte;

const __m128i* P128(const Byte* p) {
  return reinterpret_cast<const __m128i*>(p);
}
__m128i* P128(Byte* p) { return reinterpret_cast<__m128i*>(p); }

// 16 bytes at `p` and 16 at `p + apart`.
__m256i Load2(const Byte* p, std::size_t apart) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(P128(p))),
      _mm_loadu_si128(P128(p + apart)), 1);
}

void Store2(Byte* p, std::size_t apart, __m256i v) {
  _mm_storeu_si128(P128(p), _mm256_castsi256_si128(v));
  _mm_storeu_si128(P128(p + apart), _mm256_extracti128_si256(v, 1));
}

__m256i Load(const Byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

void Store(Byte* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

// A shuffle within lanes that gathers byte p of `kSize`-byte elements.
template <int kSize>
__m256i GatherBytes(__m256i v) {
  if constexpr (kSize == 4) {
    return _mm256_shuffle_epi8(
        v, _mm256_broadcastsi128_si256(_mm_setr_epi8(
               0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)));
  } else {
    return _mm256_shuffle_epi8(
        v, _mm256_broadcastsi128_si256(_mm_setr_epi8(
               0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)));
  }
}

template <bool kRotate>
__m256i Left16(__m256i v) {
  if constexpr (!kRotate) return v;
  return _mm256_or_si256(_mm256_slli_epi16(v, 1), _mm256_srli_epi16(v, 15));
}
template <bool kRotate>
__m256i Right16(__m256i v) {
  if constexpr (!kRotate) return v;
  return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15));
}
template <bool kRotate>
__m256i Left32(__m256i v) {
  if constexpr (!kRotate) return v;
  return _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_srli_epi32(v, 31));
}
template <bool kRotate>
__m256i Right32(__m256i v) {
  if constexpr (!kRotate) return v;
  return _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31));
}
template <bool kRotate>
__m256i Left64(__m256i v) {
  if constexpr (!kRotate) return v;
  return _mm256_or_si256(_mm256_slli_epi64(v, 1), _mm256_srli_epi64(v, 63));
}
template <bool kRotate>
__m256i Right64(__m256i v) {
  if constexpr (!kRotate) return v;
  return _mm256_or_si256(_mm256_srli_epi64(v, 1), _mm256_slli_epi64(v, 63));
}

// Each takes whole groups of 32 elements and returns how many it took.

template <bool kRotate>
std::size_t Split2(const Byte* raw, std::size_t n, Byte* const* planes) {
  const __m256i low = _mm256_set1_epi16(0xff);
  Byte* const plane0 = planes[0];
  Byte* const plane1 = planes[1];
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i a = Left16<kRotate>(Load2(raw + 2 * i, 32));
    const __m256i b = Left16<kRotate>(Load2(raw + 2 * i + 16, 32));
    Store(plane0 + i, _mm256_packus_epi16(_mm256_and_si256(a, low),
                                          _mm256_and_si256(b, low)));
    Store(plane1 + i, _mm256_packus_epi16(_mm256_srli_epi16(a, 8),
                                          _mm256_srli_epi16(b, 8)));
  }
  return i;
}

template <bool kRotate>
std::size_t Join2(const Byte* const* planes, std::size_t n, Byte* raw) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i a = Load(planes[0] + i);
    const __m256i b = Load(planes[1] + i);
    Byte* to = raw + 2 * i;
    Store2(to, 32, Right16<kRotate>(_mm256_unpacklo_epi8(a, b)));
    Store2(to + 16, 32, Right16<kRotate>(_mm256_unpackhi_epi8(a, b)));
  }
  return i;
}

template <bool kRotate>
std::size_t Split4(const Byte* raw, std::size_t n, Byte* const* planes) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i v[4];
    for (std::size_t j = 0; j < 4; ++j) {
      v[j] = GatherBytes<4>(Left32<kRotate>(Load2(raw + 4 * i + 16 * j, 64)));
    }
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]);
    const __m256i b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]);
    const __m256i d = _mm256_unpackhi_epi32(v[2], v[3]);
    Store(planes[0] + i, _mm256_unpacklo_epi64(a, c));
    Store(planes[1] + i, _mm256_unpackhi_epi64(a, c));
    Store(planes[2] + i, _mm256_unpacklo_epi64(b, d));
    Store(planes[3] + i, _mm256_unpackhi_epi64(b, d));
  }
  return i;
}

template <bool kRotate>
std::size_t Join4(const Byte* const* planes, std::size_t n, Byte* raw) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i p0 = Load(planes[0] + i);
    const __m256i p1 = Load(planes[1] + i);
    const __m256i p2 = Load(planes[2] + i);
    const __m256i p3 = Load(planes[3] + i);
    const __m256i a = _mm256_unpacklo_epi8(p0, p1);
    const __m256i b = _mm256_unpackhi_epi8(p0, p1);
    const __m256i c = _mm256_unpacklo_epi8(p2, p3);
    const __m256i d = _mm256_unpackhi_epi8(p2, p3);
    Byte* to = raw + 4 * i;
    Store2(to, 64, Right32<kRotate>(_mm256_unpacklo_epi16(a, c)));
    Store2(to + 16, 64, Right32<kRotate>(_mm256_unpackhi_epi16(a, c)));
    Store2(to + 32, 64, Right32<kRotate>(_mm256_unpacklo_epi16(b, d)));
    Store2(to + 48, 64, Right32<kRotate>(_mm256_unpackhi_epi16(b, d)));
  }
  return i;
}

template <bool kRotate>
std::size_t Split8(const Byte* raw, std::size_t n, Byte* const* planes) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Each holds two elements a lane, as pairs of bytes of one plane.
    __m256i v[8];
    for (std::size_t j = 0; j < 8; ++j) {
      v[j] = GatherBytes<8>(Left64<kRotate>(Load2(raw + 8 * i + 16 * j, 128)));
    }
    __m256i w[8];
    for (std::size_t j = 0; j < 4; ++j) {
      w[j] = _mm256_unpacklo_epi16(v[2 * j], v[2 * j + 1]);      // Planes 0-3.
      w[4 + j] = _mm256_unpackhi_epi16(v[2 * j], v[2 * j + 1]);  // 4-7.
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i* u = w + 4 * half;
      Byte* const* to = planes + 4 * half;
      const __m256i a = _mm256_unpacklo_epi32(u[0], u[1]);
      const __m256i b = _mm256_unpackhi_epi32(u[0], u[1]);
      const __m256i c = _mm256_unpacklo_epi32(u[2], u[3]);
      const __m256i d = _mm256_unpackhi_epi32(u[2], u[3]);
      Store(to[0] + i, _mm256_unpacklo_epi64(a, c));
      Store(to[1] + i, _mm256_unpackhi_epi64(a, c));
      Store(to[2] + i, _mm256_unpacklo_epi64(b, d));
      Store(to[3] + i, _mm256_unpackhi_epi64(b, d));
    }
  }
  return i;
}

template <bool kRotate>
std::size_t Join8(const Byte* const* planes, std::size_t n, Byte* raw) {
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    // Per lane 16 elements: first pairs of planes, then fours, then all.
    __m256i pairs[8];
    for (std::size_t j = 0; j < 4; ++j) {
      const __m256i a = Load(planes[2 * j] + i);
      const __m256i b = Load(planes[2 * j + 1] + i);
      pairs[2 * j] = _mm256_unpacklo_epi8(a, b);
      pairs[2 * j + 1] = _mm256_unpackhi_epi8(a, b);
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const __m256i low01 = pairs[half];
      const __m256i low23 = pairs[2 + half];
      const __m256i high45 = pairs[4 + half];
      const __m256i high67 = pairs[6 + half];
      const __m256i a = _mm256_unpacklo_epi16(low01, low23);
      const __m256i b = _mm256_unpackhi_epi16(low01, low23);
      const __m256i c = _mm256_unpacklo_epi16(high45, high67);
      const __m256i d = _mm256_unpackhi_epi16(high45, high67);
      Byte* to = raw + 8 * i + 64 * half;
      Store2(to, 128, Right64<kRotate>(_mm256_unpacklo_epi32(a, c)));
      Store2(to + 16, 128, Right64<kRotate>(_mm256_unpackhi_epi32(a, c)));
      Store2(to + 32, 128, Right64<kRotate>(_mm256_unpacklo_epi32(b, d)));
      Store2(to + 48, 128, Right64<kRotate>(_mm256_unpackhi_epi32(b, d)));
    }
  }
  return i;
}

template <bool kRotate>
std::size_t SplitGroups(const Byte* raw, std::size_t n, std::uint32_t width,
                        Byte* const* planes) {
  if (width == 8) return Split8<kRotate>(raw, n, planes);
  if (width == 4) return Split4<kRotate>(raw, n, planes);
  if (width == 2) return Split2<kRotate>(raw, n, planes);
  return 0;
}

template <bool kRotate>
std::size_t JoinGroups(const Byte* const* planes, std::size_t n,
                       std::uint32_t width, Byte* raw) {
  if (width == 8) return Join8<kRotate>(planes, n, raw);
  if (width == 4) return Join4<kRotate>(planes, n, raw);
  if (width == 2) return Join2<kRotate>(planes, n, raw);
  return 0;
}

}  // namespace

void SplitPlanesAvx2(const Byte* raw, std::size_t n, std::uint32_t width,
                     bool rotate, Byte* const* planes) {
  const std::size_t done = rotate ? SplitGroups<true>(raw, n, width, planes)
                                  : SplitGroups<false>(raw, n, width, planes);
  if (done == n) return;
  Byte* rest[8];
  for (std::uint32_t p = 0; p < width; ++p) rest[p] = planes[p] + done;
  PortablePlaneKernels().split(raw + done * width, n - done, width, rotate,
                               rest);
}

void JoinPlanesAvx2(const Byte* const* planes, std::size_t n,
                    std::uint32_t width, bool rotate, Byte* raw) {
  const std::size_t done = rotate ? JoinGroups<true>(planes, n, width, raw)
                                  : JoinGroups<false>(planes, n, width, raw);
  if (done == n) return;
  const Byte* rest[8];
  for (std::uint32_t p = 0; p < width; ++p) rest[p] = planes[p] + done;
  PortablePlaneKernels().join(rest, n - done, width, rotate,
                              raw + done * width);
}

}  // namespace tdbg
