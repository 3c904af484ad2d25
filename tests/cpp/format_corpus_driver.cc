// Writes the shards of tests/corpus/v1 into a directory.
//
// Usage: format_corpus_driver DIRECTORY
// The corpus in the repository was written once and stays: shards of version 1
// are read by every later tdbg.  A new kind of shard is a new case.

#include <cstdio>

#include "complete_shard.h"

namespace tdbg::testing {
namespace {

void Write(const std::string& root, const std::string& path,
           const Bytes& bytes) {
  const std::filesystem::path file(root + "/" + path);
  std::filesystem::create_directories(file.parent_path());
  WriteFile(file.string(), bytes);
}

// A tensor of every element type with every codec, the odd ones out included:
// no element, no dimension, an element that no chunk holds whole.
ShardBuilder ElementTypes() {
  ShardBuilder shard(SomeHeader());
  const DType types[] = {
      DType::kBool,           DType::kUInt8,          DType::kInt8,
      DType::kUInt16,         DType::kInt16,          DType::kUInt32,
      DType::kInt32,          DType::kUInt64,         DType::kInt64,
      DType::kFloat16,        DType::kFloat32,        DType::kFloat64,
      DType::kBFloat16,       DType::kFloat8E4M3Fn,   DType::kFloat8E5M2,
      DType::kFloat8E4M3FnUz, DType::kFloat8E5M2FnUz, DType::kFloat8E8M0Fnu,
      DType::kComplex64,      DType::kComplex128};
  std::uint32_t id = 0;
  for (const DType type : types) {
    const std::string name(DTypeName(type));
    shard.AddDefinition(SomeDefinition(++id, "t/" + name, type, {2, 3, 4}));
    Bytes values(std::size_t{24} * ItemSize(type));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<std::byte>(i / ItemSize(type) % 2);
    }
    for (const Codec codec : {Codec::kRaw, Codec::kZstd, Codec::kZstdPlanes}) {
      shard.AddTensor(static_cast<std::int64_t>(codec), id, values,
                      ItemSize(type), codec);
    }
  }
  Definition text = SomeDefinition(++id, "t/text", DType::kNumpy, {5});
  text.item_size = 20;
  text.dtype_text = "<U5";
  shard.AddDefinition(text);
  Bytes letters(100);
  for (std::size_t i = 0; i < letters.size(); i += 4) {
    letters[i] = std::byte{0x61};
  }
  // Chunks of 48 bytes: two elements and a part of the third.
  shard.AddTensor(0, id, letters, 20, Codec::kZstdPlanes, 48);
  shard.AddDefinition(SomeDefinition(++id, "t/none", DType::kFloat32, {3, 0}));
  shard.AddTensor(0, id, {}, 4, Codec::kZstdPlanes);
  shard.AddDefinition(SomeDefinition(++id, "t/one", DType::kFloat64, {}));
  shard.AddTensor(0, id, Bytes(8, std::byte{1}), 8, Codec::kRaw);
  shard.Seal();
  return shard;
}

// Every record type, damaged in four places; then a shard that was given up.
void Damaged(const std::string& root) {
  const ShardBuilder shard = CompleteShard();
  Bytes bytes = shard.bytes();
  for (const std::size_t k : {2U, 7U, 13U, 20U}) {
    bytes[shard.records()[k].offset + 64 + k] ^= std::byte{0x10};
  }
  Write(root, "damaged/train-3-2/000001.tds", bytes);
  Bytes cut = CompleteShard(2).bytes();
  cut.resize(3000);
  Write(root, "damaged/train-3-2/000002.tds", cut);
  FileHeader foreign = SomeHeader(3);
  Write(root, "damaged/train-3-2/000003.tds", ShardBuilder(foreign).bytes());
}

// A run that goes on over two shards, the second still growing.
void TwoShards(const std::string& root) {
  FileHeader header = SomeHeader(1);
  std::uint64_t next = 1;
  for (const std::uint32_t number : {1U, 2U}) {
    header = SomeHeader(number);
    header.first_sequence = next;
    ShardBuilder shard(header);
    shard.AddDefinition(SomeDefinition(1, "w"));
    shard.AddDefinition(SomeDefinition(2, "v", DType::kInt64));
    for (int i = 0; i < 3; ++i) {
      const std::int64_t step = 3 * number + i;
      Row row = SomeRow(2, 1.0);
      row.summary.min.i64 = -5;
      row.summary.max.i64 = 9'007'199'254'740'993;
      shard.AddRows(step, {SomeRow(1, static_cast<double>(step)), row});
      shard.AddRows(step, {SomeRow(1, 0.5)});
      StepRecord closing;
      closing.mode = 1;
      closing.mode_step = step;
      shard.Add(RecordType::kStep, step, EncodeStep(closing), 1);
    }
    if (number == 1) shard.Seal(EndReason::kRotated);
    next = shard.next_sequence();
    const std::string name = "two_shards/train-0-1/00000";
    Write(root, name + std::to_string(number) + ".tds", shard.bytes());
    if (number == 1) Write(root, name + "1.tdi", shard.Index());
  }
}

// Sealed shards with their indexes (version 2): of every record, of so many
// rows that columns are read, and one whose index is damaged.
void Indexed(const std::string& root) {
  std::uint64_t next = 0;
  for (const std::uint32_t number : {1U, 2U, 3U}) {
    FileHeader header = CompleteShard().header();
    header.shard_number = number;
    header.first_sequence = next;
    ShardBuilder shard = number == 1 ? CompleteShard() : ShardBuilder(header);
    if (number > 1) {
      shard.AddDefinition(SomeDefinition(8, "more", DType::kFloat32, {2}));
      shard.AddDefinition(SomeDefinition(9, "rows"));
      for (int i = 0; i < 16; ++i) {
        const std::int64_t step = 16 * number + i;
        shard.AddRows(step, {SomeRow(8, i), SomeRow(9, -i)});
        shard.AddTensor(step, 8, Bytes(8, static_cast<std::byte>(i)), 4,
                        Codec::kRaw);
        StepRecord closing;
        closing.mode = 1;
        closing.mode_step = step;
        shard.Add(RecordType::kStep, step, EncodeStep(closing), 1);
      }
      shard.Seal(EndReason::kRotated);
    }
    next = shard.next_sequence();
    const std::string name = "indexed/train-3-2/00000" + std::to_string(number);
    Write(root, name + ".tds", shard.bytes());
    Bytes index = shard.Index();
    if (number == 3) index[index.size() / 2] ^= std::byte{1};
    Write(root, name + ".tdi", index);
  }
}

// Tables of a profile: two, in two shards, the second still growing.
void Samples(const std::string& root) {
  std::uint64_t next = 1;
  for (const std::uint32_t number : {1U, 2U}) {
    FileHeader header = SomeHeader(number);
    header.first_sequence = next;
    ShardBuilder shard(header);
    Definition disk = SomeTable(2);
    disk.name = "profile/disk/sda";
    disk.item_size = 16;
    disk.dtype_text = "time:<i8,reads:<u8";
    shard.AddDefinition(SomeTable(1));
    shard.AddDefinition(disk);
    for (int i = 0; i < 3; ++i) {
      const std::int64_t time = 1000 * number + 100 * i;
      shard.Add(RecordType::kSamples, kNoStep, SomeSamples(1, time, 2 + i), 1);
      Bytes rows(32);
      Store(rows.data(), time + 5);
      Store(rows.data() + 16, time - 5);
      shard.Add(RecordType::kSamples, kNoStep, EncodeSamples(2, 16, rows), 2);
    }
    // As a later tdbg may write it: rows that are longer.
    const Bytes longer = EncodeSamples(2, 24, Bytes(48, std::byte{3}));
    shard.Add(RecordType::kSamples, kNoStep, longer, 2);
    if (number == 1) shard.Seal(EndReason::kRotated);
    next = shard.next_sequence();
    const std::string name = "samples/train-0-1/00000" + std::to_string(number);
    Write(root, name + ".tds", shard.bytes());
    if (number == 1) Write(root, name + ".tdi", shard.Index());
  }
}

void WriteAll(const std::string& root) {
  Write(root, "records/train-3-2/000001.tds", CompleteShard().bytes());
  Write(root, "element_types/train-0-1/000001.tds", ElementTypes().bytes());
  Write(root, "codecs/train-0-1/000001.tds", CodecShard().bytes());
  Damaged(root);
  TwoShards(root);
  Indexed(root);
  Samples(root);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: format_corpus_driver DIRECTORY\n");
    return 2;
  }
  tdbg::testing::WriteAll(argv[1]);
  return 0;
}
