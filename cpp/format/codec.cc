#include "format/codec.h"

#include <cstring>

#include "base/coding.h"
#include "format/zstd_api.h"

namespace tdbg {
namespace {

constexpr int kLevel = 1;
constexpr std::uint64_t kWindowLimit = 8ULL << 20;
constexpr std::uint32_t kFrameMagic = 0xFD2FB528;

// A library older than its declarations is not called at all.
bool ZstdIsUsable() {
  static const bool usable = ZSTD_versionNumber() >= kZstdOldestVersion;
  return usable;
}

// Kept per thread, freed when the thread ends.
struct Contexts {
  Contexts() = default;
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() {
    ZSTD_freeCCtx(compression);
    ZSTD_freeDCtx(decompression);
  }
  ZSTD_CCtx* compression = nullptr;
  ZSTD_DCtx* decompression = nullptr;
  std::vector<std::byte> planes;
  std::vector<std::byte> frame;
};

Contexts& OfThisThread() {
  thread_local Contexts contexts;
  return contexts;
}

// Element sizes that occur get loops of a constant stride; 0 means any other.
template <std::uint32_t kSize>
void Split(const std::byte* raw, std::size_t n, std::uint32_t item_size,
           std::byte* planes) {
  const std::uint32_t size = kSize == 0 ? item_size : kSize;
  for (std::uint32_t plane = 0; plane < size; ++plane) {
    const std::byte* from = raw + plane;
    std::byte* to = planes + plane * n;
    for (std::size_t i = 0; i < n; ++i) to[i] = from[i * size];
  }
}

template <std::uint32_t kSize>
void Join(const std::byte* planes, std::size_t n, std::uint32_t item_size,
          std::byte* raw) {
  const std::uint32_t size = kSize == 0 ? item_size : kSize;
  for (std::uint32_t plane = 0; plane < size; ++plane) {
    const std::byte* from = planes + plane * n;
    std::byte* to = raw + plane;
    for (std::size_t i = 0; i < n; ++i) to[i * size] = from[i];
  }
}

// Bytes after the last whole element stay where they are.
void SplitPlanes(std::span<const std::byte> raw, std::uint32_t item_size,
                 std::byte* planes) {
  const std::size_t n = raw.size() / item_size;
  switch (item_size) {
    case 2:
      Split<2>(raw.data(), n, item_size, planes);
      break;
    case 4:
      Split<4>(raw.data(), n, item_size, planes);
      break;
    case 8:
      Split<8>(raw.data(), n, item_size, planes);
      break;
    default:
      Split<0>(raw.data(), n, item_size, planes);
  }
  const std::size_t done = n * item_size;
  if (done < raw.size()) {
    std::memcpy(planes + done, raw.data() + done, raw.size() - done);
  }
}

void JoinPlanes(std::span<const std::byte> planes, std::uint32_t item_size,
                std::byte* raw) {
  const std::size_t n = planes.size() / item_size;
  switch (item_size) {
    case 2:
      Join<2>(planes.data(), n, item_size, raw);
      break;
    case 4:
      Join<4>(planes.data(), n, item_size, raw);
      break;
    case 8:
      Join<8>(planes.data(), n, item_size, raw);
      break;
    default:
      Join<0>(planes.data(), n, item_size, raw);
  }
  const std::size_t done = n * item_size;
  if (done < planes.size()) {
    std::memcpy(raw + done, planes.data() + done, planes.size() - done);
  }
}

Status Bad(const std::string& what) {
  return Status::Corruption("chunk: " + what, 0);
}

// Checks, before zstd sees it, that `frame` is one frame, no more, of `n` raw
// bytes, and what window it asks for (RFC 8878, 3.1.1.1).
Status CheckFrame(std::span<const std::byte> frame, std::size_t n) {
  if (frame.size() < 6 || Load<std::uint32_t>(frame.data()) != kFrameMagic) {
    return Bad("not a zstd frame");
  }
  const bool single_segment = (Load<std::uint8_t>(frame.data() + 4) & 32) != 0;
  if (!single_segment) {
    const auto window = Load<std::uint8_t>(frame.data() + 5);
    const std::uint64_t base = 1ULL << (10 + (window >> 3));
    if (base + base / 8 * (window & 7) > kWindowLimit) {
      return Status::LimitExceeded("chunk: a zstd window above 8 MiB");
    }
  }
  const auto size = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (size != kZstdContentSizeUnknown && size != n) {
    return Bad("a zstd frame of another size than its chunk");
  }
  const std::size_t stored =
      ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(stored) != 0) return Bad(ZSTD_getErrorName(stored));
  if (stored != frame.size()) return Bad("bytes after the zstd frame");
  return Status::Ok();
}

Status Decompress(std::span<const std::byte> frame, std::span<std::byte> out) {
  if (!ZstdIsUsable()) return Status::Unsupported("zstd is too old");
  TDBG_RETURN_IF_ERROR(CheckFrame(frame, out.size()));
  ZSTD_DCtx*& context = OfThisThread().decompression;
  if (context == nullptr) context = ZSTD_createDCtx();
  if (context == nullptr) return Status::ResourceExhausted("zstd: no memory");
  const std::size_t n = ZSTD_decompressDCtx(context, out.data(), out.size(),
                                            frame.data(), frame.size());
  if (ZSTD_isError(n) != 0) return Bad(ZSTD_getErrorName(n));
  if (n != out.size()) {
    return Bad(std::to_string(n) + " bytes where " +
               std::to_string(out.size()) + " were expected");
  }
  return Status::Ok();
}

}  // namespace

Codec EncodeChunk(std::span<const std::byte> raw, std::uint32_t item_size,
                  Codec codec, std::vector<std::byte>* out) {
  Contexts& contexts = OfThisThread();
  if (codec != Codec::kRaw && !raw.empty() && ZstdIsUsable()) {
    if (contexts.compression == nullptr) {
      contexts.compression = ZSTD_createCCtx();
    }
    std::span<const std::byte> from = raw;
    if (codec == Codec::kZstdPlanes && item_size > 1) {
      contexts.planes.resize(raw.size());
      SplitPlanes(raw, item_size, contexts.planes.data());
      from = contexts.planes;
    } else {
      codec = Codec::kZstd;
    }
    contexts.frame.resize(ZSTD_compressBound(raw.size()));
    const std::size_t n =
        contexts.compression == nullptr
            ? contexts.frame.size()
            : ZSTD_compressCCtx(contexts.compression, contexts.frame.data(),
                                contexts.frame.size(), from.data(), from.size(),
                                kLevel);
    if (ZSTD_isError(n) == 0 && n < raw.size()) {
      out->insert(out->end(), contexts.frame.begin(),
                  contexts.frame.begin() + static_cast<std::ptrdiff_t>(n));
      return codec;
    }
  }
  out->insert(out->end(), raw.begin(), raw.end());
  return Codec::kRaw;
}

Status DecodeChunk(std::span<const std::byte> stored, std::uint32_t item_size,
                   Codec codec, std::span<std::byte> out) {
  switch (codec) {
    case Codec::kRaw:
      if (stored.size() != out.size()) {
        return Bad(std::to_string(stored.size()) + " raw bytes where " +
                   std::to_string(out.size()) + " were expected");
      }
      if (!out.empty()) std::memcpy(out.data(), stored.data(), out.size());
      return Status::Ok();
    case Codec::kZstd:
      return Decompress(stored, out);
    case Codec::kZstdPlanes: {
      if (item_size == 0) return Bad("planes of elements of 0 bytes");
      if (item_size == 1) return Decompress(stored, out);
      std::vector<std::byte>& planes = OfThisThread().planes;
      planes.resize(out.size());
      TDBG_RETURN_IF_ERROR(Decompress(stored, planes));
      JoinPlanes(planes, item_size, out.data());
      return Status::Ok();
    }
  }
  return Status::Unsupported("chunk: codec " +
                             std::to_string(static_cast<unsigned>(codec)) +
                             " is unknown to this build");
}

}  // namespace tdbg
