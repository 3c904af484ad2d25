// Codecs 3 and 4: every implementation gives the same bytes, everything comes
// back, and every lie about a length, a bit or a number is refused.
//
// Seen to fail when: the portable and the AVX2 kernels disagree by a bit; bytes
// behind the last element are lost; the bits of a bitmap are not counted; bytes
// may follow the planes.

#include "format/plane_codec.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/coding.h"
#include "complete_shard.h"
#include "format/plane_kernels.h"
#include "format/sample.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr std::uint32_t kWidths[] = {1, 2, 4, 8};

// Contents that the choices depend on.
enum class Content { kNoise, kFloats, kSparse, kZeros, kConstant, kLowZeros };
constexpr Content kContents[] = {Content::kNoise,    Content::kFloats,
                                 Content::kSparse,   Content::kZeros,
                                 Content::kConstant, Content::kLowZeros};

Bytes Make(Content content, std::size_t n) {
  std::mt19937_64 random(n * 7 + static_cast<unsigned>(content));
  Bytes bytes = Noise(n);
  std::normal_distribution<float> normal(0, 0.02F);
  for (std::size_t i = 0; i + 4 <= n; i += 4) {
    float value = normal(random);
    auto bits = std::bit_cast<std::uint32_t>(value);
    if (content == Content::kLowZeros) bits &= 0xffff0000;
    if (content == Content::kSparse && random() % 4 != 0) bits = 0;
    if (content != Content::kNoise) Store(bytes.data() + i, bits);
  }
  if (content == Content::kZeros || content == Content::kConstant) {
    const bool is_zero = content == Content::kZeros;
    std::fill(bytes.begin(), bytes.end(),
              is_zero ? std::byte{0} : std::byte{0x3f});
  }
  return bytes;
}

Encoding Of(Codec codec, std::uint32_t width, bool rotate,
            FrameEffort effort = FrameEffort::kHuffman) {
  return {.codec = codec, .width = width, .rotate = rotate, .effort = effort};
}

TDBG_TEST(EveryContentComesBackFromEveryForm) {
  int n_small = 0;
  for (const Content content : kContents) {
    for (const std::size_t n : {0U, 1U, 7U, 8U, 31U, 63U, 64U, 100U, 1023U,
                                4096U, 20'003U, 262'144U, 262'149U}) {
      const Bytes raw = Make(content, n);
      for (const Codec codec : {Codec::kPlanes, Codec::kSparse}) {
        for (const std::uint32_t width : kWidths) {
          for (const bool rotate : {false, true}) {
            for (const std::uint32_t raw_planes : {0U, 1U, 6U, 0xfeU}) {
              Encoding encoding = Of(codec, width, rotate);
              encoding.raw_planes = raw_planes;
              Bytes out(n);
              const StoredChunk stored = EncodeChunk(raw, encoding, out);
              n_small += stored.codec == codec ? 1 : 0;
              Bytes back(n, std::byte{0x77});
              EXPECT_OK(DecodeChunk(std::span(out).first(stored.length), 1,
                                    stored.codec, back));
              EXPECT_TRUE(back == raw);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(n_small, 500);  // It is not all stored raw.
}

TDBG_TEST(EveryEffortComesBackAndMoreIsNotLarger) {
  for (const Content content : {Content::kFloats, Content::kSparse}) {
    const Bytes raw = Make(content, 100'000);
    std::size_t huffman = 0;
    for (const FrameEffort effort :
         {FrameEffort::kHuffman, FrameEffort::kFast, FrameEffort::kBest}) {
      Bytes out(raw.size());
      const StoredChunk stored =
          EncodeChunk(raw, Of(Codec::kPlanes, 4, true, effort), out);
      if (effort == FrameEffort::kHuffman) huffman = stored.length;
      if (effort == FrameEffort::kBest) EXPECT_LE(stored.length, huffman);
      Bytes back(raw.size());
      EXPECT_OK(DecodeChunk(std::span(out).first(stored.length), 4,
                            stored.codec, back));
      EXPECT_TRUE(back == raw);
    }
  }
}

TDBG_TEST(RotationBringsTheExponentTogether) {
  const Bytes raw = Make(Content::kFloats, 262'144);
  Bytes out(raw.size());
  const auto length = [&](bool rotate) {
    return EncodeChunk(raw, Of(Codec::kPlanes, 4, rotate), out).length;
  };
  EXPECT_LT(length(true), length(false));
  EXPECT_LT(length(true), raw.size() * 85 / 100);
}

TDBG_TEST(ImplementationsGiveTheSameBytes) {
  const PlaneKernels& portable = PortablePlaneKernels();
  const PlaneKernels* avx2 = Avx2PlaneKernels();
  if (avx2 == nullptr) {
    std::printf("       this processor has no AVX2\n");
    return;
  }
  for (const Content content : kContents) {
    for (std::size_t n = 0; n < 200; ++n) {
      for (const std::uint32_t width : kWidths) {
        const Bytes raw = Make(content, n * width);
        for (const bool rotate : {false, true}) {
          Bytes both[2] = {Bytes(n * width + 1), Bytes(n * width + 1)};
          Bytes joined[2] = {Bytes(n * width), Bytes(n * width)};
          for (const int k : {0, 1}) {
            const PlaneKernels& kernels = k == 0 ? portable : *avx2;
            std::byte* planes[kMaxPlanes];
            for (std::uint32_t p = 0; p < width; ++p) {
              planes[p] = both[k].data() + p * n;
            }
            kernels.split(raw.data(), n, width, rotate, planes);
            kernels.join(planes, n, width, rotate, joined[k].data());
          }
          EXPECT_TRUE(both[0] == both[1]);
          EXPECT_TRUE(joined[0] == raw && joined[1] == raw);
        }
        Bytes bitmaps[2];
        Bytes values[2];
        Bytes spread[2];
        for (const int k : {0, 1}) {
          const PlaneKernels& kernels = k == 0 ? portable : *avx2;
          bitmaps[k].resize((n + 7) / 8);
          values[k].resize(n * width + PlaneKernels::kSlack);
          const std::size_t m = kernels.compact(
              raw.data(), n, width, bitmaps[k].data(), values[k].data());
          EXPECT_EQ(m, kernels.count(bitmaps[k].data(), bitmaps[k].size()));
          // Exactly what there is, so that reading further is noticed.
          values[k].resize(m * width);
          values[k].shrink_to_fit();
          spread[k].resize(n * width, std::byte{0x55});
          kernels.expand(bitmaps[k].data(), values[k].data(), m, n, width,
                         spread[k].data());
        }
        EXPECT_TRUE(bitmaps[0] == bitmaps[1]);
        EXPECT_TRUE(values[0] == values[1]);
        EXPECT_TRUE(spread[0] == raw && spread[1] == raw);
      }
    }
  }
}

// --- What is not as it should be ---------------------------------------------

Status Decode(const Bytes& stored, Codec codec, std::size_t n) {
  Bytes out(n);
  return DecodeChunk(stored, 4, codec, out);
}

bool IsRefused(const Bytes& stored, Codec codec, std::size_t n) {
  return Decode(stored, codec, n).code() == StatusCode::kCorruption;
}

Bytes Encoded(const Bytes& raw, const Encoding& encoding) {
  Bytes out(raw.size());
  const StoredChunk stored = EncodeChunk(raw, encoding, out);
  EXPECT_TRUE(stored.codec == encoding.codec);
  out.resize(stored.length);
  return out;
}

template <typename T>
Bytes With(Bytes bytes, std::size_t at, T value) {
  Store(bytes.data() + at, value);
  return bytes;
}

TDBG_TEST(PlanesThatLieAreRefused) {
  const std::size_t n = 4003;  // 1000 elements and 3 bytes.
  const Bytes stored =
      Encoded(Make(Content::kFloats, n), Of(Codec::kPlanes, 4, true));
  EXPECT_OK(Decode(stored, Codec::kPlanes, n));
  for (const std::size_t wrong :
       {0U, 1U, 3999U, 4002U, 4004U, 4007U, 100'000U}) {
    EXPECT_TRUE(IsRefused(stored, Codec::kPlanes, wrong));
  }
  for (std::size_t cut = 0; cut < stored.size(); ++cut) {
    const Bytes part(stored.begin(),
                     stored.begin() + static_cast<std::ptrdiff_t>(cut));
    EXPECT_TRUE(IsRefused(part, Codec::kPlanes, n));
  }
  Bytes longer = stored;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(IsRefused(longer, Codec::kPlanes, n));
  for (const unsigned form : {2U, 3U, 255U}) {
    EXPECT_TRUE(IsRefused(With(stored, 0, static_cast<std::uint8_t>(form)),
                          Codec::kPlanes, n));
  }
  for (const unsigned width : {0U, 1U, 2U, 3U, 5U, 8U, 16U, 255U}) {
    EXPECT_TRUE(IsRefused(With(stored, 1, static_cast<std::uint8_t>(width)),
                          Codec::kPlanes, n));
  }
  EXPECT_TRUE(IsRefused(With(stored, 2, std::uint16_t{1}), Codec::kPlanes, n));
  for (std::size_t p = 0; p < 4; ++p) {
    for (const std::uint32_t length :
         {0U, 1U, 999U, 1001U, 4003U, 0x7fffffffU, 0xffffffffU}) {
      EXPECT_TRUE(
          IsRefused(With(stored, 4 + 4 * p, length), Codec::kPlanes, n));
    }
  }
}

TDBG_TEST(BitmapsThatLieAreRefused) {
  const std::size_t n = 4003;
  for (const bool raw_values : {false, true}) {
    Encoding encoding = Of(Codec::kSparse, 4, false);
    if (raw_values) encoding.raw_planes = 15;
    Bytes raw = Make(Content::kSparse, n);
    raw[3999] = std::byte{1};  // A last zero might as well not be there.
    const Bytes stored = Encoded(raw, encoding);
    EXPECT_TRUE(stored[0] == (raw_values ? std::byte{0} : std::byte{3}));
    EXPECT_OK(Decode(stored, Codec::kSparse, n));
    for (const std::size_t wrong : {0U, 1U, 3999U, 4002U, 4004U, 100'000U}) {
      EXPECT_TRUE(IsRefused(stored, Codec::kSparse, wrong));
    }
    for (std::size_t cut = 0; cut < stored.size(); ++cut) {
      const Bytes part(stored.begin(),
                       stored.begin() + static_cast<std::ptrdiff_t>(cut));
      EXPECT_TRUE(IsRefused(part, Codec::kSparse, n));
    }
    for (const unsigned codec : {1U, 2U, 4U, 5U, 255U}) {
      EXPECT_TRUE(IsRefused(With(stored, 0, static_cast<std::uint8_t>(codec)),
                            Codec::kSparse, n));
    }
    for (const unsigned width : {0U, 1U, 2U, 3U, 8U, 255U}) {
      EXPECT_TRUE(IsRefused(With(stored, 1, static_cast<std::uint8_t>(width)),
                            Codec::kSparse, n));
    }
    EXPECT_TRUE(
        IsRefused(With(stored, 2, std::uint16_t{256}), Codec::kSparse, n));
    const auto n_values = Load<std::uint32_t>(stored.data() + 4);
    for (const std::uint32_t wrong :
         {0U, n_values - 1, n_values + 1, 1001U, 0x40000000U, 0xffffffffU}) {
      EXPECT_TRUE(IsRefused(With(stored, 4, wrong), Codec::kSparse, n));
    }
    const auto n_bitmap = Load<std::uint32_t>(stored.data() + 8);
    for (const std::uint32_t wrong :
         {0U, n_bitmap - 1, n_bitmap + 1, 126U, 0x7fffffffU, 0xffffffffU}) {
      EXPECT_TRUE(IsRefused(With(stored, 8, wrong), Codec::kSparse, n));
    }
  }
}

TDBG_TEST(BitsBehindTheLastElementAreRefused) {
  // 1001 elements: 126 bytes, of the last only one bit is used.
  std::mt19937 random(2);
  Bytes raw(4004);
  for (std::size_t i = 0; i < 1001; ++i) {
    if (random() % 2 == 0)
      Store(raw.data() + 4 * i, static_cast<std::uint32_t>(random()));
  }
  Encoding encoding = Of(Codec::kSparse, 4, false);
  encoding.raw_planes = 15;
  const Bytes stored = Encoded(raw, encoding);
  EXPECT_EQ(Load<std::uint32_t>(stored.data() + 8), 126U);  // It is raw.
  EXPECT_OK(Decode(stored, Codec::kSparse, raw.size()));
  // One bit fewer where elements are, one more where there are none: the
  // number is right.
  Bytes moved = stored;
  std::size_t at = 12;
  while (moved[at] == std::byte{0}) ++at;
  moved[at] &= static_cast<std::byte>(static_cast<unsigned>(moved[at]) - 1);
  moved[12 + 125] |= std::byte{2};
  EXPECT_TRUE(IsRefused(moved, Codec::kSparse, raw.size()));
  moved[12 + 125] &= ~std::byte{2};
  EXPECT_TRUE(IsRefused(moved, Codec::kSparse, raw.size()));
}

TDBG_TEST(EveryDamageIsSafe) {
  // Checksums notice damage before this does: here it must only be safe, and
  // write nothing beyond what was asked for.
  std::mt19937_64 random(1);
  int n_decoded = 0;
  for (const Content content : kContents) {
    for (const Codec codec : {Codec::kPlanes, Codec::kSparse}) {
      for (const std::uint32_t width : kWidths) {
        const Bytes raw = Make(content, 2000 + width / 2);
        Bytes out(raw.size());
        const StoredChunk chunk = EncodeChunk(raw, Of(codec, width, true), out);
        if (chunk.codec != codec) continue;
        for (int round = 0; round < 400; ++round) {
          Bytes damaged(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(
                                                       chunk.length));
          for (std::uint64_t i = 0; i < 1 + random() % 4; ++i) {
            // The head more often than its share.
            const std::size_t range =
                random() % 2 == 0 ? damaged.size()
                                  : std::min<std::size_t>(40, damaged.size());
            damaged[random() % range] = static_cast<std::byte>(random());
          }
          if (random() % 4 == 0) damaged.resize(random() % damaged.size());
          damaged.shrink_to_fit();
          Bytes back(raw.size() + 16, std::byte{0x5a});
          const Status status = DecodeChunk(damaged, width, codec,
                                            std::span(back).first(raw.size()));
          n_decoded += status.ok() ? 1 : 0;
          for (std::size_t i = raw.size(); i < back.size(); ++i) {
            EXPECT_TRUE(back[i] == std::byte{0x5a});
          }
        }
      }
    }
  }
  EXPECT_GT(n_decoded, 0);  // Some reach the end of the decoder.
}

// --- The sample --------------------------------------------------------------

TDBG_TEST(TheSampleTellsNoiseFromStructure) {
  const PlaneSample noise =
      SamplePlanes(Make(Content::kNoise, 262'144), {}, 4, false);
  EXPECT_EQ(noise.RawPlanes(), 15U);
  EXPECT_EQ(noise.DenseBits(), 32.0F);
  const PlaneSample floats =
      SamplePlanes(Make(Content::kFloats, 262'144), {}, 4, true);
  EXPECT_EQ(floats.RawPlanes(), 7U);
  EXPECT_LT(floats.bits[3], 3.5F);
  const PlaneSample low =
      SamplePlanes(Make(Content::kLowZeros, 262'144), {}, 4, false);
  EXPECT_LT(low.bits[0] + low.bits[1], 0.01F);
  const PlaneSample sparse =
      SamplePlanes(Make(Content::kSparse, 262'144), {}, 4, true);
  EXPECT_GT(sparse.zero_share, 0.65F);
  EXPECT_LT(sparse.zero_share, 0.85F);
  EXPECT_LT(sparse.SparseBits(), sparse.DenseBits());
}

TDBG_TEST(TheSampleOfADifferenceIsThatOfTheDifference) {
  const Bytes base = Make(Content::kNoise, 262'144);
  Bytes raw = base;
  for (std::size_t i = 0; i < raw.size(); i += 4) raw[i] ^= std::byte{7};
  const PlaneSample sample = SamplePlanes(raw, base, 4, false);
  EXPECT_EQ(sample.RawPlanes(), 0U);
  EXPECT_LT(sample.DenseBits(), 0.1F);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
