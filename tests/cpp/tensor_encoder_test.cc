// The writer's choice of codecs: what it picks for which tensor, that every
// choice comes back, and what may be a difference to what.
//
// Seen to fail when: values of a tensor that was begun and not committed are
// taken for a base; a base survives its shard; a gradient is a difference; a
// key frame is never made again; memory is taken beyond the bound.

#include "writer/tensor_encoder.h"

#include <map>
#include <random>

#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

struct Saved {
  TensorHead head;
  Bytes data;
  bool is_raw = false;
};

// Saves tensors as a writer does, and reads them back as a reader does.
class Saving {
 public:
  explicit Saving(CodecPolicy policy, std::uint64_t previous_bytes = 64U << 20)
      : encoder_(policy, previous_bytes) {}

  // Returns what was stored, after comparing what a reader gets from it.
  Saved Save(const Definition& definition, const Bytes& raw,
             const TensorHint& hint = {}) {
    Saved saved = Encode(definition, raw, hint);
    if (!saved.is_raw) encoder_.Commit(sequence_);
    values_[sequence_] = raw;
    Bytes back(raw.size());
    EXPECT_OK(DecodeTensor(saved.head, saved.data, definition.item_size,
                           values_[saved.head.base_sequence], back));
    EXPECT_TRUE(back == raw);
    return saved;
  }

  // A tensor whose shard is given up before it is whole.
  void Abandon(const Definition& definition, const Bytes& raw) {
    Begin(definition, raw);
    BeginShard();
  }

  // A tensor of which only the first chunk is encoded.
  void Begin(const Definition& definition, const Bytes& raw) {
    (void)Encode(definition, raw, {}, 1);
  }

  void BeginShard() {
    encoder_.BeginShard();
    values_.clear();
  }

  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  [[nodiscard]] std::uint64_t previous_bytes() const {
    return encoder_.previous_bytes();
  }

 private:
  Saved Encode(const Definition& definition, const Bytes& raw,
               const TensorHint& hint, std::size_t most = 1U << 20) {
    ++sequence_;
    Saved saved;
    TensorHead& head = saved.head;
    head.definition = definition.id;
    head.chunk_size = kChunkBytes;
    head.raw_length = raw.size();
    saved.is_raw = !encoder_.Begin(definition, head, raw, hint);
    if (!saved.is_raw) head.base_sequence = encoder_.base_sequence();
    for (std::size_t i = 0; i * kChunkBytes < raw.size() && i < most; ++i) {
      const auto chunk = std::span(raw).subspan(
          i * kChunkBytes,
          std::min<std::size_t>(kChunkBytes, raw.size() - i * kChunkBytes));
      Bytes out(chunk.size());
      Chunk& entry = head.chunks.emplace_back();
      if (saved.is_raw) {
        entry.stored_length =
            static_cast<std::uint32_t>(EncodeChunk(chunk, {}, out).length);
        entry.crc = MaskedCrc32c(out.data(), out.size());
      } else {
        entry = encoder_.Encode(i, out);
      }
      saved.data.insert(saved.data.end(), out.begin(),
                        out.begin() + entry.stored_length);
    }
    return saved;
  }

  TensorEncoder encoder_;
  std::uint64_t sequence_ = 0;
  std::map<std::uint64_t, Bytes> values_;
};

Definition Of(TensorRole role, DType dtype = DType::kFloat32,
              std::uint32_t id = 1) {
  Definition definition = SomeDefinition(id, NameOf(id), dtype);
  definition.role = role;
  return definition;
}

// As a training leaves them: normal, then changed a little at each step.
class Training {
 public:
  explicit Training(std::size_t n, unsigned seed = 1)
      : random_(seed), weights_(n) {
    for (float& w : weights_) w = normal_(random_) * 0.02F;
  }
  void Step(float rate = 1e-5F) {
    for (float& w : weights_) w += normal_(random_) * rate;
  }
  [[nodiscard]] Bytes bytes() const { return BytesOf(weights_); }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_;
  std::vector<float> weights_;
};

double Ratio(const Saved& saved) {
  return static_cast<double>(saved.head.raw_length) /
         static_cast<double>(saved.data.size());
}

bool IsDifference(const Saved& saved) { return saved.head.base_sequence != 0; }

TDBG_TEST(FloatsGoToRotatedPlanes) {
  Saving saving(CodecPolicy::kAuto);
  const Bytes weights = Training(200'000).bytes();
  const Saved saved = saving.Save(Of(TensorRole::kGradient), weights);
  EXPECT_TRUE(saved.head.chunks[0].codec == Codec::kPlanes);
  EXPECT_TRUE(saved.data[0] == std::byte{1});
  EXPECT_GT(Ratio(saved), 1.17);
  // Rounded to bfloat16, as autocast leaves gradients: the sign stays.
  Bytes rounded = weights;
  for (std::size_t i = 0; i < rounded.size(); i += 4) {
    rounded[i] = rounded[i + 1] = std::byte{0};
  }
  const Saved cast = saving.Save(Of(TensorRole::kGradient), rounded);
  EXPECT_TRUE(cast.data[0] == std::byte{0});
  EXPECT_GT(Ratio(cast), 2.5);
  // Integers have no exponent.
  std::vector<std::int32_t> tokens(100'000);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(i * 7919 % 50'000);
  }
  const Saved integers =
      saving.Save(Of(TensorRole::kInput, DType::kInt32), BytesOf(tokens));
  EXPECT_TRUE(integers.data[0] == std::byte{0});
  EXPECT_GT(Ratio(integers), 1.8);
}

TDBG_TEST(ZerosGoToABitmap) {
  Bytes relu = Training(200'000).bytes();
  for (std::size_t i = 0; i < relu.size(); i += 4) {
    if ((relu[i + 3] & std::byte{0x80}) != std::byte{0}) {
      for (std::size_t j = i; j < i + 4; ++j) relu[j] = std::byte{0};
    }
  }
  Saving saving(CodecPolicy::kAuto);
  const Definition output = Of(TensorRole::kOutput);
  const Saved saved = saving.Save(output, relu);
  EXPECT_TRUE(saved.head.chunks[0].codec == Codec::kSparse);
  EXPECT_GT(Ratio(saved), 2.2);
  const auto codec_of_second = [&](const TensorHint& hint) {
    return saving.Save(output, relu, hint).head.chunks[1].codec;
  };
  EXPECT_TRUE(codec_of_second({.zero_share = 0.5F}) == Codec::kSparse);
  // Somebody who counted says that there are none.
  EXPECT_TRUE(codec_of_second({.zero_share = 0.0F}) == Codec::kPlanes);
  // Zeros that begin with the second chunk are found, announced or not.
  std::fill(relu.begin(), relu.begin() + kChunkBytes, std::byte{0x3f});
  EXPECT_TRUE(codec_of_second({.zero_share = 0.4F}) == Codec::kSparse);
  EXPECT_TRUE(codec_of_second({}) == Codec::kSparse);
  const Saved zeros = saving.Save(output, Bytes(800'000));
  EXPECT_GT(Ratio(zeros), 1000);
}

TDBG_TEST(AChunkOfAnotherKindIsStoredInItsOwnWay) {
  // Some float32 as they are, then such as bfloat16 could hold, then again.
  Bytes mixed = Training(5 * kChunkBytes / 4).bytes();
  for (std::size_t i = kChunkBytes; i < 4 * kChunkBytes; i += 4) {
    mixed[i] = mixed[i + 1] = std::byte{0};
  }
  Saving saving(CodecPolicy::kAuto);
  const Saved saved = saving.Save(Of(TensorRole::kGradient), mixed);
  std::size_t at = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    const Chunk& chunk = saved.head.chunks[i];
    const bool is_cast = 1 <= i && i <= 3;
    EXPECT_TRUE(chunk.codec == Codec::kPlanes);
    EXPECT_TRUE((saved.data[at] == std::byte{0}) == is_cast);  // Not rotated.
    EXPECT_TRUE((chunk.stored_length < kChunkBytes / 2) == is_cast);
    at += chunk.stored_length;
  }
}

TDBG_TEST(EveryElementTypeComesBackUnderEveryPolicy) {
  std::vector<Bytes> contents = {Training(30'001).bytes(), Noise(120'004),
                                 Bytes(120'004), Weights(30'001, true)};
  for (const CodecPolicy policy :
       {CodecPolicy::kNone, CodecPolicy::kAuto, CodecPolicy::kMax}) {
    Saving saving(policy);
    for (unsigned code = 0; code < 64; ++code) {
      const auto dtype = static_cast<DType>(code);
      if (!IsKnownDType(static_cast<std::uint16_t>(code)) || code == 0)
        continue;
      for (const Bytes& bytes : contents) {
        for (const double backlog : {0.0, 0.3, 0.9}) {
          const Saved saved = saving.Save(Of(TensorRole::kWeight, dtype), bytes,
                                          {.backlog = backlog});
          EXPECT_LE(saved.data.size(), bytes.size());
        }
      }
    }
  }
}

TDBG_TEST(WhatIsSmallOrNoiseIsNotTouched) {
  Saving saving(CodecPolicy::kAuto);
  const Definition gradient = Of(TensorRole::kGradient);
  EXPECT_TRUE(saving.Save(gradient, Noise(500'000)).is_raw);
  EXPECT_TRUE(saving.Save(gradient, Training(500).bytes()).is_raw);
  EXPECT_TRUE(saving.Save(gradient, {}).is_raw);
  Saving none(CodecPolicy::kNone);
  EXPECT_TRUE(none.Save(gradient, Bytes(500'000)).is_raw);
}

TDBG_TEST(ABacklogCostsRatioBeforeItCostsValues) {
  Saving saving(CodecPolicy::kAuto);
  const Definition weight = Of(TensorRole::kWeight);
  Training training(200'000);
  (void)saving.Save(weight, training.bytes());
  training.Step();
  const Saved idle = saving.Save(weight, training.bytes());
  const Saved behind = saving.Save(weight, training.bytes(), {.backlog = 0.3});
  const Saved full = saving.Save(weight, training.bytes(), {.backlog = 0.6});
  EXPECT_TRUE(IsDifference(idle));
  EXPECT_FALSE(IsDifference(behind));
  EXPECT_TRUE(full.is_raw);
  EXPECT_LT(idle.data.size(), behind.data.size());
  EXPECT_LT(behind.data.size(), full.data.size());
  // And afterwards as before.
  EXPECT_TRUE(IsDifference(saving.Save(weight, training.bytes())));
  Saving smallest(CodecPolicy::kMax);
  EXPECT_GT(Ratio(smallest.Save(weight, training.bytes(), {.backlog = 1})),
            1.1);
}

TDBG_TEST(WeightsAreDifferencesToAKeyFrame) {
  Saving saving(CodecPolicy::kAuto);
  Training training(200'000);
  std::uint64_t key = 0;
  for (int i = 0; i < 20; ++i) {
    const Saved saved = saving.Save(Of(TensorRole::kWeight), training.bytes());
    const bool is_key = i % (TensorEncoder::kMaxDifferences + 1) == 0;
    EXPECT_EQ(IsDifference(saved), !is_key);
    if (is_key) key = saving.sequence();
    if (!is_key) {
      EXPECT_EQ(saved.head.base_sequence, key);
      EXPECT_TRUE(saved.head.chunks[0].flags == kChunkXorBase);
      EXPECT_GT(Ratio(saved), 1.4);
    }
    training.Step();
  }
  EXPECT_EQ(saving.previous_bytes(), 800'000U);
}

TDBG_TEST(UnderMaxWeightsAreDifferencesToTheSaveBefore) {
  Saving saving(CodecPolicy::kMax);
  Training training(70'000);
  for (int i = 0; i < 10; ++i) {
    const Saved saved = saving.Save(Of(TensorRole::kWeight), training.bytes());
    const bool is_key = i % (TensorEncoder::kMaxDifferences + 1) == 0;
    EXPECT_EQ(saved.head.base_sequence, is_key ? 0 : saving.sequence() - 1);
    training.Step();
  }
}

TDBG_TEST(AShardBeginsWithAKeyFrame) {
  for (const CodecPolicy policy : {CodecPolicy::kAuto, CodecPolicy::kMax}) {
    Saving saving(policy);
    Training training(20'000);
    const Definition weight = Of(TensorRole::kWeight);
    for (int shard = 0; shard < 3; ++shard) {
      EXPECT_FALSE(IsDifference(saving.Save(weight, training.bytes())));
      training.Step();
      EXPECT_TRUE(IsDifference(saving.Save(weight, training.bytes())));
      training.Step();
      saving.BeginShard();
    }
  }
}

TDBG_TEST(WhatIsNewAtEveryStepIsNoDifference) {
  Saving saving(CodecPolicy::kAuto);
  const Bytes same = Training(20'000).bytes();
  for (const TensorRole role :
       {TensorRole::kGradient, TensorRole::kOutput, TensorRole::kInput,
        TensorRole::kLoss, TensorRole::kUpdate}) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(IsDifference(saving.Save(Of(role), same)));
    }
  }
  EXPECT_EQ(saving.previous_bytes(), 0U);
  // A weight that is drawn anew is tried once, and then left alone.
  int n_kept = 0;
  for (unsigned i = 0; i < 20; ++i) {
    EXPECT_FALSE(IsDifference(
        saving.Save(Of(TensorRole::kWeight), Training(20'000, i).bytes())));
    n_kept += saving.previous_bytes() > 0 ? 1 : 0;
  }
  EXPECT_EQ(n_kept, 1);
}

TDBG_TEST(AnotherNameCallOrSizeIsNoBase) {
  Saving saving(CodecPolicy::kAuto);
  const Bytes bytes = Training(20'000).bytes();
  (void)saving.Save(Of(TensorRole::kWeight), bytes);
  EXPECT_FALSE(IsDifference(
      saving.Save(Of(TensorRole::kWeight, DType::kFloat32, 2), bytes)));
  EXPECT_FALSE(IsDifference(
      saving.Save(Of(TensorRole::kWeight), Training(20'001).bytes())));
}

TDBG_TEST(MemoryHasABoundAndNobodyIsPushedOut) {
  // Room for two of three: the same two are differences at every step.
  Saving saving(CodecPolicy::kAuto, 200'000);
  Training training(20'000);
  for (int i = 0; i < 6; ++i) {
    for (const std::uint32_t id : {1U, 2U, 3U}) {
      const Saved saved = saving.Save(
          Of(TensorRole::kWeight, DType::kFloat32, id), training.bytes());
      EXPECT_EQ(IsDifference(saved), i > 0 && id < 3);
      EXPECT_LE(saving.previous_bytes(), 160'000U);
    }
    training.Step();
  }
  // Whoever is no longer saved makes room, after a shard without it.
  saving.BeginShard();
  for (int i = 0; i < 2; ++i) {
    (void)saving.Save(Of(TensorRole::kWeight, DType::kFloat32, 3),
                      training.bytes());
    saving.BeginShard();
  }
  EXPECT_EQ(saving.previous_bytes(), 80'000U);
  Saving none(CodecPolicy::kAuto, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(
        IsDifference(none.Save(Of(TensorRole::kWeight), training.bytes())));
  }
}

TDBG_TEST(ATensorThatWasGivenUpIsNoBase) {
  for (const CodecPolicy policy : {CodecPolicy::kAuto, CodecPolicy::kMax}) {
    Saving saving(policy);
    Training training(200'000);
    const Definition weight = Of(TensorRole::kWeight);
    (void)saving.Save(weight, training.bytes());
    training.Step();
    saving.Abandon(weight, training.bytes());
    training.Step();
    EXPECT_FALSE(IsDifference(saving.Save(weight, training.bytes())));
    training.Step();
    EXPECT_TRUE(IsDifference(saving.Save(weight, training.bytes())));
  }
}

TDBG_TEST(ValuesThatWereKeptInPartAreNoBase) {
  Saving saving(CodecPolicy::kMax);
  Training training(200'000);
  const Definition weight = Of(TensorRole::kWeight);
  (void)saving.Save(weight, training.bytes());
  training.Step();
  saving.Begin(weight, training.bytes());
  training.Step();
  EXPECT_FALSE(IsDifference(saving.Save(weight, training.bytes())));
}

TDBG_TEST(MaxIsNotLargerThanAuto) {
  for (const bool sparse : {false, true}) {
    const Bytes bytes = Weights(100'000, sparse);
    Saving fast(CodecPolicy::kAuto);
    Saving small(CodecPolicy::kMax);
    const Definition output = Of(TensorRole::kOutput);
    EXPECT_LE(small.Save(output, bytes).data.size(),
              fast.Save(output, bytes).data.size());
  }
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
