// ShardWriter appends records to one shard file.
//
// Implements docs/format.md, "A shard" and "Writing".  Records are encoded into
// a private batch and written with pwrite; nothing is stored through a map, and
// nothing that a reader may have seen is written again.
//
// Thread safety: none; the writer thread owns it.
//
// Errors: after the first one the shard must be abandoned: nothing more may be
// called but the getters and the destructor.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "format/index.h"
#include "format/record.h"
#include "format/tensor_record.h"
#include "writer/tensor_encoder.h"

namespace tdbg {

class ShardWriter {
 public:
  // A batch is written when it has this size, if not earlier.
  static constexpr std::size_t kBatchBytes = 1U << 20;
  // How far ahead of the data blocks are reserved: as much as is there already,
  // within these bounds, so that a small shard reserves little.
  static constexpr std::uint64_t kMinReserve = 1ULL << 20;
  static constexpr std::uint64_t kMaxReserve = 64ULL << 20;

  // Creates the file at `path` and writes its header.
  Status Open(FileSystem* file_system, const std::string& path,
              const FileHeader& header);

  // Adds a record to the batch.  `call` and `micro_batch` go to the index.
  void Append(RecordType type, std::int64_t step, std::uint32_t subject,
              std::span<const std::byte> payload, std::uint16_t call = 0,
              std::uint16_t micro_batch = 0);
  void AppendRows(std::int64_t step, std::span<const Row> rows);

  // Adds a tensor, its chunks as `encoder` makes them or, without one, raw.  A
  // large one is written in pieces as it is encoded, after the batch and its
  // own header last; `progress` is called after each chunk.
  Status AppendTensor(std::int64_t step, TensorHead head,
                      std::span<const std::byte> raw, TensorEncoder* encoder,
                      const std::function<void()>& progress);

  [[nodiscard]] static bool IsWrittenInPieces(std::size_t n_raw) {
    return n_raw > kBatchBytes;
  }

  // Writes the batch; its records are then in the file.
  Status WriteBatch();
  // Makes all that was written outlive a power failure.
  Status Sync() { return file_.SyncData(); }

  // Writes the batch, `index` and `end`, and gives the reserve back.
  Status Seal(EndReason reason);
  Status Close() { return file_.Close(); }

  // With `on`, blocks are reserved ahead of the data.
  void set_reserve(bool on) { reserve_ = on; }

  [[nodiscard]] bool is_open() const { return file_.is_open(); }
  // Bytes in the file, and with those of the batch.
  [[nodiscard]] std::uint64_t written() const { return batch_offset_; }
  [[nodiscard]] std::uint64_t length() const {
    return batch_offset_ + batch_.size();
  }
  [[nodiscard]] std::uint64_t next_sequence() const { return sequence_; }
  [[nodiscard]] std::uint64_t salt() const { return header_.salt; }
  // Of all records so far, but `index` and `end`.
  [[nodiscard]] const std::vector<IndexEntry>& entries() const {
    return entries_;
  }
  // All rows so far, for the columns of the index.
  [[nodiscard]] std::vector<ColumnRow>* rows() { return &rows_; }

 private:
  // Writes the header of a record into the 64 bytes at `out`, and its entry.
  void PutHeader(RecordHeader header, std::uint64_t offset, std::uint16_t call,
                 std::uint16_t micro_batch, std::byte* out);
  void ReserveAhead();

  File file_;
  FileHeader header_;
  bool reserve_ = true;

  // Invariant: batch_ is to be written at batch_offset_, and its size is a
  // multiple of 64 between calls.
  std::vector<std::byte> batch_;
  std::uint64_t batch_offset_ = 0;
  std::uint64_t reserved_ = 0;  // Blocks are reserved up to here.
  std::uint64_t sequence_ = 1;  // Of the next record.

  std::vector<IndexEntry> entries_;
  std::vector<ColumnRow> rows_;
  // Rows get their position from the `rows` record with which a step began.
  std::int64_t rows_step_ = kNoStep;
  std::uint32_t next_position_ = 0;
  bool has_rows_ = false;
};

}  // namespace tdbg
