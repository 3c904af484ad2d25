#include "writer/shard_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/crc32c.h"

namespace tdbg {
namespace {

void Pad(std::vector<std::byte>* bytes) {
  const std::size_t past = bytes->size() % limits::kAlignment;
  if (past != 0) bytes->resize(bytes->size() + limits::kAlignment - past);
}

}  // namespace

Status ShardWriter::Open(FileSystem* file_system, const std::string& path,
                         const FileHeader& header) {
  header_ = header;
  sequence_ = header.first_sequence;
  Result<File> file = File::Create(file_system, path);
  if (!file.ok()) return file.status();
  file_ = std::move(file).value();
  std::array<std::byte, limits::kFileHeader> bytes{};
  EncodeFileHeader(header, bytes);
  batch_.assign(bytes.begin(), bytes.end());
  return WriteBatch();
}

void ShardWriter::PutHeader(RecordHeader header, std::uint64_t offset,
                            std::uint16_t call, std::uint16_t micro_batch,
                            std::byte* out) {
  header.sequence = sequence_++;
  EncodeRecordHeader(
      header, header_.salt,
      std::span<std::byte, limits::kRecordHeader>(out, limits::kRecordHeader));
  if (header.type == RecordType::kIndex || header.type == RecordType::kEnd) {
    return;
  }
  entries_.push_back({.header = header,
                      .call = call,
                      .micro_batch = micro_batch,
                      .offset = offset});
}

void ShardWriter::Append(RecordType type, std::int64_t step,
                         std::uint32_t subject,
                         std::span<const std::byte> payload, std::uint16_t call,
                         std::uint16_t micro_batch) {
  const std::size_t at = batch_.size();
  batch_.resize(at + limits::kRecordHeader);
  batch_.insert(batch_.end(), payload.begin(), payload.end());
  Pad(&batch_);
  RecordHeader header;
  header.type = type;
  header.step = step;
  header.payload_length = header.checked_length = payload.size();
  header.subject = subject;
  header.payload_crc = MaskedCrc32c(payload.data(), payload.size());
  PutHeader(header, batch_offset_ + at, call, micro_batch, batch_.data() + at);
}

void ShardWriter::AppendRows(std::int64_t step, std::span<const Row> rows) {
  Append(RecordType::kRows, step, 0, EncodeRows(rows));
  if (!has_rows_ || rows_step_ != step) next_position_ = 0;
  has_rows_ = true;
  rows_step_ = step;
  for (const Row& row : rows) {
    rows_.push_back({.step = step,
                     .definition = row.definition,
                     .call = row.call,
                     .micro_batch = row.micro_batch,
                     .flags = row.flags,
                     .position = next_position_++,
                     .summary = row.summary});
  }
}

Status ShardWriter::AppendTensor(std::int64_t step, TensorHead head,
                                 std::span<const std::byte> raw,
                                 TensorEncoder* encoder,
                                 const std::function<void()>& progress) {
  const std::size_t n_chunks = (raw.size() + kChunkBytes - 1) / kChunkBytes;
  head.chunk_size = kChunkBytes;
  head.raw_length = raw.size();
  head.data_offset = static_cast<std::uint32_t>(TensorDataOffset(n_chunks));
  head.chunks.resize(n_chunks);
  const std::size_t n_before = limits::kRecordHeader + head.data_offset;

  // The lengths and checksums of the chunks stand before the chunks.  Room for
  // them is left in the batch, or, when the batch cannot hold the tensor, in
  // the file.
  const bool in_pieces = IsWrittenInPieces(raw.size());
  if (in_pieces) TDBG_RETURN_IF_ERROR(WriteBatch());
  const std::uint64_t offset = length();
  const std::size_t at = batch_.size();
  if (in_pieces) {
    batch_offset_ += n_before;
  } else {
    batch_.resize(at + n_before);
  }

  RecordHeader header;
  header.type = RecordType::kTensor;
  header.step = step;
  header.payload_length = head.data_offset;
  header.checked_length = head.data_offset;
  header.subject = head.definition;
  for (std::size_t i = 0; i < n_chunks; ++i) {
    const auto chunk = raw.subspan(
        i * kChunkBytes,
        std::min<std::size_t>(kChunkBytes, raw.size() - i * kChunkBytes));
    const std::size_t chunk_at = batch_.size();
    Chunk& entry = head.chunks[i];
    batch_.resize(chunk_at + chunk.size());
    if (encoder != nullptr) {
      entry = encoder->Encode(i, std::span(batch_).subspan(chunk_at));
    } else {
      std::memcpy(batch_.data() + chunk_at, chunk.data(), chunk.size());
      entry.stored_length = static_cast<std::uint32_t>(chunk.size());
      entry.crc = MaskedCrc32c(chunk.data(), chunk.size());
    }
    batch_.resize(chunk_at + entry.stored_length);
    header.payload_length += entry.stored_length;
    if (in_pieces && batch_.size() >= kBatchBytes) {
      TDBG_RETURN_IF_ERROR(WriteBatch());
    }
    progress();
  }
  // Chunks need not end where records do: what is left is padded by length.
  const std::uint64_t end = NextRecord(offset, header.payload_length);
  batch_.resize(batch_.size() + static_cast<std::size_t>(end - length()));

  const std::vector<std::byte> table = EncodeTensorHead(head);
  header.payload_crc = MaskedCrc32c(table.data(), table.size());
  std::vector<std::byte> before(in_pieces ? n_before : 0);
  std::byte* out = in_pieces ? before.data() : batch_.data() + at;
  PutHeader(header, offset, head.call, head.micro_batch, out);
  std::memcpy(out + limits::kRecordHeader, table.data(), table.size());
  if (!in_pieces) return Status::Ok();
  TDBG_RETURN_IF_ERROR(WriteBatch());
  return file_.WriteAt(before, offset);
}

void ShardWriter::ReserveAhead() {
  if (!reserve_ || length() <= reserved_) return;
  const std::uint64_t n = std::clamp(length(), kMinReserve, kMaxReserve);
  // Only a help to the file system: where it refuses, the write itself tells.
  if (!file_.Reserve(reserved_, length() - reserved_ + n).ok()) {
    reserve_ = false;
    return;
  }
  reserved_ = length() + n;
}

Status ShardWriter::WriteBatch() {
  if (batch_.empty()) return Status::Ok();
  ReserveAhead();
  TDBG_RETURN_IF_ERROR(file_.WriteAt(batch_, batch_offset_));
  batch_offset_ += batch_.size();
  batch_.clear();
  // A batch grows with its largest record; that memory is not kept.
  if (batch_.capacity() > 4 * kBatchBytes) batch_.shrink_to_fit();
  return Status::Ok();
}

Status ShardWriter::Seal(EndReason reason) {
  End end;
  end.index_offset = length();
  end.n_records = entries_.size() + 1;
  end.reason = reason;
  for (const IndexEntry& entry : entries_) {
    const std::int64_t step = entry.header.step;
    if (step == kNoStep) continue;
    end.first_step =
        end.first_step == kNoStep ? step : std::min(end.first_step, step);
    end.last_step = std::max(end.last_step, step);
  }
  Append(RecordType::kIndex, kNoStep, 0, EncodeIndex(entries_));
  end.file_length = length() + limits::kRecordHeader + kEndBytes;
  Append(RecordType::kEnd, kNoStep, 0, EncodeEnd(end));
  TDBG_RETURN_IF_ERROR(WriteBatch());
  if (reserved_ > batch_offset_) {
    // Costs disk space when refused, and nothing else.
    (void)file_.ReleaseReserve(batch_offset_);
  }
  return Status::Ok();
}

}  // namespace tdbg
