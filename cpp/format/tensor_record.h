// The payload of a `tensor` record: head, chunk table, chunks.
//
// Implements docs/format.md, "tensor".  Pure functions over bytes.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "format/codec.h"

namespace tdbg {

struct Chunk {
  std::uint32_t stored_length = 0;
  std::uint32_t crc = 0;      // Masked, of the stored bytes.
  Codec codec = Codec::kRaw;  // May hold a value unknown to us.
  std::uint8_t flags = 0;
};
inline constexpr std::uint8_t kChunkXorBase = 1;  // Chunk::flags

struct TensorHead {
  std::uint32_t definition = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint32_t flags = 0;
  std::uint32_t chunk_size = 0;
  std::uint64_t raw_length = 0;
  std::uint64_t base_sequence = 0;  // 0: a key frame.
  std::uint32_t data_offset = 0;
  std::vector<Chunk> chunks;
};

// How many bytes stand before the data of a tensor of `n_chunks` chunks.
[[nodiscard]] std::uint64_t TensorDataOffset(std::uint64_t n_chunks);

// Encodes the bytes from head.definition to head.chunks; for a writer that does
// not hold the whole payload at once. REQUIRES: head.data_offset ==
// TensorDataOffset(head.chunks.size()).
std::vector<std::byte> EncodeTensorHead(const TensorHead& head);
// Encodes them into `out`, of head.data_offset bytes.
void EncodeTensorHead(const TensorHead& head, std::span<std::byte> out);

// Decodes and checks head and table; `payload` holds at least the checked
// bytes; `payload_length` is that of the whole payload.
Result<TensorHead> DecodeTensorHead(std::span<const std::byte> payload,
                                    std::uint64_t payload_length);

// Decodes the chunks that lie in `data` (from the data offset on) into `out`.
// `base` holds the raw bytes of the base, when head.base_sequence != 0.
// A failed Status carries as offset the position in `data` of the bad chunk.
// REQUIRES: out.size() == head.raw_length.
Status DecodeTensor(const TensorHead& head, std::span<const std::byte> data,
                    std::uint32_t item_size, std::span<const std::byte> base,
                    std::span<std::byte> out);

}  // namespace tdbg
