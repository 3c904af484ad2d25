#include "format/tensor_record.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "format/record.h"

namespace tdbg {
namespace {

constexpr std::size_t kHeadBytes = 64;
constexpr std::size_t kChunkEntryBytes = 16;

Status BadTensor(const std::string& what) {
  return Status::Corruption("tensor: " + what, 0);
}

void XorInto(std::span<const std::byte> base, std::span<std::byte> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] ^= base[i];
}

}  // namespace

std::uint64_t TensorDataOffset(std::uint64_t n_chunks) {
  const std::uint64_t end = kHeadBytes + n_chunks * kChunkEntryBytes;
  return (end + limits::kAlignment - 1) & ~(limits::kAlignment - 1);
}

std::vector<std::byte> EncodeTensorHead(const TensorHead& head) {
  std::vector<std::byte> bytes(head.data_offset);
  EncodeTensorHead(head, bytes);
  return bytes;
}

void EncodeTensorHead(const TensorHead& head, std::span<std::byte> out) {
  TDBG_DCHECK(head.data_offset == TensorDataOffset(head.chunks.size()));
  TDBG_DCHECK(out.size() == head.data_offset);
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  Store(p, head.definition);
  Store(p + 4, head.call);
  Store(p + 6, head.micro_batch);
  Store(p + 8, head.flags);
  Store(p + 12, head.chunk_size);
  Store(p + 16, head.raw_length);
  Store(p + 24, head.base_sequence);
  Store(p + 32, static_cast<std::uint32_t>(head.chunks.size()));
  Store(p + 36, head.data_offset);
  for (std::size_t i = 0; i < head.chunks.size(); ++i) {
    std::byte* entry = p + kHeadBytes + i * kChunkEntryBytes;
    Store(entry, head.chunks[i].stored_length);
    Store(entry + 4, head.chunks[i].crc);
    Store(entry + 8, static_cast<std::uint8_t>(head.chunks[i].codec));
    Store(entry + 9, head.chunks[i].flags);
  }
}

Result<TensorHead> DecodeTensorHead(std::span<const std::byte> payload,
                                    std::uint64_t payload_length) {
  ByteReader in(payload);
  TensorHead head;
  head.definition = in.Get<std::uint32_t>();
  head.call = in.Get<std::uint16_t>();
  head.micro_batch = in.Get<std::uint16_t>();
  head.flags = in.Get<std::uint32_t>();
  head.chunk_size = in.Get<std::uint32_t>();
  head.raw_length = in.Get<std::uint64_t>();
  head.base_sequence = in.Get<std::uint64_t>();
  const auto n_chunks = in.Get<std::uint32_t>();
  head.data_offset = in.Get<std::uint32_t>();
  in.Skip(24);
  if (in.failed()) return BadTensor("too short");
  if (head.chunk_size == 0 || head.chunk_size > limits::kChunk) {
    return Status::LimitExceeded("tensor: chunks of " +
                                 std::to_string(head.chunk_size) + " bytes");
  }
  if (head.raw_length > limits::kRecord) {
    return Status::LimitExceeded("tensor: " + std::to_string(head.raw_length) +
                                 " bytes");
  }
  const std::uint64_t expected =
      (head.raw_length + head.chunk_size - 1) / head.chunk_size;
  if (n_chunks != expected) {
    return BadTensor(std::to_string(n_chunks) + " chunks, not " +
                     std::to_string(expected));
  }
  if (head.data_offset != TensorDataOffset(n_chunks) ||
      head.data_offset > payload.size() || head.data_offset > payload_length) {
    return BadTensor("the data cannot start at " +
                     std::to_string(head.data_offset));
  }
  head.chunks.resize(n_chunks);
  std::uint64_t stored = 0;
  std::uint64_t left = head.raw_length;
  for (Chunk& chunk : head.chunks) {
    const std::uint64_t raw = std::min<std::uint64_t>(head.chunk_size, left);
    left -= raw;
    chunk.stored_length = in.Get<std::uint32_t>();
    chunk.crc = in.Get<std::uint32_t>();
    chunk.codec = static_cast<Codec>(in.Get<std::uint8_t>());
    chunk.flags = in.Get<std::uint8_t>();
    in.Skip(6);
    stored += chunk.stored_length;
    if (chunk.stored_length > raw) {
      return BadTensor(std::to_string(raw) + " bytes stored as " +
                       std::to_string(chunk.stored_length));
    }
    if ((chunk.flags & kChunkXorBase) != 0 && head.base_sequence == 0) {
      return BadTensor("a difference without a base");
    }
  }
  if (stored != payload_length - head.data_offset) {
    return BadTensor("its chunks have " + std::to_string(stored) +
                     " bytes, not " +
                     std::to_string(payload_length - head.data_offset));
  }
  return head;
}

Status DecodeTensor(const TensorHead& head, std::span<const std::byte> data,
                    std::uint32_t item_size, std::span<const std::byte> base,
                    std::span<std::byte> out) {
  TDBG_DCHECK(out.size() == head.raw_length);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < head.chunks.size(); ++i) {
    const Chunk& chunk = head.chunks[i];
    const std::uint64_t from = std::uint64_t{head.chunk_size} * i;
    const std::uint64_t n =
        std::min<std::uint64_t>(head.chunk_size, head.raw_length - from);
    const std::string which = "chunk " + std::to_string(i) + ": ";
    if (chunk.stored_length > data.size() - at) {
      return Status::Corruption(which + "its bytes are not all there", at);
    }
    const auto stored = data.subspan(at, chunk.stored_length);
    if (MaskedCrc32c(stored.data(), stored.size()) != chunk.crc) {
      return Status::Corruption(which + "checksum", at);
    }
    if ((chunk.flags & ~kChunkXorBase) != 0) {
      return Status::Unsupported(which + "flags " +
                                 std::to_string(chunk.flags) +
                                 " are unknown to this build");
    }
    const auto raw = out.subspan(from, n);
    const Status status = DecodeChunk(stored, item_size, chunk.codec, raw);
    if (status.code() == StatusCode::kCorruption) {
      return Status::Corruption(which + status.message(), at);
    }
    if (!status.ok()) return Status(status.code(), which + status.message());
    if ((chunk.flags & kChunkXorBase) != 0) {
      if (base.size() != head.raw_length) {
        return Status::Corruption(which + "its base has another length", at);
      }
      XorInto(base.subspan(from, n), raw);
    }
    at += chunk.stored_length;
  }
  return Status::Ok();
}

}  // namespace tdbg
