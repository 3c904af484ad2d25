// A chunk of a tensor: codec, bytes of an element, raw length, stored bytes.
//
// Promises: a chunk decodes to the length that was asked for or not at all, and
// to the same bytes by whatever instructions; what was decoded and is encoded
// again decodes to the same.

#include "complete_shard.h"
#include "format/codec.h"
#include "fuzz.h"
#include "repair.h"

namespace tdbg::fuzz {
namespace {

constexpr std::size_t kHead = 4;  // Codec, bytes of an element, raw length.

Bytes SeedOf(Codec codec, std::uint32_t width, const Bytes& raw) {
  Bytes stored(raw.size());
  const StoredChunk chunk = EncodeChunk(
      raw, {.codec = codec, .width = width, .rotate = width == 4}, stored);
  Bytes seed{static_cast<std::byte>(chunk.codec), static_cast<std::byte>(width),
             static_cast<std::byte>(raw.size()),
             static_cast<std::byte>(raw.size() >> 8)};
  seed.insert(seed.end(), stored.begin(),
              stored.begin() + static_cast<std::ptrdiff_t>(chunk.length));
  return seed;
}

void GoAround(Codec codec, std::uint32_t width, const Bytes& raw) {
  Bytes stored(raw.size());
  const StoredChunk chunk = EncodeChunk(
      raw, {.codec = codec, .width = width, .rotate = true}, stored);
  Bytes again(raw.size());
  const Status status = DecodeChunk(std::span(stored).first(chunk.length),
                                    width, chunk.codec, again);
  Expect(status.ok() && again == raw, "what was encoded can be decoded");
}

}  // namespace

std::vector<Bytes> Seeds() {
  Bytes sparse(2000);
  for (std::size_t i = 0; i < sparse.size(); i += 37) sparse[i] = std::byte{9};
  // Few elements, so that their bitmap is stored as it is.
  Bytes few(40);
  for (const std::size_t i : {3U, 8U, 9U, 31U}) few[i] = std::byte{5};
  const std::vector<Bytes> raws = {testing::BytesOf(testing::SomeFloats(500)),
                                   testing::Noise(999), sparse, few};
  std::vector<Bytes> seeds;
  for (const Bytes& raw : raws) {
    for (const auto codec : {Codec::kRaw, Codec::kZstd, Codec::kZstdPlanes,
                             Codec::kPlanes, Codec::kSparse}) {
      for (const std::uint32_t width : {1U, 2U, 4U, 8U}) {
        seeds.push_back(SeedOf(codec, width, raw));
      }
    }
  }
  return seeds;
}

}  // namespace tdbg::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace tdbg;  // NOLINT
  if (size < fuzz::kHead) return 0;
  const auto bytes = fuzz::AsBytes(data, size);
  const auto codec = static_cast<Codec>(data[0]);
  const std::uint32_t item_size = data[1] == 0 ? 1 : data[1];
  fuzz::Bytes raw(fuzz::Load<std::uint16_t>(bytes, 2));
  const Status status =
      DecodeChunk(bytes.subspan(fuzz::kHead), item_size, codec, raw);
  if (!status.ok()) return 0;
  const std::uint32_t width = 1U << (data[1] % 4);
  fuzz::GoAround(Codec::kPlanes, width, raw);
  fuzz::GoAround(Codec::kSparse, width, raw);
  return 0;
}
