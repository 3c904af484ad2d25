// PlaneSample estimates from a sample how small a chunk would get.
//
// Thread safety: pure functions.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tdbg {

inline constexpr std::size_t kMaxPlanes = 8;

// Estimates from about kSampleElements elements, spread over the chunk in runs.
struct PlaneSample {
  static constexpr std::size_t kSampleElements = 1024;
  // Enough to see that a chunk is of another kind than the one before.
  static constexpr std::size_t kGlanceElements = 256;
  // A plane whose bytes have more bits than this is not worth a frame.
  static constexpr float kWorthBits = 7.6F;

  std::uint32_t width = 1;
  float zero_share = 0;
  // Order-0 entropy of each plane in bits a byte: of all elements, and of those
  // that are not zero.
  std::array<float, kMaxPlanes> bits{};
  std::array<float, kMaxPlanes> value_bits{};

  // Bits that the planes of one element take; 8 for one not worth a frame.
  [[nodiscard]] float DenseBits() const;
  // Bits with the zeros in a bitmap, the bitmap included.
  [[nodiscard]] float SparseBits() const;
  // Bit p: plane p, of all elements or of those that are not zero, has more
  // bits a byte than `limit`.
  [[nodiscard]] std::uint32_t RawPlanes(float limit = kWorthBits) const;
  [[nodiscard]] std::uint32_t RawValuePlanes(float limit = kWorthBits) const;
  // Whether values so alike that what is chosen for the ones suits the others.
  // REQUIRES: both of as many elements, of one width and rotation.
  [[nodiscard]] bool IsLike(const PlaneSample& other) const;
};

// Samples `raw`, or, unless `base` is empty, its difference (exclusive or) to
// the bytes of `base`; `rotate`: each element rotated left by one bit.  About
// `n_elements` are looked at.
// REQUIRES: width is 1, 2, 4 or 8; base is empty or as long as raw; n_elements
// is kSampleElements or kGlanceElements.
PlaneSample SamplePlanes(std::span<const std::byte> raw,
                         std::span<const std::byte> base, std::uint32_t width,
                         bool rotate,
                         std::size_t n_elements = PlaneSample::kSampleElements);

}  // namespace tdbg
