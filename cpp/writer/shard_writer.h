// ShardWriter appends records to one shard file.
//
// Implements docs/format.md, "A shard" and "Writing".  Records are encoded into
// the batch of a ShardFile; the values of a large tensor that is stored raw go
// to the file from where they lie.  Nothing is stored through a map, and
// nothing that a reader may have seen is written again.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: after the first one the shard must be abandoned: nothing more may be
// called but the getters and the destructor.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/index_builder.h"
#include "format/record.h"
#include "format/tensor_record.h"
#include "writer/shard_file.h"
#include "writer/tensor_encoder.h"

namespace tdbg {

class ShardWriter {
 public:
  // A batch is written when it has a size within these bounds, if not earlier:
  // a writer with a small queue has small batches.
  static constexpr std::uint64_t kMinBatch = 1ULL << 20;
  static constexpr std::uint64_t kMaxBatch = 8ULL << 20;
  static constexpr std::uint64_t kMinBehind = 256ULL << 10;
  // From this size on a tensor that is stored raw is not copied to the batch:
  // below, a few calls more cost as much as the copy.
  static constexpr std::uint64_t kMinUncopied = 2ULL << 20;

  // `progress` is called when something was encoded or written.
  ShardWriter(std::uint64_t queue_bytes, std::function<void()> progress)
      : batch_bytes_(std::clamp(queue_bytes / 16, kMinBatch, kMaxBatch)),
        progress_(progress),
        file_(progress) {}

  // Creates the file at `path` and writes its header.
  Status Open(FileSystem* file_system, const std::string& path,
              const FileHeader& header);

  // Adds a record to the batch.  `call` and `micro_batch` go to the index.
  void Append(RecordType type, std::int64_t step, std::uint32_t subject,
              std::span<const std::byte> payload, std::uint16_t call = 0,
              std::uint16_t micro_batch = 0);
  void AppendRows(std::int64_t step, std::span<const Row> rows);

  // Adds a tensor, its chunks as `encoder` makes them or, without one, raw.  A
  // large one is written in pieces, after the batch and its own header last.
  // REQUIRES: for one in pieces, Align was called and the batch is written.
  Status AppendTensor(std::int64_t step, TensorHead head,
                      std::span<const std::byte> raw, TensorEncoder* encoder);

  // Adds a tensor as another shard stores it: `read` gives `out` its data from
  // `offset` on, of `n_data` bytes.
  using ReadData =
      std::function<Status(std::uint64_t offset, std::span<std::byte> out)>;
  Status AppendStoredTensor(std::int64_t step, const TensorHead& head,
                            std::uint64_t n_data, const ReadData& read);

  [[nodiscard]] bool IsWrittenInPieces(std::size_t n_raw,
                                       bool is_encoded) const {
    return n_raw >= (is_encoded ? batch_bytes_ : kMinUncopied);
  }
  // Adds a `pad` record, where it takes one, so that a raw tensor that follows
  // lies in the file as `raw` in memory, as far as pages go: a direct write
  // needs that.
  void Align(std::span<const std::byte> raw);

  [[nodiscard]] bool batch_is_full() const {
    return length() - written() >= batch_bytes_;
  }
  // Whether the batch is worth writing when there is nothing else to do.
  [[nodiscard]] bool is_worth_writing() const {
    return length() - written() >= kMinBehind;
  }
  // Writes the batch; its records are then in the file.
  Status WriteBatch() { return file_.WriteBatch(); }
  // Makes all that was written outlive a power failure.
  Status Sync() { return file_.Sync(); }

  // Writes the batch, `index` and `end`, and gives the reserve back.
  Status Seal(EndReason reason);
  Status Close() { return file_.Close(); }
  // As File::CheckName.
  Status CheckName() { return file_.CheckName(); }

  // With `on`, blocks are reserved ahead of the data.
  void set_reserve(bool on) { file_.set_reserve(on); }

  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  // Bytes in the file, and with those of the batch.
  [[nodiscard]] std::uint64_t written() const { return file_.written(); }
  [[nodiscard]] std::uint64_t length() const { return file_.length(); }
  [[nodiscard]] std::uint64_t next_sequence() const { return sequence_; }
  [[nodiscard]] std::uint64_t salt() const { return header_.salt; }
  // Number of records so far, without `index` and `end`.
  [[nodiscard]] const std::vector<IndexEntry>& entries() const {
    return entries_;
  }
  [[nodiscard]] std::size_t n_rows() const { return index_.n_rows(); }
  // The bytes of the index file; empty before Seal(), and where there is none.
  [[nodiscard]] const std::vector<std::byte>& index_file() const {
    return index_file_;
  }

 private:
  // Writes the header of a record into the 64 bytes at `out`; the entry is
  // what the index is to know of it.
  IndexEntry PutHeader(RecordHeader header, std::uint64_t offset,
                       std::uint16_t call, std::uint16_t micro_batch,
                       std::byte* out);
  // Adds a record to the batch, and not to the index.
  IndexEntry AppendUnindexed(RecordType type, std::int64_t step,
                             std::uint32_t subject,
                             std::span<const std::byte> payload,
                             std::uint16_t call, std::uint16_t micro_batch);
  // Writes header, head and table of a tensor to `out`.
  void PutTensorHead(std::int64_t step, const TensorHead& head,
                     std::uint64_t payload_length, std::uint64_t offset,
                     std::byte* out);
  // Chunk `i`, encoded and appended to the batch.
  Chunk AppendChunk(std::size_t i, std::span<const std::byte> raw,
                    TensorEncoder* encoder);
  Status AppendInPieces(std::int64_t step, TensorHead head,
                        std::span<const std::byte> raw, TensorEncoder* encoder);
  // Appends zeros up to where the next record may begin.
  void PadTo(std::uint64_t offset);

  const std::uint64_t batch_bytes_;
  const std::function<void()> progress_;
  // Invariant: its length is a multiple of 64 between calls.
  ShardFile file_;
  FileHeader header_;
  std::uint64_t sequence_ = 1;  // Of the next record.

  std::vector<Chunk> chunks_;  // Memory for those of the next tensor.
  std::vector<IndexEntry> entries_;
  IndexBuilder index_;
  std::vector<std::byte> index_file_;
};

}  // namespace tdbg
