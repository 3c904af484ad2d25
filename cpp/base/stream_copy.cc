#include "base/stream_copy.h"

#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>

#include <cstdint>
#endif

namespace tdbg {

#if defined(__x86_64__)

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kBlock = 4 * kLine;
// The prefetcher of the processor stops at pages; this one does not.
constexpr std::size_t kAhead = 1024;

}  // namespace

void StreamCopy(std::byte* out, const std::byte* from, std::size_t n) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(out) % kLine;
  if (n < kBlock + kLine) {
    if (n != 0) std::memcpy(out, from, n);
    return;
  }
  const std::size_t before = past == 0 ? 0 : kLine - past;
  std::memcpy(out, from, before);
  std::size_t i = before;
  // A prefetch reads nothing, so it may go beyond the end.
  for (; i + kBlock <= n; i += kBlock) {
    for (std::size_t line = 0; line < kBlock; line += kLine) {
      const std::byte* p = from + i + line;
      _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead, _MM_HINT_NTA);
      const auto* source = reinterpret_cast<const __m128i*>(p);
      auto* target = reinterpret_cast<__m128i*>(out + i + line);
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
  }
  std::memcpy(out + i, from + i, n - i);
  // Streaming stores are not ordered with the release store that follows.
  _mm_sfence();
}

#else

void StreamCopy(std::byte* out, const std::byte* from, std::size_t n) {
  if (n != 0) std::memcpy(out, from, n);
}

#endif

}  // namespace tdbg
