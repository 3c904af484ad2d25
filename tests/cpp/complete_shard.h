// A small shard that holds a record of every type, and of each the awkward
// kinds: every codec, a difference, unknown codecs and types, longer rows.

#pragma once

#include <limits>

#include "shard_builder.h"

namespace tdbg::testing {

inline std::vector<float> SomeFloats(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    values[i] = 1.0F + static_cast<float>(i % 17) / 1024.0F;
  }
  return values;
}

// Bytes that do not compress.
inline Bytes Noise(std::size_t n) {
  Bytes bytes(n);
  std::uint32_t state = 12345;
  for (std::byte& b : bytes) {
    state = state * 1664525 + 1013904223;
    b = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// A table of a profile: a time, and a byte for each of three cores.
inline Definition SomeTable(std::uint32_t id) {
  Definition table = SomeDefinition(id, "profile/core", DType::kNumpy, {});
  table.role = TensorRole::kTable;
  table.item_size = 11;
  table.dtype_text = "time:<i8,busy:|u1*3";
  return table;
}

// Rows of it, from a time on.
inline Bytes SomeSamples(std::uint32_t definition, std::int64_t time, int n) {
  Bytes rows;
  ByteWriter w(&rows);
  for (int i = 0; i < n; ++i) {
    w.Put(time + 10 * i);
    for (const unsigned busy : {7U, 8U, 255U}) {
      w.Put(static_cast<std::uint8_t>(busy));
    }
  }
  return EncodeSamples(definition, 11, rows);
}

// Rows as a later version may write them: two fields less, one more that this
// build does not know, and bytes after the fields.
inline Bytes LongerRows(std::uint32_t definition) {
  Bytes payload;
  ByteWriter w(&payload);
  w.Put(std::uint32_t{16 + 4 * 8 + 8});
  w.Put(std::uint32_t{2});
  w.Put((1ULL << 0) | (1ULL << 1) | (1ULL << 8) | (1ULL << 40));
  for (std::uint32_t i = 0; i < 2; ++i) {
    w.Put(definition);
    w.Put(static_cast<std::uint16_t>(i));  // call
    w.Put(std::uint16_t{7});               // micro-batch
    w.Put(kRescaled);
    w.Put(std::uint32_t{0});
    w.Put(std::uint64_t{100 + i});  // count
    w.Put(std::uint64_t{3});        // NaN
    w.Put(0.25 * (i + 1));          // mean
    w.Put(std::uint64_t{0xdead});   // unknown
    w.Put(std::uint64_t{0xbeef});   // after the fields
  }
  return payload;
}

inline ShardBuilder CompleteShard(std::uint32_t shard_number = 1) {
  FileHeader header = SomeHeader(shard_number);
  header.rank = 3;
  header.world_size = 8;
  header.generation = 2;
  header.attempt_ordinal = 1;
  header.compatible_features = 0x80;
  header.first_sequence = 41;
  ShardBuilder b(header);

  Event event;
  event.kind = EventKind::kConfiguration;
  event.severity = 1;
  event.wall_ns = 12345;
  event.json = R"({"save_interval": 500})";
  b.Add(RecordType::kEvent, kNoStep, EncodeEvent(event), 1);

  Definition weight =
      SomeDefinition(1, "layer.0.weight", DType::kFloat32, {8, 24});
  weight.global_shape = {16, 24};
  weight.global_offset = {8, 0};
  weight.placements = {{PlacementKind::kShard, 0, 0, 2, 1},
                       {PlacementKind::kPartial, 2, 0, 4, 3}};
  weight.aliases = {"tied.weight", "w"};
  b.AddDefinition(weight);
  b.AddDefinition(SomeDefinition(2, "mask", DType::kUInt8, {100}));
  Definition loss = SomeDefinition(3, "scalar/loss", DType::kInvalid, {});
  loss.role = TensorRole::kScalar;
  b.AddDefinition(loss);
  Definition when = SomeDefinition(4, "when", DType::kNumpy, {3});
  when.item_size = 8;
  when.dtype_text = "<M8[ns]";
  b.AddDefinition(when);
  b.AddDefinition(SomeDefinition(5, "noise", DType::kInt16, {1800}));
  b.AddDefinition(SomeDefinition(6, "deep", DType::kBFloat16,
                                 std::vector<std::int64_t>(64, 1)));

  Row scaled = SomeRow(1, 2.5);
  scaled.flags = kRescaled;
  scaled.micro_batch = 1;
  b.AddRows(0, {SomeRow(1, 1.5), scaled});
  const Bytes first = BytesOf(SomeFloats(192));
  const std::uint64_t key =
      b.AddTensor(0, 1, first, 4, Codec::kZstdPlanes, 256);
  b.AddTensor(0, 2, Bytes(100, std::byte{7}), 1, Codec::kZstd);
  const std::vector<std::int64_t> times = {
      1, -1, std::numeric_limits<std::int64_t>::min()};
  b.AddTensor(0, 4, BytesOf(times), 8, Codec::kRaw);
  b.AddTensor(0, 5, Noise(3600), 2, Codec::kZstdPlanes, 512);
  b.Add(
      RecordType::kScalar, 0,
      EncodeScalars(std::vector<Scalar>{{3, 0, 111, 0.5}, {3, 1, 112, -2.0}}));
  StepRecord step;
  step.mode = 1;
  step.flags = kStepSkipped;
  step.wall_ns = 222;
  step.offered = 9;
  step.written = 8;
  step.dropped = 1;
  b.Add(RecordType::kStep, 0, EncodeStep(step), 1);

  // The record of a later version.
  b.Add(static_cast<RecordType>(77), 1, ToBytes("something new"), 5);
  b.Add(RecordType::kRows, 1, LongerRows(1));
  Bytes second = first;
  second[17] = std::byte{0x55};
  second[700] = std::byte{0x66};
  b.AddTensor(1, 1, second, 4, Codec::kZstdPlanes, 256, key, first);
  // A tensor whose second chunk has a codec of a later version.
  TensorHead head;
  head.definition = 2;
  head.chunk_size = 64;
  EncodedTensor newer =
      EncodeTensor(head, Bytes(100, std::byte{9}), Encoding{});
  newer.payload[64 + 16 + 8] = std::byte{99};
  b.AddTensor(1, head, newer);
  b.Add(RecordType::kSpan, 1,
        EncodeSpans(std::vector<Span>{{3, 0, 1000, 50, 7, 1, -9}}));
  Histogram histogram;
  histogram.definition = 1;
  histogram.keys = {3, 0x3f80, 0xc000};
  histogram.counts = {1, 190, 1};
  b.Add(RecordType::kHistogram, 1, EncodeHistogram(histogram), 1);
  b.AddDefinition(SomeTable(7));
  b.Add(RecordType::kSamples, kNoStep, SomeSamples(7, 500, 3), 7);
  b.Add(RecordType::kSamples, kNoStep, SomeSamples(7, 525, 2), 7);
  Gap gap;
  gap.first_step = 0;
  gap.last_step = 1;
  gap.records = 1;
  gap.bytes = 4096;
  gap.reason = GapReason::kQueueFull;
  gap.what = 2;
  b.Add(RecordType::kGap, 1, EncodeGap(gap));
  b.Add(RecordType::kPad, kNoStep, Bytes(200));
  step.mode_step = 1;
  step.flags = kStepInterrupted;
  b.Add(RecordType::kStep, 1, EncodeStep(step), 1);
  b.Seal(EndReason::kRotated);
  return b;
}

// Floats around 0, the same at every call; three of four are 0 with `sparse`.
inline Bytes Weights(std::size_t n, bool sparse = false) {
  Bytes bytes(4 * n);
  std::uint32_t state = 99;
  const auto next = [&] { return (state = state * 1664525 + 1013904223) >> 8; };
  for (std::size_t i = 0; i < n; ++i) {
    const float value = (static_cast<float>(next() & 0xffff) - 32768.0F) *
                        (static_cast<float>(next() & 0xffff) + 1.0F) * 1e-11F;
    if (!sparse || next() % 4 == 0) Store(bytes.data() + 4 * i, value);
  }
  return bytes;
}

// Tensors in all forms of codecs 3 and 4: with and without rotation, with raw
// and coded planes, bitmaps and values, with a tail, and as differences.
inline ShardBuilder CodecShard() {
  ShardBuilder b(SomeHeader());
  const auto add = [&](std::uint32_t id, std::int64_t step, const Bytes& raw,
                       const Encoding& encoding, std::uint32_t chunk_size = 0,
                       std::uint64_t base_sequence = 0,
                       const Bytes& base = {}) {
    TensorHead head;
    head.definition = id;
    head.chunk_size = chunk_size;
    head.base_sequence = base_sequence;
    return b.AddTensor(step, head, EncodeTensor(head, raw, encoding, base));
  };
  const auto form = [](Codec codec, std::uint32_t width, bool rotate,
                       std::uint32_t raw_planes = 0) {
    return Encoding{.codec = codec,
                    .width = width,
                    .rotate = rotate,
                    .effort = FrameEffort::kHuffman,
                    .raw_planes = raw_planes};
  };
  const Bytes weights = Weights(300);
  const Bytes zeros = Weights(300, true);
  b.AddDefinition(SomeDefinition(1, "w", DType::kFloat32, {300}));
  b.AddDefinition(SomeDefinition(2, "sparse", DType::kFloat32, {300}));
  b.AddDefinition(SomeDefinition(3, "half", DType::kBFloat16, {600}));
  b.AddDefinition(SomeDefinition(4, "double", DType::kFloat64, {150}));
  b.AddDefinition(SomeDefinition(5, "mask", DType::kBool, {1200}));
  Definition text = SomeDefinition(6, "text", DType::kNumpy, {60});
  text.item_size = 20;
  text.dtype_text = "<U5";
  b.AddDefinition(text);

  const std::uint64_t key =
      add(1, 0, weights, form(Codec::kPlanes, 4, true, 7));
  add(1, 0, weights, form(Codec::kPlanes, 4, false), 502);
  add(2, 0, zeros, form(Codec::kSparse, 4, true));
  add(2, 0, zeros, form(Codec::kSparse, 4, false, 15));
  add(3, 0, zeros, form(Codec::kPlanes, 2, true));
  add(3, 0, zeros, form(Codec::kSparse, 2, true, 1), 301);
  add(4, 0, zeros, form(Codec::kPlanes, 8, true));
  add(4, 0, zeros, form(Codec::kSparse, 8, false));
  Bytes mask(1200);
  for (std::size_t i = 0; i < 1200; ++i) {
    mask[i] = i % 100 < 3 ? std::byte{1} : std::byte{0};
  }
  add(5, 0, mask, form(Codec::kPlanes, 1, false));
  add(5, 0, mask, form(Codec::kSparse, 1, false));
  Bytes letters(1200);
  for (std::size_t i = 0; i < 1200; i += 4) {
    letters[i] = static_cast<std::byte>(0x61 + i % 7);
  }
  add(6, 0, letters, form(Codec::kPlanes, 4, false));
  Bytes second = weights;
  for (std::size_t i = 0; i < second.size(); i += 16) {
    second[i] ^= std::byte{3};
  }
  const std::uint64_t next =
      add(1, 1, second, form(Codec::kSparse, 4, false), 0, key, weights);
  Bytes third = second;
  third[700] ^= std::byte{1};
  add(1, 2, third, form(Codec::kPlanes, 4, false), 0, next, second);
  b.Seal();
  return b;
}

}  // namespace tdbg::testing
