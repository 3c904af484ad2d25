#include "writer/tensor_encoder.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "format/codec.h"

namespace tdbg {
namespace {

// Below this share of the raw bits storing planes is worth the reading back.
constexpr float kWorthShare = 0.97F;
// When behind: planes with more bits a byte stay raw.
constexpr float kCheapBits = 6.0F;
// Planes with more bits a byte are noise, and not even tried.
constexpr float kNoiseBits = 7.9F;
// What another plane to entropy-code must save as a share of the raw bits,
// since it takes as long as all the rest.
constexpr float kShareOfFrame = 0.02F;
// Zeros below this share are not worth a bitmap.
constexpr float kSparseShare = 0.1F;

bool IsFloat(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kComplex64:
    case DType::kComplex128:
      return true;
    default:
      return false;
  }
}

// Bytes of what planes are made of: a complex number is two elements, a text
// its letters.
std::uint32_t PlaneWidth(const Definition& definition) {
  if (definition.dtype == DType::kComplex64) return 4;
  if (definition.dtype == DType::kComplex128) return 8;
  const std::uint32_t n = definition.item_size;
  if (n == 1 || n == 2 || n == 4 || n == 8) return n;
  return n % 4 == 0 ? 4 : 1;
}

// Gradients, activations and losses are other values at every step.
bool MayBeDifference(TensorRole role) {
  return role == TensorRole::kWeight || role == TensorRole::kBias ||
         role == TensorRole::kBuffer;
}

void Xor(std::span<const std::byte> a, std::span<const std::byte> b,
         std::byte* out) {
  for (std::size_t i = 0; i < a.size(); ++i) out[i] = a[i] ^ b[i];
}

// Planes that entropy coding has to do something for.
int NumberOfFrames(const PlaneSample& sample) {
  int n = 0;
  for (std::uint32_t p = 0; p < sample.width; ++p) {
    n += sample.bits[p] > 0.1F && sample.bits[p] <= PlaneSample::kWorthBits ? 1
                                                                            : 0;
  }
  return n;
}

}  // namespace

void TensorEncoder::BeginShard() {
  entry_ = nullptr;
  previous_.BeginShard();
}

bool TensorEncoder::Begin(const Definition& definition, const TensorHead& head,
                          std::span<const std::byte> raw,
                          const TensorHint& hint) {
  entry_ = nullptr;
  keep_ = false;
  base_ = {};
  base_sequence_ = 0;
  if (policy_ == CodecPolicy::kNone || raw.size() < kMinBytes) return false;
  const bool is_auto = policy_ == CodecPolicy::kAuto;
  if (is_auto && hint.backlog > kRawBacklog) return false;
  raw_ = raw;
  width_ = PlaneWidth(definition);
  is_float_ = IsFloat(definition.dtype);
  is_cheap_ = is_auto && hint.backlog > kCheapBacklog;
  may_be_sparse_ = hint.zero_share != 0;
  is_uneven_ = hint.zero_share >= kSparseShare;
  effort_ = is_auto ? FrameEffort::kHuffman : FrameEffort::kBest;

  if (!is_cheap_ && MayBeDifference(definition.role)) {
    ChooseBase({head.definition, head.call, head.micro_batch});
  } else {
    estimate_ = EstimateTensor({});
  }
  return !is_auto || entry_ != nullptr ||
         estimate_.plain < kWorthShare * 8 * static_cast<float>(width_);
}

void TensorEncoder::ChooseBase(const TensorKey& key) {
  PreviousValues::Entry* entry = previous_.Find(key);
  const bool has_base =
      entry->sequence != 0 && entry->bytes.size() == raw_.size();
  estimate_ =
      EstimateTensor(has_base ? entry->bytes : std::span<const std::byte>());
  if (entry->rest > 0) {
    --entry->rest;
    return;
  }
  const bool is_chain = policy_ == CodecPolicy::kMax;
  if (has_base) {
    const bool pays = estimate_.difference * (is_chain ? 1 : kWorthDifference) <
                      estimate_.plain;
    if (pays && entry->age < kMaxDifferences) {
      entry_ = entry;
      base_ = entry->bytes;
      base_sequence_ = entry->sequence;
      keep_ = is_chain;
    } else if (!pays && entry->age == 0) {
      return previous_.Release(entry, kRest);
    }
  }
  if (base_sequence_ == 0) {
    if (!previous_.Reserve(entry, raw_.size())) return;
    entry_ = entry;
    keep_ = true;
  }
  // Until Commit the entry may hold some of the old values and some of the new.
  if (keep_) entry->sequence = 0;
}

std::span<const std::byte> TensorEncoder::ChunkOf(
    std::span<const std::byte> bytes, std::size_t i) const {
  const std::size_t from = i * kChunkBytes;
  return bytes.subspan(from,
                       std::min<std::size_t>(kChunkBytes, raw_.size() - from));
}

float TensorEncoder::Bits(const PlaneSample& sample) const {
  return may_be_sparse_ ? std::min(sample.DenseBits(), sample.SparseBits())
                        : sample.DenseBits();
}

float TensorEncoder::GainOfRotation(const PlaneSample& straight,
                                    const PlaneSample& rotated) const {
  const float n_more = static_cast<float>(NumberOfFrames(rotated)) -
                       static_cast<float>(NumberOfFrames(straight));
  return Bits(straight) - Bits(rotated) -
         kShareOfFrame * 8 * static_cast<float>(width_) * n_more;
}

TensorEncoder::Estimate TensorEncoder::EstimateTensor(
    std::span<const std::byte> base) const {
  // The first chunk, and of a large tensor one in the middle and the last.
  const std::size_t n_chunks = (raw_.size() + kChunkBytes - 1) / kChunkBytes;
  const std::size_t probes[] = {0, n_chunks / 2, n_chunks - 1};
  const std::size_t n_probes = n_chunks < 8 ? 1 : 3;
  Estimate estimate;
  float straight = 0;
  float rotated = 0;
  float gain = 0;
  for (std::size_t k = 0; k < n_probes; ++k) {
    const auto chunk = ChunkOf(raw_, probes[k]);
    const PlaneSample sample = SamplePlanes(chunk, {}, width_, false);
    straight += Bits(sample);
    if (is_float_) {
      const PlaneSample turned = SamplePlanes(chunk, {}, width_, true);
      rotated += Bits(turned);
      gain += GainOfRotation(sample, turned);
    }
    if (!base.empty()) {
      estimate.difference +=
          Bits(SamplePlanes(chunk, ChunkOf(base, probes[k]), width_, false));
    }
  }
  const auto n = static_cast<float>(n_probes);
  estimate.rotate = gain > 0;
  estimate.plain = (estimate.rotate ? rotated : straight) / n;
  estimate.difference /= n;
  return estimate;
}

Encoding TensorEncoder::Choose(const PlaneSample& sample, bool rotate) const {
  const float limit = is_cheap_ ? kCheapBits : PlaneSample::kWorthBits;
  Encoding encoding{.codec = Codec::kPlanes,
                    .width = width_,
                    .rotate = rotate,
                    .effort = effort_,
                    .raw_planes = sample.RawPlanes(limit)};
  const bool is_sparse = may_be_sparse_ && sample.zero_share >= kSparseShare &&
                         sample.SparseBits() < kWorthShare * sample.DenseBits();
  if (is_sparse) {
    encoding.codec = Codec::kSparse;
    encoding.raw_planes = sample.RawValuePlanes(limit);
  } else if (sample.DenseBits() >
             kWorthShare * 8 * static_cast<float>(width_)) {
    encoding.codec = Codec::kRaw;
  }
  return encoding;
}

void TensorEncoder::Update(std::size_t i, std::span<const std::byte> bytes) {
  const PlaneSample glance = SamplePlanes(bytes, {}, width_, encoding_.rotate,
                                          PlaneSample::kGlanceElements);
  if (i != 0 && !is_uneven_ && glance.IsLike(glance_)) return;
  glance_ = glance;
  PlaneSample sample = SamplePlanes(bytes, {}, width_, encoding_.rotate);
  // A difference has no exponent to be brought together.
  if (i != 0 && is_float_ && base_sequence_ == 0) {
    const bool other = !encoding_.rotate;
    const PlaneSample turned = SamplePlanes(bytes, {}, width_, other);
    const float gain = other ? GainOfRotation(sample, turned)
                             : -GainOfRotation(turned, sample);
    if (gain > 0) {
      sample = turned;
      encoding_.rotate = other;
      glance_ =
          SamplePlanes(bytes, {}, width_, other, PlaneSample::kGlanceElements);
    }
  }
  encoding_ = Choose(sample, encoding_.rotate);
}

// Every codec, both ways of rotation; what is worth a try under kMax.
StoredChunk TensorEncoder::EncodeSmallest(std::span<const std::byte> bytes,
                                          std::span<std::byte> out) {
  StoredChunk smallest{.codec = Codec::kRaw, .length = bytes.size()};
  std::memcpy(out.data(), bytes.data(), bytes.size());
  candidate_.resize(bytes.size());
  const auto attempt = [&](const Encoding& encoding) {
    const StoredChunk stored = EncodeChunk(bytes, encoding, candidate_);
    if (stored.length >= smallest.length) return;
    smallest = stored;
    std::memcpy(out.data(), candidate_.data(), stored.length);
  };
  for (const bool rotate : {false, true}) {
    if (rotate && !is_float_) break;
    const PlaneSample sample = SamplePlanes(bytes, {}, width_, rotate);
    attempt({.codec = Codec::kPlanes,
             .width = width_,
             .rotate = rotate,
             .effort = effort_,
             .raw_planes = sample.RawPlanes(kNoiseBits)});
    if (sample.zero_share == 0) continue;
    attempt({.codec = Codec::kSparse,
             .width = width_,
             .rotate = rotate,
             .effort = effort_,
             .raw_planes = sample.RawValuePlanes(kNoiseBits)});
  }
  attempt({.codec = Codec::kZstd, .effort = effort_});
  return smallest;
}

Chunk TensorEncoder::Encode(std::size_t i, std::span<std::byte> out) {
  TDBG_DCHECK(!raw_.empty());
  TDBG_DCHECK(out.size() >= ChunkOf(raw_, i).size());
  const auto plain = ChunkOf(raw_, i);
  const bool is_difference = base_sequence_ != 0;
  auto bytes = plain;
  if (is_difference) {
    difference_.resize(plain.size());
    Xor(plain, ChunkOf(base_, i), difference_.data());
    bytes = difference_;
  }
  StoredChunk stored;
  if (policy_ == CodecPolicy::kMax) {
    stored = EncodeSmallest(bytes, out);
  } else {
    if (i == 0) encoding_.rotate = !is_difference && estimate_.rotate;
    Update(i, bytes);
    stored = EncodeChunk(bytes, encoding_, out);
  }
  const bool is_useless = is_difference && stored.codec == Codec::kRaw;
  if (is_useless) std::memcpy(out.data(), plain.data(), plain.size());
  if (keep_) {
    std::memcpy(entry_->bytes.data() + i * kChunkBytes, plain.data(),
                plain.size());
  }
  Chunk chunk;
  chunk.stored_length = static_cast<std::uint32_t>(stored.length);
  chunk.crc = MaskedCrc32c(out.data(), stored.length);
  chunk.codec = stored.codec;
  chunk.flags = is_difference && !is_useless ? kChunkXorBase : 0;
  return chunk;
}

void TensorEncoder::Commit(std::uint64_t sequence) {
  if (entry_ == nullptr) return;
  const bool is_difference = base_sequence_ != 0;
  entry_->age = is_difference ? entry_->age + 1 : 0;
  if (keep_) entry_->sequence = sequence;
}

}  // namespace tdbg
