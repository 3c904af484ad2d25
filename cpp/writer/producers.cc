// The calls of a Writer that offer records.

#include <algorithm>
#include <cstring>
#include <utility>

#include "writer/writer.h"
#include "writer/writer_state.h"

namespace tdbg {
namespace {

constexpr std::size_t kRowsPerRecord = 64U << 10;

// Each says of which tensors a record is, for the case that it is lost.
std::vector<std::uint32_t> OfNone() { return {}; }

auto Of(std::uint32_t definition) {
  return [definition] { return std::vector<std::uint32_t>{definition}; };
}

template <typename Entry>
auto Of(std::span<const Entry> entries) {
  return [entries] { return DefinitionsOf(entries); };
}

}  // namespace

RecordQueue::AdmissionPolicy Writer::State::AdmissionFor(
    RecordType type) const {
  const Overflow overflow = shared.options.overflow;
  return {
      .overflow = overflow == Overflow::kSample ? Overflow::kDrop : overflow,
      // What closes a step may use all.
      .keep_free = type == RecordType::kStep ? 0 : RecordQueue::kHeadroom};
}

template <typename Tensors, typename Fill>
bool Writer::State::Add(const Offer& offer,
                        const RecordQueue::AdmissionPolicy& policy,
                        Tensors tensors, Fill fill) {
  GapReason reason = GapReason::kIoError;
  QueueItem* item = nullptr;
  if (!shared.gave_up.load(std::memory_order_relaxed)) {
    reason = GapReason::kDiskNearlyFull;
    if (Admits(shared.disk_level.load(std::memory_order_relaxed), offer.type)) {
      item = shared.queue.Reserve(offer.n_bytes, policy, &reason);
    }
  }
  if (item == nullptr) return Refuse(offer, reason, tensors());
  const RecordCounters::StepCounts counts =
      shared.record_counters.Accepted(offer);
  item->step = offer.step;
  item->type = offer.type;
  fill(item, counts);
  shared.queue.Commit(item, offer.type == RecordType::kStep);
  return true;
}

template <typename Fill>
bool Writer::State::AddSampled(const Offer& offer, std::uint32_t definition,
                               Fill fill) {
  if (!Admits(shared.disk_level.load(std::memory_order_relaxed), offer.type)) {
    return Add(offer, Of(definition), fill);  // Refused there.
  }
  RecordQueue& queue = shared.queue;
  const Sampler::Answer answer = shared.sampler.Ask(
      offer.step, offer.n_bytes,
      {.used = queue.used_bytes(), .capacity = queue.capacity()});
  if (answer.verdict != Sampler::Verdict::kKeep) {
    return Refuse(offer,
                  answer.verdict == Sampler::Verdict::kSpoilt
                      ? GapReason::kQueueFull
                      : GapReason::kSampled,
                  Of(definition)());
  }
  const auto start = RecordQueue::Clock::now();
  auto taken = start;
  const bool is_taken =
      Add(offer,
          {.overflow = Overflow::kSample,
           .keep_free = queue.capacity() / 8,
           .give_up = start + answer.may_wait},
          Of(definition), [&](QueueItem* item, const auto& counts) {
            taken = RecordQueue::Clock::now();
            fill(item, counts);
          });
  if (!is_taken) taken = RecordQueue::Clock::now();
  shared.sampler.Waited(offer.step, taken - start, is_taken);
  return is_taken;
}

template <typename Fill>
bool Writer::State::AddTensor(std::uint32_t id, const Definition& definition,
                              const Offer& offer, Fill fill) {
  // Unit summaries are statistics, whatever they are stored as.
  const bool is_sampled = shared.options.overflow == Overflow::kSample &&
                          definition.role != TensorRole::kUnitSummary &&
                          offer.step != kNoStep;
  return is_sampled ? AddSampled(offer, id, fill) : Add(offer, Of(id), fill);
}

bool Writer::State::Refuse(const Offer& offer, GapReason reason,
                           std::span<const std::uint32_t> definitions,
                           std::uint64_t n) {
  shared.record_counters.Dropped(offer, reason, n);
  const std::uint32_t n_definitions = shared.definitions.size();
  const bool are_known = std::ranges::all_of(
      definitions, [&](std::uint32_t id) { return id <= n_definitions; });
  if (are_known) {
    shared.record_counters.LostOf(definitions, reason, offer.step, n);
  }
  return false;
}

template <typename Entry>
bool Writer::State::AddTable(const Offer& offer, std::span<const Entry> entries,
                             std::uint64_t entry_bytes) {
  if (inert()) return false;
  if (entries.empty()) return true;
  const std::uint32_t n_definitions = shared.definitions.size();
  const bool is_known =
      std::all_of(entries.begin(), entries.end(), [&](const Entry& entry) {
        return entry.definition != 0 && entry.definition <= n_definitions;
      });
  if (!is_known || entries.size() > (limits::kTable - 64) / entry_bytes) {
    return Refuse(offer, GapReason::kRefused, Of(entries)());
  }
  return Add(offer, Of(entries), [&](QueueItem* item, const auto&) {
    std::memcpy(item->bytes(), entries.data(), entries.size_bytes());
  });
}

std::uint32_t Writer::Define(Definition definition) {
  if (inert()) return 0;
  return state_->shared.definitions.Define(std::move(definition));
}

const Definition* Writer::definition(std::uint32_t id) const {
  if (inert()) return nullptr;
  return state_->shared.definitions.Find(id);
}

// --- Records that come later -------------------------------------------------

bool Writer::AddRowsLater(
    std::int64_t step, std::size_t n_rows, const Start& start,
    const std::function<std::vector<std::uint32_t>()>& definitions) {
  if (inert()) return false;
  const Offer offer{
      .step = step, .n_bytes = n_rows * sizeof(Row), .type = RecordType::kRows};
  const auto tensors = [&] { return definitions ? definitions() : OfNone(); };
  if (n_rows == 0 || n_rows > kRowsPerRecord) {
    return state_->Refuse(offer, GapReason::kRefused, tensors());
  }
  return state_->Add(offer, tensors, [&](QueueItem* item, const auto&) {
    item->completion = start({item->bytes(), item->n_bytes}).release();
  });
}

bool Writer::AddTensorLater(std::int64_t step, std::uint32_t definition,
                            const Start& start, std::uint16_t call,
                            std::uint16_t micro_batch, std::uint32_t flags) {
  if (inert()) return false;
  const Definition* known = state_->shared.definitions.Find(definition);
  const auto n_bytes =
      known == nullptr ? Result<std::uint64_t>(0) : RawLength(*known);
  const Offer offer{.step = step,
                    .n_bytes = n_bytes.ok() ? n_bytes.value() : 0,
                    .type = RecordType::kTensor};
  if (known == nullptr || known->item_size == 0 || !n_bytes.ok() ||
      offer.n_bytes > limits::kRecord / 2) {
    return state_->Refuse(offer, GapReason::kRefused, {&definition, 1});
  }
  return state_->AddTensor(
      definition, *known, offer, [&](QueueItem* item, const auto&) {
        item->subject = definition;
        item->call = call;
        item->micro_batch = micro_batch;
        item->flags = flags;
        item->completion = start({item->bytes(), item->n_bytes}).release();
      });
}

bool Writer::AddHistogramLater(std::int64_t step, std::uint32_t definition,
                               std::uint64_t n_bytes, const Start& start,
                               std::uint16_t call, std::uint16_t micro_batch) {
  if (inert()) return false;
  const Offer offer{
      .step = step, .n_bytes = n_bytes, .type = RecordType::kHistogram};
  if (state_->shared.definitions.Find(definition) == nullptr ||
      n_bytes > limits::kTable) {
    return state_->Refuse(offer, GapReason::kRefused, {&definition, 1});
  }
  return state_->Add(offer, Of(definition), [&](QueueItem* item, const auto&) {
    item->subject = definition;
    item->call = call;
    item->micro_batch = micro_batch;
    item->completion = start({item->bytes(), item->n_bytes}).release();
  });
}

std::span<std::byte> Writer::staging() const {
  return state_->shared.queue.memory();
}

// --- Records that are there --------------------------------------------------

bool Writer::AddRows(std::int64_t step, std::span<const Row> rows) {
  bool is_taken = true;
  do {
    const auto part = rows.first(std::min(rows.size(), kRowsPerRecord));
    rows = rows.subspan(part.size());
    if (!state_->AddTable({.step = step,
                           .n_bytes = part.size_bytes(),
                           .type = RecordType::kRows},
                          part, sizeof(Row))) {
      is_taken = false;
    }
  } while (!rows.empty());
  return is_taken;
}

bool Writer::AddTensor(std::int64_t step, std::uint32_t definition,
                       const TensorView& view, std::uint16_t call,
                       std::uint16_t micro_batch, std::uint32_t flags,
                       float zero_share) {
  if (inert()) return false;
  const Offer offer{
      .step = step, .n_bytes = view.n_bytes(), .type = RecordType::kTensor};
  const Definition* known = state_->shared.definitions.Find(definition);
  if (known == nullptr || view.device != DeviceKind::kCpu ||
      known->item_size != view.item_size || known->item_size == 0 ||
      !std::ranges::equal(known->shape, view.shape) ||
      offer.n_bytes > limits::kRecord / 2) {
    return state_->Refuse(offer, GapReason::kRefused, {&definition, 1});
  }
  const auto fill = [&](QueueItem* item, const auto&) {
    item->subject = definition;
    item->call = call;
    item->micro_batch = micro_batch;
    item->flags = flags;
    item->zero_share = zero_share;
    if (item->n_bytes != 0) CopyContiguous(view, item->bytes());
  };
  return state_->AddTensor(definition, *known, offer, fill);
}

bool Writer::AddScalars(std::int64_t step, std::span<const Scalar> scalars) {
  return state_->AddTable({.step = step,
                           .n_bytes = scalars.size_bytes(),
                           .type = RecordType::kScalar},
                          scalars, 32);
}

bool Writer::AddSpans(std::int64_t step, std::span<const Span> spans) {
  return state_->AddTable(
      {.step = step, .n_bytes = spans.size_bytes(), .type = RecordType::kSpan},
      spans, 48);
}

bool Writer::AddEvent(std::int64_t step, const Event& event) {
  if (inert()) return false;
  const std::vector<std::byte> payload = EncodeEvent(event);
  const Offer offer{
      .step = step, .n_bytes = payload.size(), .type = RecordType::kEvent};
  if (payload.size() > limits::kEvent) {
    return state_->Refuse(offer, GapReason::kRefused, {});
  }
  return state_->Add(offer, OfNone, [&](QueueItem* item, const auto&) {
    item->subject = static_cast<std::uint32_t>(event.kind);
    std::memcpy(item->bytes(), payload.data(), payload.size());
  });
}

bool Writer::AddHistogram(std::int64_t step, const Histogram& histogram) {
  if (inert()) return false;
  const std::vector<std::byte> payload = EncodeHistogram(histogram);
  const Offer offer{
      .step = step, .n_bytes = payload.size(), .type = RecordType::kHistogram};
  if (state_->shared.definitions.Find(histogram.definition) == nullptr ||
      histogram.keys.size() != histogram.counts.size() ||
      payload.size() > limits::kTable) {
    return state_->Refuse(offer, GapReason::kRefused,
                          {&histogram.definition, 1});
  }
  return state_->Add(
      offer, Of(histogram.definition), [&](QueueItem* item, const auto&) {
        item->subject = histogram.definition;
        item->call = histogram.call;
        item->micro_batch = histogram.micro_batch;
        std::memcpy(item->bytes(), payload.data(), payload.size());
      });
}

bool Writer::AddSamples(std::uint32_t definition,
                        std::span<const std::byte> rows) {
  if (inert()) return false;
  if (rows.empty()) return true;
  const Offer offer{.step = kNoStep,
                    .n_bytes = kSamplesHeadBytes + rows.size(),
                    .type = RecordType::kSamples};
  const Definition* known = state_->shared.definitions.Find(definition);
  if (known == nullptr || known->role != TensorRole::kTable ||
      known->item_size == 0 || rows.size() % known->item_size != 0 ||
      offer.n_bytes > limits::kTable) {
    return state_->Refuse(offer, GapReason::kRefused, {&definition, 1});
  }
  const std::vector<std::byte> payload =
      EncodeSamples(definition, known->item_size, rows);
  return state_->Add(offer, Of(definition), [&](QueueItem* item, const auto&) {
    item->subject = definition;
    std::memcpy(item->bytes(), payload.data(), payload.size());
  });
}

void Writer::Refuse(std::int64_t step, std::uint64_t n, std::uint64_t n_bytes,
                    std::uint32_t definition) {
  if (inert() || n == 0) return;
  (void)state_->Refuse(
      {.step = step, .n_bytes = n_bytes, .type = RecordType::kTensor},
      GapReason::kRefused, {&definition, 1}, n);
}

bool Writer::EndStep(StepRecord step) {
  if (inert()) return false;
  if (state_->shared.options.overflow == Overflow::kSample) {
    state_->shared.sampler.EndStep(step.step);
  }
  return state_->Add(
      {.step = step.step, .n_bytes = sizeof(step), .type = RecordType::kStep},
      OfNone, [&](QueueItem* item, const RecordCounters::StepCounts& counts) {
        step.offered = counts.offered;
        step.dropped = counts.dropped;
        if (counts.sampled != 0 && counts.sampled == counts.dropped) {
          step.flags |= kStepSampled;
        }
        std::memcpy(item->bytes(), &step, sizeof(step));
      });
}

}  // namespace tdbg
