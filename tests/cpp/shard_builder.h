// Shards built by hand: what the writer does, without files and threads, and
// also what a writer never does.
//
// ShardBuilder appends records; CompleteShard() holds one of every kind.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/coding.h"
#include "base/crc32c.h"
#include "encode_tensor.h"
#include "format/index_builder.h"
#include "format/record.h"
#include "format/tensor_record.h"

namespace tdbg::testing {

inline Uuid MakeUuid(unsigned first) {
  Uuid uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    uuid[i] = static_cast<std::byte>((first + i) & 0xff);
  }
  return uuid;
}

// Where a record of a built shard lies.
struct PlacedRecord {
  RecordHeader header;
  std::uint64_t offset = 0;
  std::uint64_t end = 0;
};

class ShardBuilder {
 public:
  explicit ShardBuilder(FileHeader header) : header_(header) {
    bytes_.resize(limits::kFileHeader);
    EncodeFileHeader(header_, std::span<std::byte, 128>(bytes_.data(), 128));
    sequence_ = header_.first_sequence;
    index_ = IndexBuilder(header_.salt, header_.shard_number);
  }

  // Appends a record and returns its sequence.
  std::uint64_t Add(RecordType type, std::int64_t step, const Bytes& payload,
                    std::uint32_t subject = 0) {
    RecordHeader header;
    header.type = type;
    header.sequence = sequence_;
    header.step = step;
    header.payload_length = payload.size();
    header.checked_length = payload.size();
    header.subject = subject;
    header.payload_crc = MaskedCrc32c(payload.data(), payload.size());
    return AddRaw(header, payload);
  }

  // The same with a header of the caller's, whose checksums may be wrong.
  std::uint64_t AddRaw(const RecordHeader& header, const Bytes& payload) {
    PlacedRecord record{header, bytes_.size(), 0};
    bytes_.resize(bytes_.size() + limits::kRecordHeader);
    EncodeRecordHeader(
        header, header_.salt,
        std::span<std::byte, 64>(bytes_.data() + record.offset, 64));
    bytes_.insert(bytes_.end(), payload.begin(), payload.end());
    ByteWriter(&bytes_).Align(limits::kAlignment);
    record.end = bytes_.size();
    records_.push_back(record);
    index_.Add({.header = header, .offset = record.offset}, payload);
    sequence_ = header.sequence + 1;
    return header.sequence;
  }

  std::uint64_t AddDefinition(const Definition& definition) {
    return Add(RecordType::kDefinition, kNoStep, EncodeDefinition(definition),
               definition.id);
  }

  std::uint64_t AddRows(std::int64_t step, const std::vector<Row>& rows) {
    return Add(RecordType::kRows, step, EncodeRows(rows));
  }

  std::uint64_t AddTensor(std::int64_t step, const TensorHead& identity,
                          const EncodedTensor& tensor) {
    RecordHeader header;
    header.type = RecordType::kTensor;
    header.sequence = sequence_;
    header.step = step;
    header.payload_length = tensor.payload.size();
    header.checked_length = tensor.checked_length;
    header.subject = identity.definition;
    header.payload_crc =
        MaskedCrc32c(tensor.payload.data(), tensor.checked_length);
    return AddRaw(header, tensor.payload);
  }

  std::uint64_t AddTensor(std::int64_t step, std::uint32_t definition,
                          const Bytes& raw, std::uint32_t item_size,
                          Codec codec, std::uint32_t chunk_size = 0,
                          std::uint64_t base_sequence = 0,
                          const Bytes& base = {}) {
    TensorHead identity;
    identity.definition = definition;
    identity.chunk_size = chunk_size;
    identity.base_sequence = base_sequence;
    return AddTensor(
        step, identity,
        EncodeTensor(identity, raw, EncodingOf(codec, item_size), base));
  }

  void Seal(EndReason reason = EndReason::kClosed) {
    const std::vector<IndexEntry> entries = Entries();
    End end;
    end.n_records = records_.size() + 1;
    end.index_offset = bytes_.size();
    end.reason = reason;
    for (const PlacedRecord& record : records_) {
      const std::int64_t step = record.header.step;
      if (step == kNoStep) continue;
      end.first_step =
          end.first_step == kNoStep ? step : std::min(end.first_step, step);
      end.last_step = std::max(end.last_step, step);
    }
    Add(RecordType::kIndex, kNoStep, EncodeIndex(entries));
    end.file_length = bytes_.size() + limits::kRecordHeader + kEndBytes;
    IndexBuilder::File index = index_.Finish(end.n_records, end.file_length);
    index_file_ = std::move(index.bytes);
    end.index_crc = index.directory_crc;
    Add(RecordType::kEnd, kNoStep, EncodeEnd(end));
  }

  [[nodiscard]] std::vector<IndexEntry> Entries() const {
    std::vector<IndexEntry> entries;
    for (const PlacedRecord& record : records_) {
      IndexEntry entry;
      entry.header = record.header;
      entry.offset = record.offset;
      entries.push_back(entry);
    }
    return entries;
  }

  // The .tdi file of this shard, once it is sealed.
  [[nodiscard]] const Bytes& Index() const { return index_file_; }

  [[nodiscard]] const Bytes& bytes() const { return bytes_; }
  [[nodiscard]] const FileHeader& header() const { return header_; }
  [[nodiscard]] const std::vector<PlacedRecord>& records() const {
    return records_;
  }
  [[nodiscard]] std::uint64_t next_sequence() const { return sequence_; }

 private:
  FileHeader header_;
  Bytes bytes_;
  std::vector<PlacedRecord> records_;
  IndexBuilder index_;
  Bytes index_file_;
  std::uint64_t sequence_ = 1;
};

inline FileHeader SomeHeader(std::uint32_t shard_number = 1,
                             std::uint64_t salt = 0x5a17ab1e0ddba11ULL) {
  FileHeader header;
  header.run = MakeUuid(0x10);
  header.attempt = MakeUuid(0x80);
  header.shard_number = shard_number;
  header.salt = salt + shard_number;
  header.created_ns = 1'700'000'000'000'000'000;
  return header;
}

inline Definition SomeDefinition(std::uint32_t id, std::string name,
                                 DType dtype = DType::kFloat32,
                                 std::vector<std::int64_t> shape = {4}) {
  Definition definition;
  definition.id = id;
  definition.role = TensorRole::kWeight;
  definition.dtype = dtype;
  definition.item_size = ItemSize(dtype);
  definition.name = std::move(name);
  definition.shape = std::move(shape);
  return definition;
}

// w1, w2, ...  (`"w" + std::to_string(id)` draws a false warning of GCC 12.)
inline std::string NameOf(std::uint32_t id) {
  std::string name = "w";
  name += std::to_string(id);
  return name;
}

inline Row SomeRow(std::uint32_t definition, double seed) {
  Row row;
  row.definition = definition;
  row.summary.count = 4;
  row.summary.zero = 1;
  row.summary.min.f64 = -seed;
  row.summary.max.f64 = seed;
  row.summary.abs_min = 0;
  row.summary.mean = seed / 3;
  row.summary.m2 = seed * seed;
  row.summary.l1 = 2 * seed;
  row.summary.l2 = seed;
  return row;
}

// A directory of its own, removed with everything in it at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    // Memory, where there is such a file system: the tests write a lot.
    std::string pattern = std::filesystem::is_directory("/dev/shm")
                              ? "/dev/shm/tdbg-test-XXXXXX"
                              : "/tmp/tdbg-test-XXXXXX";
    path_ = ::mkdtemp(pattern.data()) == nullptr ? "" : pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  // A new writer directory in it.
  [[nodiscard]] std::string Writer(
      const std::string& name = "train-0-1") const {
    const std::string directory = path_ + "/" + name;
    std::filesystem::create_directories(directory);
    return directory;
  }

 private:
  std::string path_;
};

inline void WriteFile(const std::string& path,
                      std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

inline Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)),
                         std::istreambuf_iterator<char>());
  return ToBytes(text);
}

}  // namespace tdbg::testing
