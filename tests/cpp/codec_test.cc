// Codecs: what comes back is what went in, and nothing else ever does.
//
// Seen to fail when: the exact size is not compared; bytes after the frame are
// accepted; the window is not limited; the last bytes of a chunk that is no
// whole number of elements are lost.

#include "format/codec.h"

#include <cstdint>
#include <vector>

#include "complete_shard.h"
#include "format/zstd_api.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

Bytes Zstd(const Bytes& raw, int window_log = 0) {
  Bytes frame(ZSTD_compressBound(raw.size()));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  if (window_log > 0) {
    // Without its size in the frame, the window is what the frame says.
    ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
  }
  const std::size_t n = ZSTD_compress2(context, frame.data(), frame.size(),
                                       raw.data(), raw.size());
  ZSTD_freeCCtx(context);
  EXPECT_FALSE(ZSTD_isError(n));
  frame.resize(n);
  return frame;
}

Status Decode(const Bytes& stored, Codec codec, std::size_t n) {
  Bytes out(n);
  return DecodeChunk(stored, 4, codec, out);
}

struct Encoded {
  Bytes stored;
  Codec codec;
};

Encoded Encode(const Bytes& raw, const Encoding& encoding) {
  // What is behind the raw length must stay as it is.
  Bytes out(raw.size() + 8, std::byte{0xaa});
  const StoredChunk stored = EncodeChunk(raw, encoding, out);
  EXPECT_LE(stored.length, raw.size());
  for (std::size_t i = raw.size(); i < out.size(); ++i) {
    EXPECT_TRUE(out[i] == std::byte{0xaa});
  }
  out.resize(stored.length);
  return {out, stored.codec};
}

TDBG_TEST(EveryCodecGivesBackWhatItTook) {
  for (const std::size_t n : {0U, 1U, 3U, 4U, 5U, 100U, 4096U, 300'001U}) {
    for (const std::uint32_t item : {1U, 2U, 3U, 4U, 8U, 16U, 5000U}) {
      for (const Codec codec :
           {Codec::kRaw, Codec::kZstd, Codec::kZstdPlanes}) {
        for (const bool compressible : {false, true}) {
          Bytes raw = Noise(n);
          for (std::size_t i = 0; compressible && i < n; ++i) {
            raw[i] = static_cast<std::byte>(i / 64);
          }
          const Encoded encoded = Encode(raw, EncodingOf(codec, item));
          Bytes back(n);
          EXPECT_OK(DecodeChunk(encoded.stored, item, encoded.codec, back));
          EXPECT_TRUE(back == raw);
        }
      }
    }
  }
}

TDBG_TEST(PlanesCompressFloatsBetter) {
  const Bytes raw = BytesOf(SomeFloats(10'000));
  const Encoded plain = Encode(raw, EncodingOf(Codec::kZstd, 4));
  const Encoded planes = Encode(raw, EncodingOf(Codec::kZstdPlanes, 4));
  EXPECT_TRUE(plain.codec == Codec::kZstd);
  EXPECT_TRUE(planes.codec == Codec::kZstdPlanes);
  EXPECT_LT(planes.stored.size(), raw.size() / 4);
  // The first plane is the first byte of each element.
  Bytes sorted(raw.size());
  EXPECT_OK(DecodeChunk(planes.stored, 1, Codec::kZstd, sorted));
  EXPECT_TRUE(sorted[0] == raw[0]);
  EXPECT_TRUE(sorted[1] == raw[4]);
  EXPECT_TRUE(sorted[10'000] == raw[1]);
}

TDBG_TEST(WhatDoesNotCompressIsStoredAsItIs) {
  const Bytes raw = Noise(5000);
  for (const Codec codec :
       {Codec::kZstd, Codec::kZstdPlanes, Codec::kPlanes, Codec::kSparse}) {
    const Encoded encoded = Encode(raw, EncodingOf(codec, 4));
    EXPECT_TRUE(encoded.codec == Codec::kRaw);
    EXPECT_TRUE(encoded.stored == raw);
  }
}

TDBG_TEST(ChunksOfAnotherSizeAreCorrupt) {
  const Bytes raw(1000, std::byte{5});
  const Bytes frame = Zstd(raw);
  EXPECT_OK(Decode(frame, Codec::kZstd, 1000));
  for (const std::size_t n : {0U, 999U, 1001U, 100'000U}) {
    EXPECT_TRUE(Decode(frame, Codec::kZstd, n).code() ==
                StatusCode::kCorruption);
    EXPECT_TRUE(Decode(raw, Codec::kRaw, n).code() == StatusCode::kCorruption);
  }
  // Nor when the frame does not say its size.
  const Bytes silent = Zstd(raw, 20);
  EXPECT_OK(Decode(silent, Codec::kZstd, 1000));
  for (const std::size_t n : {999U, 1001U}) {
    EXPECT_TRUE(Decode(silent, Codec::kZstd, n).code() ==
                StatusCode::kCorruption);
  }
}

TDBG_TEST(OnlyOneWholeFrameIsAChunk) {
  const Bytes raw(1000, std::byte{5});
  Bytes twice = Zstd(Bytes(500, std::byte{5}));
  const Bytes half = twice;
  twice.insert(twice.end(), half.begin(), half.end());
  EXPECT_TRUE(Decode(twice, Codec::kZstd, 1000).code() ==
              StatusCode::kCorruption);
  // Two that do not say their size, and together have the right one.
  Bytes silent = Zstd(Bytes(500, std::byte{5}), 20);
  const Bytes silent_half = silent;
  silent.insert(silent.end(), silent_half.begin(), silent_half.end());
  EXPECT_TRUE(Decode(silent, Codec::kZstd, 1000).code() ==
              StatusCode::kCorruption);
  Bytes longer = Zstd(raw);
  longer.push_back(std::byte{0});
  EXPECT_TRUE(Decode(longer, Codec::kZstd, 1000).code() ==
              StatusCode::kCorruption);
  // A skippable frame in front.
  Bytes skipped = {std::byte{0x50}, std::byte{0x2a}, std::byte{0x4d},
                   std::byte{0x18}, std::byte{0},    std::byte{0},
                   std::byte{0},    std::byte{0}};
  const Bytes frame = Zstd(raw);
  skipped.insert(skipped.end(), frame.begin(), frame.end());
  EXPECT_TRUE(Decode(skipped, Codec::kZstd, 1000).code() ==
              StatusCode::kCorruption);
}

TDBG_TEST(EveryPrefixAndFlipOfAFrameIsSafe) {
  const Bytes raw = BytesOf(SomeFloats(300));
  const Bytes frame = Zstd(raw);
  for (std::size_t n = 0; n < frame.size(); ++n) {
    const Bytes cut(frame.begin(),
                    frame.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_FALSE(Decode(cut, Codec::kZstd, raw.size()).ok());
  }
  for (std::size_t at = 0; at < frame.size(); ++at) {
    for (unsigned flip = 1; flip < 256; ++flip) {
      Bytes damaged = frame;
      damaged[at] ^= static_cast<std::byte>(flip);
      // The chunk's checksum is what notices; this must only be safe.
      (void)Decode(damaged, Codec::kZstd, raw.size());
    }
  }
}

TDBG_TEST(AWindowAboveTheLimitIsRefused) {
  // The byte after the frame header descriptor: an exponent above 10, and
  // eighths.
  Bytes frame = Zstd(Bytes(1000, std::byte{5}), 20);
  EXPECT_TRUE((frame[4] & std::byte{32}) == std::byte{0});
  frame[5] = static_cast<std::byte>((23 - 10) << 3);
  EXPECT_OK(Decode(frame, Codec::kZstd, 1000));
  for (const int window : {(23 - 10) << 3 | 1, (24 - 10) << 3, 31 << 3 | 7}) {
    frame[5] = static_cast<std::byte>(window);
    EXPECT_TRUE(Decode(frame, Codec::kZstd, 1000).code() ==
                StatusCode::kLimitExceeded);
  }
}

TDBG_TEST(AnUnknownCodecIsUnsupported) {
  EXPECT_TRUE(Decode(Bytes(10), static_cast<Codec>(5), 10).code() ==
              StatusCode::kUnsupported);
  EXPECT_TRUE(Decode(Bytes(10), static_cast<Codec>(255), 10).code() ==
              StatusCode::kUnsupported);
}

TDBG_TEST(AByteThatRepeatsIsAFewBytes) {
  for (const std::size_t n :
       {64U, 255U, 65'536U, 131'072U, 131'073U, 600'000U}) {
    std::vector<std::byte> raw(n, std::byte{0xa5});
    std::vector<std::byte> frame(n);
    const std::size_t length = CompressFrame(raw, FrameEffort::kHuffman, frame);
    EXPECT_GT(length, 0U);
    EXPECT_LE(length, 40U);
    std::vector<std::byte> back(n);
    EXPECT_OK(DecompressFrame({frame.data(), length}, back));
    EXPECT_TRUE(back == raw);
    // All but one byte.
    raw[n - 1] = std::byte{0};
    const std::size_t other = CompressFrame(raw, FrameEffort::kHuffman, frame);
    if (other == 0) continue;
    EXPECT_OK(DecompressFrame({frame.data(), other}, back));
    EXPECT_TRUE(back == raw);
  }
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
