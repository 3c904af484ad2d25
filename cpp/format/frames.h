// zstd frames: the one place that calls zstd.
//
// Implements docs/format.md, "tensor", codecs: what a frame must be.
//
// Thread safety: pure functions; zstd's contexts are kept per thread and freed
// when it ends.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace tdbg {

// How much time a frame may take.
enum class FrameEffort : std::uint8_t {
  kHuffman,  // Entropy coding only: no matches are looked for.
  kFast,     // zstd at its level 1.
  kBest,     // The smaller of entropy coding only and level 3.
};

// Writes `raw` to `out` as one frame and returns its length; 0 when it would
// not be shorter than `raw`, or not fit, or zstd cannot be used.
std::size_t CompressFrame(std::span<const std::byte> raw, FrameEffort effort,
                          std::span<std::byte> out);

// Decodes `frame` into `out`, whose size must be that of its content.  Nothing
// is written beyond it, and nothing is allocated by what the frame says.
// Errors: kCorruption for all but one whole frame of exactly out.size() bytes;
// kLimitExceeded for a window above the limit; kUnsupported for a zstd that is
// too old; kResourceExhausted.
Status DecompressFrame(std::span<const std::byte> frame,
                       std::span<std::byte> out);

}  // namespace tdbg
