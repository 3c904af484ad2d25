// The payload of a `tensor` record from raw bytes in one call, which no writer
// needs: it encodes chunk by chunk into its batch.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "format/record.h"
#include "format/tensor_record.h"

namespace tdbg::testing {

using Bytes = std::vector<std::byte>;

inline Bytes ToBytes(std::string_view text) {
  Bytes bytes(text.size());
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()),
              text.size(),  // NOLINT
              bytes.begin());
  return bytes;
}

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// `codec` for elements of this size.
inline Encoding EncodingOf(Codec codec, std::uint32_t item_size) {
  if (codec == Codec::kZstdPlanes && item_size <= 1) codec = Codec::kZstd;
  Encoding encoding{.codec = codec, .width = item_size};
  if (codec == Codec::kPlanes || codec == Codec::kSparse) {
    while (encoding.width != 1 && encoding.width != 2 && encoding.width != 4 &&
           encoding.width != 8) {
      encoding.width = encoding.width % 4 == 0 ? 4 : 1;
    }
    encoding.effort = FrameEffort::kHuffman;
  }
  return encoding;
}

struct EncodedTensor {
  Bytes payload;                     // Head, table, padding, data.
  std::uint64_t checked_length = 0;  // What the payload crc is to cover.
};

// Splits `raw` into chunks and encodes each.  With `base` (the raw bytes of an
// earlier tensor of the same length) chunks are stored as differences to it.
inline EncodedTensor EncodeTensor(const TensorHead& identity, const Bytes& raw,
                                  const Encoding& encoding,
                                  const Bytes& base = {}) {
  TensorHead head = identity;
  if (head.chunk_size == 0) head.chunk_size = kChunkBytes;
  const std::size_t chunk_size = head.chunk_size;
  const std::size_t n_chunks = (raw.size() + chunk_size - 1) / chunk_size;
  head.raw_length = raw.size();
  head.data_offset = static_cast<std::uint32_t>(TensorDataOffset(n_chunks));
  const bool has_base = head.base_sequence != 0 && base.size() == raw.size();
  if (!has_base) head.base_sequence = 0;
  Bytes data;
  for (std::size_t from = 0; from < raw.size(); from += chunk_size) {
    const std::size_t n = std::min(chunk_size, raw.size() - from);
    Bytes plain(raw.begin() + static_cast<std::ptrdiff_t>(from),
                raw.begin() + static_cast<std::ptrdiff_t>(from + n));
    Bytes out(n);
    Chunk& chunk = head.chunks.emplace_back();
    StoredChunk stored;
    if (has_base) {
      Bytes difference = plain;
      for (std::size_t i = 0; i < n; ++i) difference[i] ^= base[from + i];
      stored = EncodeChunk(difference, encoding, out);
    }
    if (stored.codec != Codec::kRaw) {
      chunk.flags = kChunkXorBase;
    } else {
      // A difference that does not compress serves nobody.
      stored = EncodeChunk(plain, encoding, out);
    }
    chunk.codec = stored.codec;
    chunk.stored_length = static_cast<std::uint32_t>(stored.length);
    chunk.crc = MaskedCrc32c(out.data(), stored.length);
    data.insert(data.end(), out.begin(),
                out.begin() + static_cast<std::ptrdiff_t>(stored.length));
  }
  EncodedTensor encoded{.payload = EncodeTensorHead(head),
                        .checked_length = head.data_offset};
  encoded.payload.insert(encoded.payload.end(), data.begin(), data.end());
  return encoded;
}

}  // namespace tdbg::testing
