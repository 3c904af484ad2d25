// Codecs 3 (planes) and 4 (sparse) of docs/format.md, "tensor".
//
// Thread safety: pure functions (scratch memory is kept per thread).

#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "format/codec.h"

namespace tdbg {

// Each writes the encoding of `raw` to `out` and returns its length; 0 when it
// does not fit.
// REQUIRES: encoding.width is 1, 2, 4 or 8.
std::size_t EncodePlanes(std::span<const std::byte> raw,
                         const Encoding& encoding, std::span<std::byte> out);
std::size_t EncodeSparse(std::span<const std::byte> raw,
                         const Encoding& encoding, std::span<std::byte> out);

// As DecodeChunk().
Status DecodePlanes(std::span<const std::byte> stored,
                    std::span<std::byte> out);
Status DecodeSparse(std::span<const std::byte> stored,
                    std::span<std::byte> out);

}  // namespace tdbg
