#include "format/codec.h"

#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "format/plane_codec.h"

namespace tdbg {
namespace {

// The sorted bytes of codec 2, kept per thread.
std::vector<std::byte>& Sorted(std::size_t n) {
  thread_local std::vector<std::byte> bytes;
  bytes.resize(n);
  return bytes;
}

// Bytes after the last whole element stay where they are.
void Sort(std::span<const std::byte> raw, std::uint32_t item_size,
          std::byte* sorted) {
  const std::size_t n = raw.size() / item_size;
  for (std::uint32_t plane = 0; plane < item_size; ++plane) {
    const std::byte* from = raw.data() + plane;
    std::byte* to = sorted + plane * n;
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i * item_size];
  }
  const std::size_t done = n * item_size;
  if (done < raw.size()) {
    std::memcpy(sorted + done, raw.data() + done, raw.size() - done);
  }
}

void Unsort(std::span<const std::byte> sorted, std::uint32_t item_size,
            std::byte* raw) {
  const std::size_t n = sorted.size() / item_size;
  for (std::uint32_t plane = 0; plane < item_size; ++plane) {
    const std::byte* from = sorted.data() + plane * n;
    std::byte* to = raw + plane;
    for (std::size_t i = 0; i < n; ++i) to[i * item_size] = from[i];
  }
  const std::size_t done = n * item_size;
  if (done < sorted.size()) {
    std::memcpy(raw + done, sorted.data() + done, sorted.size() - done);
  }
}

Status BadChunk(const std::string& what) {
  return Status::Corruption("chunk: " + what, 0);
}

// 0 when it does not get smaller.
std::size_t Encode(std::span<const std::byte> raw, const Encoding& encoding,
                   std::span<std::byte> out) {
  switch (encoding.codec) {
    case Codec::kRaw:
      return 0;
    case Codec::kZstd:
      return CompressFrame(raw, encoding.effort, out);
    case Codec::kZstdPlanes: {
      std::vector<std::byte>& sorted = Sorted(raw.size());
      Sort(raw, encoding.width, sorted.data());
      return CompressFrame(sorted, encoding.effort, out);
    }
    case Codec::kPlanes:
      return EncodePlanes(raw, encoding, out);
    case Codec::kSparse:
      return EncodeSparse(raw, encoding, out);
  }
  return 0;
}

}  // namespace

StoredChunk EncodeChunk(std::span<const std::byte> raw,
                        const Encoding& encoding, std::span<std::byte> out) {
  TDBG_DCHECK(out.size() >= raw.size());
  const std::size_t n = Encode(raw, encoding, out.first(raw.size()));
  if (n != 0 && n < raw.size()) return {.codec = encoding.codec, .length = n};
  if (!raw.empty()) std::memcpy(out.data(), raw.data(), raw.size());
  return {.codec = Codec::kRaw, .length = raw.size()};
}

Status DecodeChunk(std::span<const std::byte> stored, std::uint32_t item_size,
                   Codec codec, std::span<std::byte> out) {
  switch (codec) {
    case Codec::kRaw:
      if (stored.size() != out.size()) {
        return BadChunk(std::to_string(stored.size()) + " raw bytes where " +
                        std::to_string(out.size()) + " were expected");
      }
      if (!out.empty()) std::memcpy(out.data(), stored.data(), out.size());
      return Status::Ok();
    case Codec::kZstd:
      return DecompressFrame(stored, out);
    case Codec::kZstdPlanes: {
      if (item_size == 0) return BadChunk("planes of elements of 0 bytes");
      if (item_size == 1) return DecompressFrame(stored, out);
      std::vector<std::byte>& sorted = Sorted(out.size());
      TDBG_RETURN_IF_ERROR(DecompressFrame(stored, sorted));
      Unsort(sorted, item_size, out.data());
      return Status::Ok();
    }
    case Codec::kPlanes:
      return DecodePlanes(stored, out);
    case Codec::kSparse:
      return DecodeSparse(stored, out);
  }
  return Status::Unsupported("chunk: codec " +
                             std::to_string(static_cast<unsigned>(codec)) +
                             " is unknown to this build");
}

}  // namespace tdbg
