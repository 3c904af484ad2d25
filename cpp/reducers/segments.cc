#include "reducers/segments.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/stream_copy.h"
#include "base/worker_threads.h"
#include "reducers/element_walk.h"
#include "reducers/flush_to_zero.h"
#include "reducers/row_math-inl.h"

namespace tdbg {
namespace {

// Segments whose moments are held at once.
constexpr std::size_t kSegmentsInRound = 128;

// `beside`, so many bytes further on.
Beside Advanced(Beside beside, std::size_t n_bytes) {
  if (beside.minus != nullptr) beside.minus += n_bytes;
  if (beside.copy != nullptr) beside.copy += n_bytes;
  return beside;
}

// As AddAll; elements are copied while they are in the first cache.
void AddAndCopy(const Implementation& implementation, const std::byte* data,
                std::byte* copy, bool streams, std::size_t n, DType dtype,
                Pass pass, Moments* m) {
  constexpr std::size_t kLine = 64;
  if (streams && dtype == DType::kFloat32 && !pass.precise &&
      IsAligned(copy, kLine)) {
    implementation.accumulate_and_copy(reinterpret_cast<const float*>(data), n,
                                       reinterpret_cast<float*>(copy), m);
    return;
  }
  const std::size_t item_size = ItemSize(dtype);
  while (n > 0) {
    const std::size_t n_now = std::min(n, BlockElements(item_size));
    const std::size_t n_bytes = n_now * item_size;
    implementation.accumulate(data, n_now, dtype, pass, m);
    if (streams) {
      StreamCopy(copy, data, n_bytes);
    } else {
      std::memcpy(copy, data, n_bytes);
    }
    data += n_bytes;
    copy += n_bytes;
    n -= n_now;
  }
}

void AddAll(const Implementation& implementation, const std::byte* data,
            Beside beside, bool streams, std::size_t n, DType dtype, Pass pass,
            Moments* m) {
  if (beside.minus != nullptr) {
    implementation.accumulate_difference(data, beside.minus, n, dtype, pass, m);
    return;
  }
  if (beside.copy != nullptr) {
    AddAndCopy(implementation, data, beside.copy, streams, n, dtype, pass, m);
    return;
  }
  ForEachAlignedPart(data, n, ItemSize(dtype),
                     [&](const std::byte* part, std::size_t n_part) {
                       implementation.accumulate(part, n_part, dtype, pass, m);
                     });
}

// A round of segments, divided among threads.
struct Round {
  const std::byte* data;
  Beside beside;
  bool streams;
  std::size_t n;  // Elements.
  std::size_t segment_elements;
  std::size_t n_segments;
  std::size_t item_size;
  DType dtype;
  ExtremeClass extremes;
  Pass pass;
  const Implementation* implementation;
  std::atomic<std::size_t> next{0};  // Segment that nobody took yet.
  std::array<Moments, kSegmentsInRound> moments;

  void Work() {
    const FlushToZeroOff exact;
    for (;;) {
      const std::size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= n_segments) return;
      const std::size_t first = i * segment_elements;
      Clear(extremes, &moments[i]);
      const std::size_t first_byte = first * item_size;
      AddAll(*implementation, data + first_byte, Advanced(beside, first_byte),
             streams, std::min(segment_elements, n - first), dtype, pass,
             &moments[i]);
    }
  }
};

}  // namespace

void AccumulateSegments(const std::byte* data, std::size_t n, DType dtype,
                        Pass pass, unsigned n_threads,
                        const Implementation& implementation, Moments* m,
                        Beside beside) {
  const ExtremeClass extremes = ExtremeClassOf(dtype);
  TDBG_DCHECK(pass.factor == 1.0 || dtype == DType::kFloat64);
  Clear(extremes, m);
  const std::size_t item_size = ItemSize(dtype);
  const std::size_t segment = SegmentElements(item_size);
  // Copies that are small stay in a cache.
  const bool streams = n * item_size >= kMinStream;
  if (n <= segment) {
    AddAll(implementation, data, beside, streams, n, dtype, pass, m);
    return;
  }
  if (n * item_size < kLeastParallelBytes) n_threads = 1;
  while (n > 0) {
    const std::size_t n_now = std::min(n, kSegmentsInRound * segment);
    Round round{.data = data,
                .beside = beside,
                .streams = streams,
                .n = n_now,
                .segment_elements = segment,
                .n_segments = (n_now + segment - 1) / segment,
                .item_size = item_size,
                .dtype = dtype,
                .extremes = extremes,
                .pass = pass,
                .implementation = &implementation,
                .next = {},
                .moments = {}};
    WorkOnThreads(
        n_threads, [](void* self) { static_cast<Round*>(self)->Work(); },
        &round);
    for (std::size_t i = 0; i < round.n_segments; ++i) {
      MergeMoments(round.moments[i], extremes, m);
    }
    data += n_now * item_size;
    beside = Advanced(beside, n_now * item_size);
    n -= n_now;
  }
}

}  // namespace tdbg
