#include "reducers/segments.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "base/worker_threads.h"
#include "reducers/element_walk.h"
#include "reducers/flush_to_zero.h"

namespace tdbg {
namespace {

// Segments whose moments are held at once.
constexpr std::size_t kSegmentsInRound = 128;

void AddAll(const Implementation& implementation, const std::byte* data,
            std::size_t n, DType dtype, Pass pass, Moments* m) {
  ForEachAlignedPart(data, n, ItemSize(dtype),
                     [&](const std::byte* part, std::size_t n_part) {
                       implementation.accumulate(part, n_part, dtype, pass, m);
                     });
}

// A round of segments, divided among threads.
struct Round {
  const std::byte* data;
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
      AddAll(*implementation, data + first * item_size,
             std::min(segment_elements, n - first), dtype, pass, &moments[i]);
    }
  }
};

}  // namespace

void MergeMoments(const Moments& part, ExtremeClass extremes, Moments* m) {
  m->nan += part.nan;
  m->positive_infinity += part.positive_infinity;
  m->negative_infinity += part.negative_infinity;
  m->zero += part.zero;
  if (part.finite == 0) return;
  const auto n_before = static_cast<double>(m->finite);
  const auto n_part = static_cast<double>(part.finite);
  const double weight = n_part / (n_before + n_part);
  const double delta = (part.mean - m->mean) + (part.mean_low - m->mean_low);
  m->m2 += part.m2 + delta * delta * (n_before * weight);
  // The exact sum of mean and step as two doubles (Dekker).  Of a first part,
  // exactly its mean.
  if (m->finite == 0) {
    m->mean = part.mean;
    m->mean_low = part.mean_low;
  } else {
    const double step = m->mean_low + delta * weight;
    const double mean = m->mean + step;
    const double moved = mean - m->mean;
    m->mean_low = (m->mean - (mean - moved)) + (step - moved);
    m->mean = mean;
  }
  m->finite += part.finite;
  m->l1 += part.l1;
  m->abs_min = std::min(m->abs_min, part.abs_min);
  switch (extremes) {
    case ExtremeClass::kFloat64:
      m->min.f64 = std::min(m->min.f64, part.min.f64);
      m->max.f64 = std::max(m->max.f64, part.max.f64);
      break;
    case ExtremeClass::kInt64:
      m->min.i64 = std::min(m->min.i64, part.min.i64);
      m->max.i64 = std::max(m->max.i64, part.max.i64);
      break;
    case ExtremeClass::kUInt64:
      m->min.u64 = std::min(m->min.u64, part.min.u64);
      m->max.u64 = std::max(m->max.u64, part.max.u64);
      break;
  }
}

void AccumulateSegments(const std::byte* data, std::size_t n, DType dtype,
                        Pass pass, unsigned n_threads,
                        const Implementation& implementation, Moments* m) {
  const ExtremeClass extremes = ExtremeClassOf(dtype);
  Clear(extremes, m);
  const std::size_t item_size = ItemSize(dtype);
  const std::size_t segment = SegmentElements(item_size);
  if (n <= segment) {
    AddAll(implementation, data, n, dtype, pass, m);
    return;
  }
  if (n * item_size < kLeastParallelBytes) n_threads = 1;
  while (n > 0) {
    const std::size_t n_now = std::min(n, kSegmentsInRound * segment);
    Round round{.data = data,
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
    n -= n_now;
  }
}

}  // namespace tdbg
