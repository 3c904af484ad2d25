// Codecs turn the raw bytes of a chunk into stored ones and back.
//
// Implements docs/format.md, "tensor", codecs.
//
// Thread safety: pure functions (zstd contexts and scratch memory are per
// thread).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "format/frames.h"

namespace tdbg {

// On disk: never renumber.
enum class Codec : std::uint8_t {
  kRaw = 0,
  kZstd = 1,
  kZstdPlanes = 2,  // zstd of the bytes sorted into planes.
  kPlanes = 3,      // Planes, each raw or a zstd frame of its own.
  kSparse = 4,      // A bitmap of what is not zero, and that.
};

// How a chunk is to be encoded.
struct Encoding {
  Codec codec = Codec::kRaw;
  // Bytes of an element, which is what planes are made of: for kPlanes and
  // kSparse 1, 2, 4 or 8; for kZstdPlanes any.
  std::uint32_t width = 1;
  // kPlanes, kSparse: each element is rotated left by one bit first, so that
  // the exponent of a float32 or bfloat16 fills its last byte.
  bool rotate = false;
  FrameEffort effort = FrameEffort::kFast;
  // kPlanes, kSparse: bit p says that plane p is not worth a frame.
  std::uint32_t raw_planes = 0;
};

struct StoredChunk {
  Codec codec = Codec::kRaw;
  std::size_t length = 0;
};

// Writes the encoding of `raw` to `out`.  Returns the codec really used: kRaw
// when the asked one does not make it smaller.
// REQUIRES: out.size() >= raw.size(); they do not overlap.
StoredChunk EncodeChunk(std::span<const std::byte> raw,
                        const Encoding& encoding, std::span<std::byte> out);

// Decodes `stored` into `out`, whose size must be the raw length exactly.
// `item_size` is that of the definition; codecs 3 and 4 say their own.
// Errors: kUnsupported for an unknown codec, kCorruption for anything that
// does not decode to exactly out.size() bytes, kLimitExceeded for a zstd
// window above the limit.
Status DecodeChunk(std::span<const std::byte> stored, std::uint32_t item_size,
                   Codec codec, std::span<std::byte> out);

}  // namespace tdbg
