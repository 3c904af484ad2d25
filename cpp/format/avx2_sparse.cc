// Compacting what is not zero, and the way back, with AVX2.  Compiled with its
// flags, so that only what format/plane_kernels.h declares may have external
// linkage.

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

__m256i Load(const Byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

void Store(Byte* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

// For every byte of a bitmap: which of eight elements to gather so that those
// with a bit come first, and which of the gathered ones each takes back (0x80:
// none, it is zero).
struct Tables {
  alignas(64) std::uint8_t gather[256][8];
  alignas(64) std::uint8_t spread[256][8];
};

constexpr Tables MakeTables() {
  Tables tables{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    std::uint8_t n = 0;
    for (std::uint8_t i = 0; i < 8; ++i) {
      const bool is_set = (bits >> i & 1) != 0;
      tables.spread[bits][i] = is_set ? n : 0x80;
      if (is_set) tables.gather[bits][n++] = i;
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

__m128i Row(const std::uint8_t* row) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row));
}

// Shuffles of bytes that move 16-bit elements.
__m128i PairsOf(__m128i elements) {
  const __m128i doubled = _mm_add_epi8(elements, elements);
  const __m128i pairs = _mm_unpacklo_epi8(doubled, doubled);
  return _mm_add_epi8(pairs, _mm_set1_epi16(0x0100));
}

// Of four 64-bit elements as eight 32-bit ones.
__m256i HalvesOf(__m128i elements) {
  const __m256i wide = _mm256_cvtepi8_epi64(elements);
  const __m256i low = _mm256_add_epi64(wide, wide);
  const __m256i high = _mm256_add_epi64(low, _mm256_set1_epi64x(1));
  return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi64x(0xffffffff)),
                         _mm256_slli_epi64(high, 32));
}

// Eight elements: their bits, and those that are not zero to `values`.
unsigned Compact8(const Byte* raw, std::uint32_t width, Byte* values) {
  const __m256i zero = _mm256_setzero_si256();
  if (width == 4) {
    const __m256i v = Load(raw);
    const auto zeros = static_cast<unsigned>(
        _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(v, zero))));
    const unsigned bits = ~zeros & 0xff;
    Store(values, _mm256_permutevar8x32_epi32(
                      v, _mm256_cvtepu8_epi32(Row(kTables.gather[bits]))));
    return bits;
  }
  if (width == 2) {
    const __m128i v = _mm_loadu_si128(P128(raw));
    const __m128i is_zero = _mm_cmpeq_epi16(v, _mm_setzero_si128());
    const auto zeros = static_cast<unsigned>(
        _mm_movemask_epi8(_mm_packs_epi16(is_zero, is_zero)));
    const unsigned bits = ~zeros & 0xff;
    _mm_storeu_si128(P128(values),
                     _mm_shuffle_epi8(v, PairsOf(Row(kTables.gather[bits]))));
    return bits;
  }
  if (width == 1) {
    const __m128i v = _mm_loadl_epi64(P128(raw));
    const auto zeros = static_cast<unsigned>(
        _mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_setzero_si128())));
    const unsigned bits = ~zeros & 0xff;
    _mm_storel_epi64(P128(values),
                     _mm_shuffle_epi8(v, Row(kTables.gather[bits])));
    return bits;
  }
  unsigned all = 0;
  for (unsigned half = 0; half < 2; ++half) {
    const __m256i v = Load(raw + 32 * half);
    const auto zeros = static_cast<unsigned>(
        _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(v, zero))));
    const unsigned bits = ~zeros & 0xf;
    Store(values,
          _mm256_permutevar8x32_epi32(v, HalvesOf(Row(kTables.gather[bits]))));
    values += 8 * static_cast<unsigned>(__builtin_popcount(bits));
    all |= bits << (4 * half);
  }
  return all;
}

// Reads as many bytes of `values` as eight elements have.
void Expand8(unsigned bits, const Byte* values, std::uint32_t width,
             Byte* raw) {
  if (width == 4) {
    const __m256i from = _mm256_cvtepi8_epi32(Row(kTables.spread[bits]));
    const __m256i v = _mm256_permutevar8x32_epi32(Load(values), from);
    Store(raw, _mm256_andnot_si256(_mm256_srai_epi32(from, 31), v));
    return;
  }
  if (width == 2) {
    // 0x80 doubled would be 0: the high bit is put back.
    const __m128i row = Row(kTables.spread[bits]);
    const __m128i none = _mm_cmplt_epi8(row, _mm_setzero_si128());
    const __m128i from =
        _mm_or_si128(PairsOf(row), _mm_unpacklo_epi8(none, none));
    _mm_storeu_si128(P128(raw),
                     _mm_shuffle_epi8(_mm_loadu_si128(P128(values)), from));
    return;
  }
  if (width == 1) {
    _mm_storel_epi64(P128(raw), _mm_shuffle_epi8(_mm_loadl_epi64(P128(values)),
                                                 Row(kTables.spread[bits])));
    return;
  }
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned few = bits >> (4 * half) & 0xf;
    const __m128i row = Row(kTables.spread[few]);
    const __m256i v = _mm256_permutevar8x32_epi32(Load(values), HalvesOf(row));
    const __m256i none =
        _mm256_cmpgt_epi64(_mm256_setzero_si256(), _mm256_cvtepi8_epi64(row));
    Store(raw + 32 * half, _mm256_andnot_si256(none, v));
    values += 8 * static_cast<unsigned>(__builtin_popcount(few));
  }
}

template <std::uint32_t kWidth>
std::size_t CompactAll(const Byte* raw, std::size_t n, Byte* bitmap,
                       Byte* values) {
  std::size_t n_values = 0;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const unsigned bits =
        Compact8(raw + i * kWidth, kWidth, values + n_values * kWidth);
    bitmap[i / 8] = static_cast<Byte>(bits);
    n_values += static_cast<unsigned>(__builtin_popcount(bits));
  }
  if (i == n) return n_values;
  return n_values + PortablePlaneKernels().compact(raw + i * kWidth, n - i,
                                                   kWidth, bitmap + i / 8,
                                                   values + n_values * kWidth);
}

template <std::uint32_t kWidth>
void ExpandAll(const Byte* bitmap, const Byte* values, std::size_t n_values,
               std::size_t n, Byte* raw) {
  std::size_t taken = 0;
  std::size_t i = 0;
  // The second half of 64-bit elements may begin four values later.
  constexpr std::size_t kAhead = 8;
  for (; i + 8 <= n && taken + kAhead <= n_values; i += 8) {
    const auto bits = static_cast<unsigned>(bitmap[i / 8]);
    Expand8(bits, values + taken * kWidth, kWidth, raw + i * kWidth);
    taken += static_cast<unsigned>(__builtin_popcount(bits));
  }
  if (i == n) return;
  PortablePlaneKernels().expand(bitmap + i / 8, values + taken * kWidth,
                                n_values - taken, n - i, kWidth,
                                raw + i * kWidth);
}

}  // namespace

std::size_t CompactAvx2(const Byte* raw, std::size_t n, std::uint32_t width,
                        Byte* bitmap, Byte* values) {
  if (width == 8) return CompactAll<8>(raw, n, bitmap, values);
  if (width == 4) return CompactAll<4>(raw, n, bitmap, values);
  if (width == 2) return CompactAll<2>(raw, n, bitmap, values);
  return CompactAll<1>(raw, n, bitmap, values);
}

std::size_t CountBitsAvx2(const Byte* bitmap, std::size_t n) {
  std::size_t n_bits = 0;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    unsigned long long word = 0;
    __builtin_memcpy(&word, bitmap + i, sizeof(word));
    n_bits += static_cast<unsigned>(__builtin_popcountll(word));
  }
  for (; i < n; ++i) {
    n_bits += static_cast<unsigned>(
        __builtin_popcount(static_cast<unsigned>(bitmap[i])));
  }
  return n_bits;
}

void ExpandAvx2(const Byte* bitmap, const Byte* values, std::size_t n_values,
                std::size_t n, std::uint32_t width, Byte* raw) {
  if (width == 8) return ExpandAll<8>(bitmap, values, n_values, n, raw);
  if (width == 4) return ExpandAll<4>(bitmap, values, n_values, n, raw);
  if (width == 2) return ExpandAll<2>(bitmap, values, n_values, n, raw);
  ExpandAll<1>(bitmap, values, n_values, n, raw);
}

}  // namespace tdbg
