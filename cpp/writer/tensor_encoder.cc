#include "writer/tensor_encoder.h"

#include <algorithm>

#include "base/crc32c.h"
#include "format/codec.h"

namespace tdbg {

bool TensorEncoder::Begin(const Definition& definition,
                          const TensorHead& /*head*/,
                          std::span<const std::byte> raw,
                          const TensorHint& /*hint*/) {
  if (policy_ == CodecPolicy::kNone || raw.empty()) return false;
  raw_ = raw;
  item_size_ = definition.item_size;
  return true;
}

Chunk TensorEncoder::Encode(std::size_t i, std::span<std::byte> out) {
  const std::size_t from = i * kChunkBytes;
  const auto chunk = raw_.subspan(
      from, std::min<std::size_t>(kChunkBytes, raw_.size() - from));
  std::vector<std::byte> stored;
  Chunk entry;
  entry.codec =
      EncodeChunk(chunk, item_size_, CompressingCodec(item_size_), &stored);
  entry.stored_length = static_cast<std::uint32_t>(stored.size());
  std::ranges::copy(stored, out.begin());
  entry.crc = MaskedCrc32c(out.data(), entry.stored_length);
  return entry;
}

}  // namespace tdbg
