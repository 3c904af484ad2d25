// Tensor records: round trips, differences, chains, and lengths that lie.
//
// Seen to fail when: the sum of the stored lengths is not compared; a chain has
// no limit; the raw length is not compared with the definition; the memory of
// a tensor is not limited; the base may have another definition.

#include "format/tensor_record.h"

#include <limits>

#include "answers.h"
#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TensorHead Identity(std::uint32_t chunk_size = 0, std::uint64_t base = 0) {
  TensorHead head;
  head.definition = 1;
  head.call = 2;
  head.micro_batch = 3;
  head.flags = kRescaled;
  head.chunk_size = chunk_size;
  head.base_sequence = base;
  return head;
}

Result<TensorHead> DecodeHead(const EncodedTensor& tensor) {
  return DecodeTensorHead(
      std::span(tensor.payload).first(tensor.checked_length),
      tensor.payload.size());
}

TDBG_TEST(TensorsComeBackAsTheyWere) {
  for (const std::size_t n :
       {0U, 4U, 1020U, 1024U, 1028U, 262'144U, 600'000U}) {
    for (const Codec codec : {Codec::kRaw, Codec::kZstd, Codec::kZstdPlanes}) {
      const Bytes raw = BytesOf(SomeFloats(n / 4));
      const std::uint32_t chunk = n < 2000 ? 1024 : 0;
      const EncodedTensor tensor =
          EncodeTensor(Identity(chunk), raw, EncodingOf(codec, 4));
      EXPECT_EQ(tensor.checked_length % 64, 0U);
      const auto head = DecodeHead(tensor);
      EXPECT_OK(head);
      EXPECT_EQ(head.value().raw_length, n);
      EXPECT_EQ(head.value().call, 2);
      EXPECT_EQ(head.value().micro_batch, 3);
      EXPECT_EQ(head.value().flags, kRescaled);
      EXPECT_EQ(head.value().chunk_size, chunk == 0 ? kChunkBytes : chunk);
      Bytes back(n);
      EXPECT_OK(
          DecodeTensor(head.value(),
                       std::span(tensor.payload).subspan(tensor.checked_length),
                       4, {}, back));
      EXPECT_TRUE(back == raw);
    }
  }
}

TDBG_TEST(ADifferenceIsSmallerAndComesBack) {
  const Bytes base = Noise(10'000);
  Bytes raw = base;
  raw[1234] ^= std::byte{1};
  const EncodedTensor key =
      EncodeTensor(Identity(1000), base, EncodingOf(Codec::kZstd, 4));
  const EncodedTensor delta =
      EncodeTensor(Identity(1000, 7), raw, EncodingOf(Codec::kZstd, 4), base);
  EXPECT_LT(delta.payload.size(), key.payload.size() / 5);
  const auto head = DecodeHead(delta);
  EXPECT_EQ(head.value().base_sequence, 7U);
  const auto data = std::span(delta.payload).subspan(delta.checked_length);
  Bytes back(raw.size());
  EXPECT_OK(DecodeTensor(head.value(), data, 4, base, back));
  EXPECT_TRUE(back == raw);
  // Without its base, and with one of another length.
  EXPECT_FALSE(DecodeTensor(head.value(), data, 4, {}, back).ok());
  const Bytes shorter(base.begin(), base.end() - 1);
  EXPECT_FALSE(DecodeTensor(head.value(), data, 4, shorter, back).ok());
}

// A head whose lengths are those of the table below.
struct Lengths {
  const char* what;
  std::uint32_t chunk_size;
  std::uint64_t raw_length;
  std::uint32_t n_chunks;
  std::uint32_t data_offset;
  std::uint32_t stored;
  std::uint64_t payload_length;
};

TDBG_TEST(LengthsThatLieAreTypedErrors) {
  const Lengths good = {"good", 1024, 1024, 1, 128, 1024, 128 + 1024};
  std::vector<Lengths> table;
  const auto add = [&](const char* what, auto change) {
    Lengths row = good;
    row.what = what;
    change(&row);
    table.push_back(row);
  };
  add("chunks of 0 bytes", [](Lengths* l) { l->chunk_size = 0; });
  add("a chunk above 16 MiB",
      [](Lengths* l) { l->chunk_size = (16U << 20) + 1; });
  add("chunks of 4 GiB", [](Lengths* l) { l->chunk_size = 0xffffffff; });
  for (const std::uint64_t n : std::initializer_list<std::uint64_t>{
           std::uint64_t{0}, std::uint64_t{1025}, (1ULL << 31) - 1, 1ULL << 31,
           (1ULL << 32) + 1024, 1ULL << 40, (1ULL << 40) + 1, 1ULL << 63,
           kMax - 1023, kMax - 1, kMax}) {
    add("raw length", [n](Lengths* l) { l->raw_length = n; });
  }
  // As many chunks as 32 bits hold of as many as the raw length needs.
  add("chunks wrap", [](Lengths* l) {
    l->raw_length = 1ULL << 40;
    l->chunk_size = 256;
    l->n_chunks = 0;
  });
  for (const std::uint32_t n : {0U, 2U, 0x10000000U, 0xffffffffU}) {
    add("chunks", [n](Lengths* l) { l->n_chunks = n; });
  }
  for (const std::uint32_t n : {0U, 64U, 127U, 129U, 192U, 0xffffffc0U}) {
    add("data offset", [n](Lengths* l) { l->data_offset = n; });
  }
  for (const std::uint32_t n : {0U, 1023U, 1025U, 0xffffffffU}) {
    add("stored length", [n](Lengths* l) { l->stored = n; });
  }
  for (const std::uint64_t n : std::initializer_list<std::uint64_t>{
           std::uint64_t{0}, std::uint64_t{64}, std::uint64_t{127},
           std::uint64_t{128}, std::uint64_t{1151}, std::uint64_t{1153},
           1ULL << 32, kMax}) {
    add("payload length", [n](Lengths* l) { l->payload_length = n; });
  }
  const auto decode = [](const Lengths& l) {
    Bytes payload(128);
    Store(payload.data() + 12, l.chunk_size);
    Store(payload.data() + 16, l.raw_length);
    Store(payload.data() + 32, l.n_chunks);
    Store(payload.data() + 36, l.data_offset);
    Store(payload.data() + 64, l.stored);
    return DecodeTensorHead(payload, l.payload_length);
  };
  EXPECT_OK(decode(good));
  EXPECT_GE(table.size(), 35U);
  for (const Lengths& lengths : table) {
    const auto head = decode(lengths);
    if (head.ok()) {
      Fail(__FILE__, __LINE__, std::string(lengths.what) + " was accepted");
      continue;
    }
    EXPECT_TRUE(head.status().code() == StatusCode::kCorruption ||
                head.status().code() == StatusCode::kLimitExceeded);
  }
}

TDBG_TEST(EveryPrefixOfAHeadIsATypedError) {
  const EncodedTensor tensor =
      EncodeTensor(Identity(256), Noise(5000), EncodingOf(Codec::kRaw, 4));
  for (std::size_t n = 0; n < tensor.checked_length; ++n) {
    const auto head = DecodeTensorHead(std::span(tensor.payload).first(n),
                                       tensor.payload.size());
    EXPECT_FALSE(head.ok());
  }
}

// A shard in memory with one definition of `n` bytes.
ShardBuilder WithDefinition(std::int64_t n) {
  ShardBuilder shard(SomeHeader());
  shard.AddDefinition(SomeDefinition(1, "w", DType::kUInt8, {n}));
  return shard;
}

Status ReadLast(const ShardBuilder& shard) {
  MemoryShard memory(shard.bytes(), shard.header(), true);
  EXPECT_EQ(memory.problems().size(), 0U);
  return memory.ReadTensor(memory.tensors().size() - 1).status();
}

TDBG_TEST(AChainOfBasesHasALimit) {
  ShardBuilder shard = WithDefinition(1000);
  Bytes values = Noise(1000);
  std::uint64_t base = shard.AddTensor(0, 1, values, 1, Codec::kZstd);
  for (int i = 1; i <= 64; ++i) {
    Bytes next = values;
    next[static_cast<std::size_t>(i)] ^= std::byte{0x40};
    base = shard.AddTensor(i, 1, next, 1, Codec::kZstd, 0, base, values);
    values = next;
  }
  EXPECT_OK(ReadLast(shard));
  MemoryShard memory(shard.bytes(), shard.header(), true);
  EXPECT_TRUE(ValueOf(memory.ReadTensor(64)) == values);
  Bytes next = values;
  next[999] ^= std::byte{1};
  shard.AddTensor(65, 1, next, 1, Codec::kZstd, 0, base, values);
  EXPECT_TRUE(ReadLast(shard).code() == StatusCode::kLimitExceeded);
}

TDBG_TEST(ABaseIsAnEarlierTensorOfTheSameDefinition) {
  const Bytes base = Noise(1000);
  Bytes raw = base;
  raw[5] ^= std::byte{1};
  ShardBuilder shard = WithDefinition(1000);
  shard.AddDefinition(SomeDefinition(2, "v", DType::kUInt8, {1000}));
  const std::uint64_t key = shard.AddTensor(0, 1, base, 1, Codec::kZstd);
  for (const std::uint64_t wrong : std::initializer_list<std::uint64_t>{
           1, key + 1, key + 2, key + 100, kMax}) {
    ShardBuilder copy = shard;
    copy.AddTensor(1, 1, raw, 1, Codec::kZstd, 0, wrong, base);
    EXPECT_TRUE(ReadLast(copy).code() == StatusCode::kCorruption);
  }
  ShardBuilder other = shard;
  other.AddTensor(1, 2, raw, 1, Codec::kZstd, 0, key, base);
  EXPECT_TRUE(ReadLast(other).code() == StatusCode::kCorruption);
  shard.AddTensor(1, 1, raw, 1, Codec::kZstd, 0, key, base);
  EXPECT_OK(ReadLast(shard));
}

TDBG_TEST(ATensorHasTheLengthOfItsDefinition) {
  for (const std::int64_t n : {0, 999, 1001, 1 << 20}) {
    ShardBuilder shard = WithDefinition(n);
    shard.AddTensor(0, 1, Bytes(1000), 1, Codec::kZstd);
    EXPECT_TRUE(ReadLast(shard).code() == StatusCode::kCorruption);
  }
  ShardBuilder shard = WithDefinition(1000);
  shard.AddTensor(0, 9, Bytes(1000), 1, Codec::kZstd);
  EXPECT_TRUE(ReadLast(shard).code() == StatusCode::kCorruption);
}

TDBG_TEST(ABombIsStoppedByTheOptionThatTheErrorNames) {
  // 8 MiB of zeros in a few hundred bytes; the limit of these tests is 1 MiB.
  ShardBuilder shard = WithDefinition(8 << 20);
  shard.AddTensor(0, 1, Bytes(8 << 20), 1, Codec::kZstd);
  EXPECT_LT(shard.bytes().size(), 10'000U);
  const Status status = ReadLast(shard);
  EXPECT_TRUE(status.code() == StatusCode::kLimitExceeded);
  EXPECT_TRUE(status.message().find("max_tensor_bytes") != std::string::npos);
  // What is really there is no bomb, however large.
  ShardBuilder honest = WithDefinition(8 << 20);
  honest.AddTensor(0, 1, Noise(8 << 20), 1, Codec::kZstd);
  EXPECT_OK(ReadLast(honest));
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
