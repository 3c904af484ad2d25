// The inner loops of the plane and sparse codecs, and the choice among their
// implementations.
//
// Implements docs/format.md, "tensor", codecs 3 and 4.  The best that the
// processor supports is chosen at the first use; TDBG_FORCE_IMPLEMENTATION=
// portable (reducers/implementation.h) forces the portable one.  All give the
// same bytes.
//
// Thread safety: pure functions; the choice is made once.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tdbg {

struct PlaneKernels {
  const char* name;

  // Writes byte p of every element to planes[p].  With `rotate` each element,
  // a little-endian integer, is first rotated left by one bit.
  // REQUIRES: width is 1, 2, 4 or 8; raw has n * width bytes, a plane n.
  void (*split)(const std::byte* raw, std::size_t n, std::uint32_t width,
                bool rotate, std::byte* const* planes);
  // Reverses `split`.
  void (*join)(const std::byte* const* planes, std::size_t n,
               std::uint32_t width, bool rotate, std::byte* raw);

  // Sets bit i % 8 of bitmap[i / 8] for every element that has a bit set, and
  // copies those elements to `values`, one behind the other.  Returns how many.
  // REQUIRES: bitmap has (n + 7) / 8 bytes; values n * width + kSlack.
  std::size_t (*compact)(const std::byte* raw, std::size_t n,
                         std::uint32_t width, std::byte* bitmap,
                         std::byte* values);
  // How many bits of a bitmap of n bytes are set.
  std::size_t (*count)(const std::byte* bitmap, std::size_t n);
  // Reverses `compact`.
  // REQUIRES: of the first n bits of `bitmap` exactly n_values are set, and
  // those behind are not; values has n_values elements.
  void (*expand)(const std::byte* bitmap, const std::byte* values,
                 std::size_t n_values, std::size_t n, std::uint32_t width,
                 std::byte* raw);

  // Bytes that `compact` may write behind the last value.
  static constexpr std::size_t kSlack = 32;
};

const PlaneKernels& PortablePlaneKernels();
// Null where this build or this processor does not have it.
const PlaneKernels* Avx2PlaneKernels();

const PlaneKernels& PlaneKernelsInUse();

// Defined in avx2_*.cc, compiled for AVX2: nothing else there has external
// linkage.
void SplitPlanesAvx2(const std::byte* raw, std::size_t n, std::uint32_t width,
                     bool rotate, std::byte* const* planes);
void JoinPlanesAvx2(const std::byte* const* planes, std::size_t n,
                    std::uint32_t width, bool rotate, std::byte* raw);
std::size_t CompactAvx2(const std::byte* raw, std::size_t n,
                        std::uint32_t width, std::byte* bitmap,
                        std::byte* values);
std::size_t CountBitsAvx2(const std::byte* bitmap, std::size_t n);
void ExpandAvx2(const std::byte* bitmap, const std::byte* values,
                std::size_t n_values, std::size_t n, std::uint32_t width,
                std::byte* raw);

}  // namespace tdbg
