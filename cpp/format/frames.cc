#include "format/frames.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/coding.h"
#include "format/zstd_api.h"

namespace tdbg {
namespace {

constexpr std::uint64_t kWindowLimit = 8ULL << 20;
constexpr std::uint32_t kFrameMagic = 0xFD2FB528;
constexpr int kFastLevel = 1;
constexpr int kBestLevel = 3;

// A library older than its declarations is not called at all.
bool ZstdIsUsable() {
  static const bool usable = ZSTD_versionNumber() >= kZstdOldestVersion;
  return usable;
}

ZSTD_CCtx* NewLevelContext(int level) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  if (context == nullptr) return nullptr;
  (void)ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  return context;
}

// The search for matches is made to step over the whole block at once, so that
// all of it is literals, and literals are Huffman-coded.
ZSTD_CCtx* NewHuffmanContext() {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  if (context == nullptr) return nullptr;
  const std::pair<ZSTD_cParameter, int> parameters[] = {
      {ZSTD_c_compressionLevel, 1}, {ZSTD_c_strategy, ZSTD_fast},
      {ZSTD_c_minMatch, 7},         {ZSTD_c_targetLength, 131072},
      {ZSTD_c_hashLog, 6},          {ZSTD_c_experimentalParam5, 1},
  };
  bool all = true;
  for (const auto& [parameter, value] : parameters) {
    all &= ZSTD_isError(ZSTD_CCtx_setParameter(context, parameter, value)) == 0;
  }
  if (!all) {
    // Without it literals would stay raw: level 1 is slower and does its work.
    (void)ZSTD_CCtx_reset(context, ZSTD_reset_session_and_parameters);
    (void)ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kFastLevel);
  }
  return context;
}

struct Contexts {
  Contexts() = default;
  Contexts(const Contexts&) = delete;
  Contexts& operator=(const Contexts&) = delete;
  ~Contexts() {
    ZSTD_freeCCtx(huffman);
    ZSTD_freeCCtx(fast);
    ZSTD_freeCCtx(best);
    ZSTD_freeDCtx(decompression);
  }
  ZSTD_CCtx* huffman = nullptr;
  ZSTD_CCtx* fast = nullptr;
  ZSTD_CCtx* best = nullptr;
  ZSTD_DCtx* decompression = nullptr;
  std::vector<std::byte> other;  // The second of two tries.
};

Contexts& ContextsOfThisThread() {
  thread_local Contexts contexts;
  return contexts;
}

// 0 where it does not fit into `out`, which is shorter than `raw`.
std::size_t Compress(ZSTD_CCtx* context, std::span<const std::byte> raw,
                     std::span<std::byte> out) {
  if (context == nullptr) return 0;
  const std::size_t n =
      ZSTD_compress2(context, out.data(), out.size(), raw.data(), raw.size());
  return ZSTD_isError(n) != 0 ? 0 : n;
}

// A frame of a byte that repeats, as RFC 8878 has it (3.1.1): a single segment
// of blocks that name their byte and how often.  zstd itself would count all of
// them first.
std::size_t RepeatedFrame(std::span<const std::byte> raw,
                          std::span<std::byte> out) {
  constexpr std::size_t kMaxBlock = 128U << 10;
  constexpr std::size_t kHead = 9;
  constexpr std::size_t kBlock = 4;
  const std::size_t n_blocks = (raw.size() + kMaxBlock - 1) / kMaxBlock;
  if (out.size() < kHead + n_blocks * kBlock) return 0;
  Store(out.data(), kFrameMagic);
  Store(out.data() + 4, std::uint8_t{0xa0});  // Four bytes of size follow.
  Store(out.data() + 5, static_cast<std::uint32_t>(raw.size()));
  std::size_t at = kHead;
  for (std::size_t left = raw.size(); left != 0;) {
    const std::size_t n = std::min(left, kMaxBlock);
    left -= n;
    const std::uint32_t is_last = left == 0 ? 1 : 0;
    const auto length = static_cast<std::uint32_t>(n);
    Store(out.data() + at, is_last | 2U | length << 3 |
                               static_cast<std::uint32_t>(raw[0]) << 24);
    at += kBlock;
  }
  return at;
}

bool Repeats(std::span<const std::byte> raw) {
  return std::memcmp(raw.data(), raw.data() + 1, raw.size() - 1) == 0;
}

Status BadFrame(const std::string& what) {
  return Status::Corruption("chunk: " + what, 0);
}

// Checks, before zstd sees it, that `frame` is one frame, no more, of `n` raw
// bytes, and what window it asks for (RFC 8878, 3.1.1.1).
Status CheckFrame(std::span<const std::byte> frame, std::size_t n) {
  if (frame.size() < 6 || Load<std::uint32_t>(frame.data()) != kFrameMagic) {
    return BadFrame("not a zstd frame");
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
    return BadFrame("a zstd frame of another size than its content");
  }
  const std::size_t stored =
      ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (ZSTD_isError(stored) != 0) return BadFrame(ZSTD_getErrorName(stored));
  if (stored != frame.size()) return BadFrame("bytes after the zstd frame");
  return Status::Ok();
}

}  // namespace

std::size_t CompressFrame(std::span<const std::byte> raw, FrameEffort effort,
                          std::span<std::byte> out) {
  if (raw.size() < 2 || !ZstdIsUsable()) return 0;
  out = out.first(std::min(out.size(), raw.size() - 1));
  if (Repeats(raw)) return RepeatedFrame(raw, out);
  Contexts& contexts = ContextsOfThisThread();
  if (effort == FrameEffort::kFast) {
    if (contexts.fast == nullptr) contexts.fast = NewLevelContext(kFastLevel);
    return Compress(contexts.fast, raw, out);
  }
  if (contexts.huffman == nullptr) contexts.huffman = NewHuffmanContext();
  const std::size_t n = Compress(contexts.huffman, raw, out);
  if (effort == FrameEffort::kHuffman) return n;

  if (contexts.best == nullptr) contexts.best = NewLevelContext(kBestLevel);
  contexts.other.resize(out.size());
  const std::size_t other = Compress(contexts.best, raw, contexts.other);
  if (other == 0 || (n != 0 && n <= other)) return n;
  std::memcpy(out.data(), contexts.other.data(), other);
  return other;
}

Status DecompressFrame(std::span<const std::byte> frame,
                       std::span<std::byte> out) {
  if (!ZstdIsUsable()) return Status::Unsupported("zstd is too old");
  TDBG_RETURN_IF_ERROR(CheckFrame(frame, out.size()));
  ZSTD_DCtx*& context = ContextsOfThisThread().decompression;
  if (context == nullptr) context = ZSTD_createDCtx();
  if (context == nullptr) return Status::ResourceExhausted("zstd: no memory");
  const std::size_t n = ZSTD_decompressDCtx(context, out.data(), out.size(),
                                            frame.data(), frame.size());
  if (ZSTD_isError(n) != 0) return BadFrame(ZSTD_getErrorName(n));
  if (n != out.size()) {
    return BadFrame(std::to_string(n) + " bytes where " +
                    std::to_string(out.size()) + " were expected");
  }
  return Status::Ok();
}

}  // namespace tdbg
