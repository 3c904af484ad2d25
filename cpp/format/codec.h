// Codecs turn the raw bytes of a chunk into stored ones and back.
//
// Implements docs/format.md, "tensor", codecs.
//
// Thread safety: pure functions (zstd contexts are per thread).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace tdbg {

// On disk: never renumber.
enum class Codec : std::uint8_t {
  kRaw = 0,
  kZstd = 1,
  kZstdPlanes = 2,  // zstd of the bytes sorted into planes.
};

// The codec that suits elements of `item_size` bytes when ratio matters.
[[nodiscard]] inline Codec CompressingCodec(std::uint32_t item_size) {
  return item_size > 1 ? Codec::kZstdPlanes : Codec::kZstd;
}

// Appends the encoding of `raw` to `out`.  Returns the codec really used: kRaw
// when the asked one does not make it smaller.
Codec EncodeChunk(std::span<const std::byte> raw, std::uint32_t item_size,
                  Codec codec, std::vector<std::byte>* out);

// Decodes `stored` into `out`, whose size must be the raw length exactly.
// Errors: kUnsupported for an unknown codec, kCorruption for anything that
// does not decode to exactly out.size() bytes, kLimitExceeded for a zstd
// window above the limit.
Status DecodeChunk(std::span<const std::byte> stored, std::uint32_t item_size,
                   Codec codec, std::span<std::byte> out);

}  // namespace tdbg
