#include "writer/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"

namespace tdbg {
namespace {

std::uint64_t ChunkCount(std::uint64_t n_raw) {
  return (n_raw + kChunkBytes - 1) / kChunkBytes;
}

// What stands before the data of a tensor.
std::uint64_t BytesBefore(std::uint64_t n_chunks) {
  return limits::kRecordHeader + TensorDataOffset(n_chunks);
}

std::span<const std::byte> ChunkOf(std::span<const std::byte> raw,
                                   std::size_t i) {
  const std::size_t from = i * kChunkBytes;
  return raw.subspan(from,
                     std::min<std::size_t>(kChunkBytes, raw.size() - from));
}

}  // namespace

Status ShardWriter::Open(FileSystem* file_system, const std::string& path,
                         const FileHeader& header) {
  header_ = header;
  sequence_ = header.first_sequence;
  index_ = IndexBuilder(header.salt, header.shard_number);
  TDBG_RETURN_IF_ERROR(file_.Create(file_system, path));
  EncodeFileHeader(header,
                   std::span<std::byte, limits::kFileHeader>(
                       file_.Extend(limits::kFileHeader), limits::kFileHeader));
  return WriteBatch();
}

void ShardWriter::PadTo(std::uint64_t offset) {
  const std::uint64_t n = offset - length();
  if (n != 0) std::memset(file_.Extend(n), 0, n);
}

IndexEntry ShardWriter::PutHeader(RecordHeader header, std::uint64_t offset,
                                  std::uint16_t call, std::uint16_t micro_batch,
                                  std::byte* out) {
  header.sequence = sequence_++;
  EncodeRecordHeader(
      header, header_.salt,
      std::span<std::byte, limits::kRecordHeader>(out, limits::kRecordHeader));
  const IndexEntry entry{.header = header,
                         .call = call,
                         .micro_batch = micro_batch,
                         .offset = offset};
  if (header.type != RecordType::kIndex && header.type != RecordType::kEnd) {
    entries_.push_back(entry);
  }
  return entry;
}

void ShardWriter::Append(RecordType type, std::int64_t step,
                         std::uint32_t subject,
                         std::span<const std::byte> payload, std::uint16_t call,
                         std::uint16_t micro_batch) {
  index_.Add(AppendUnindexed(type, step, subject, payload, call, micro_batch),
             payload);
}

IndexEntry ShardWriter::AppendUnindexed(RecordType type, std::int64_t step,
                                        std::uint32_t subject,
                                        std::span<const std::byte> payload,
                                        std::uint16_t call,
                                        std::uint16_t micro_batch) {
  const std::uint64_t offset = length();
  std::byte* out = file_.Extend(limits::kRecordHeader + payload.size());
  if (!payload.empty()) {
    std::memcpy(out + limits::kRecordHeader, payload.data(), payload.size());
  }
  PadTo(NextRecord(offset, payload.size()));
  RecordHeader header;
  header.type = type;
  header.step = step;
  header.payload_length = header.checked_length = payload.size();
  header.subject = subject;
  header.payload_crc = MaskedCrc32c(payload.data(), payload.size());
  return PutHeader(header, offset, call, micro_batch, file_.At(offset));
}

void ShardWriter::AppendRows(std::int64_t step, std::span<const Row> rows) {
  index_.AddRows(
      AppendUnindexed(RecordType::kRows, step, 0, EncodeRows(rows), 0, 0),
      rows);
}

// --- Tensors -----------------------------------------------------------------

Status ShardWriter::AppendTensor(std::int64_t step, TensorHead head,
                                 std::span<const std::byte> raw,
                                 TensorEncoder* encoder) {
  const std::uint64_t n_chunks = ChunkCount(raw.size());
  head.chunk_size = kChunkBytes;
  head.raw_length = raw.size();
  head.data_offset = static_cast<std::uint32_t>(TensorDataOffset(n_chunks));
  head.chunks = std::exchange(chunks_, {});
  head.chunks.assign(n_chunks, {});
  if (IsWrittenInPieces(raw.size(), encoder != nullptr)) {
    return AppendInPieces(step, std::move(head), raw, encoder);
  }
  // The lengths and checksums of the chunks stand before the chunks: room for
  // them is left.
  const std::uint64_t offset = length();
  const std::uint64_t n_before = BytesBefore(n_chunks);
  file_.Extend(n_before);
  for (std::size_t i = 0; i < n_chunks; ++i) {
    head.chunks[i] = AppendChunk(i, raw, encoder);
  }
  const std::uint64_t n_payload = length() - offset - limits::kRecordHeader;
  PadTo(NextRecord(offset, n_payload));
  PutTensorHead(step, head, n_payload, offset, file_.At(offset));
  chunks_ = std::move(head.chunks);
  return Status::Ok();
}

Status ShardWriter::AppendInPieces(std::int64_t step, TensorHead head,
                                   std::span<const std::byte> raw,
                                   TensorEncoder* encoder) {
  const std::uint64_t offset = length();
  const std::uint64_t n_before = BytesBefore(head.chunks.size());
  file_.Skip(n_before);
  for (std::size_t i = 0; i < head.chunks.size(); ++i) {
    if (encoder != nullptr) {
      head.chunks[i] = AppendChunk(i, raw, encoder);
      if (batch_is_full()) TDBG_RETURN_IF_ERROR(file_.WritePages());
    } else {
      const auto chunk = ChunkOf(raw, i);
      head.chunks[i].stored_length = static_cast<std::uint32_t>(chunk.size());
      head.chunks[i].crc = MaskedCrc32c(chunk.data(), chunk.size());
    }
    progress_();
  }
  if (encoder == nullptr) TDBG_RETURN_IF_ERROR(file_.WriteFrom(raw));
  const std::uint64_t n_payload = length() - offset - limits::kRecordHeader;
  PadTo(NextRecord(offset, n_payload));
  TDBG_RETURN_IF_ERROR(WriteBatch());
  std::vector<std::byte> before(n_before);
  PutTensorHead(step, head, n_payload, offset, before.data());
  return file_.Fill(before, offset);
}

Status ShardWriter::AppendStoredTensor(std::int64_t step,
                                       const TensorHead& head,
                                       std::uint64_t n_data,
                                       const ReadData& read) {
  const std::uint64_t n_before = BytesBefore(head.chunks.size());
  const std::uint64_t n_payload = head.data_offset + n_data;
  TDBG_RETURN_IF_ERROR(WriteBatch());
  const std::uint64_t offset = length();
  file_.Skip(n_before);
  for (std::uint64_t done = 0; done < n_data;) {
    const std::uint64_t n = std::min(n_data - done, kMinBatch);
    TDBG_RETURN_IF_ERROR(read(done, {file_.Extend(n), n}));
    if (batch_is_full()) TDBG_RETURN_IF_ERROR(file_.WritePages());
    done += n;
  }
  PadTo(NextRecord(offset, n_payload));
  TDBG_RETURN_IF_ERROR(WriteBatch());
  std::vector<std::byte> before(n_before);
  PutTensorHead(step, head, n_payload, offset, before.data());
  return file_.Fill(before, offset);
}

Chunk ShardWriter::AppendChunk(std::size_t i, std::span<const std::byte> raw,
                               TensorEncoder* encoder) {
  const auto chunk = ChunkOf(raw, i);
  std::byte* out = file_.Extend(chunk.size());
  if (encoder != nullptr) {
    const Chunk entry = encoder->Encode(i, {out, chunk.size()});
    file_.Shrink(chunk.size() - entry.stored_length);
    progress_();
    return entry;
  }
  std::memcpy(out, chunk.data(), chunk.size());
  // Of the copy, which is in the cache.
  return {.stored_length = static_cast<std::uint32_t>(chunk.size()),
          .crc = MaskedCrc32c(out, chunk.size())};
}

void ShardWriter::PutTensorHead(std::int64_t step, const TensorHead& head,
                                std::uint64_t payload_length,
                                std::uint64_t offset, std::byte* out) {
  const std::span<std::byte> table(out + limits::kRecordHeader,
                                   head.data_offset);
  EncodeTensorHead(head, table);
  RecordHeader header;
  header.type = RecordType::kTensor;
  header.step = step;
  header.payload_length = payload_length;
  header.checked_length = head.data_offset;
  header.subject = head.definition;
  header.payload_crc = MaskedCrc32c(table.data(), table.size());
  index_.Add(PutHeader(header, offset, head.call, head.micro_batch, out),
             table);
}

void ShardWriter::Align(std::span<const std::byte> raw) {
  if (!file_.can_write_direct()) return;
  const auto in_memory = reinterpret_cast<std::uintptr_t>(raw.data());
  const std::uint64_t in_file = length() + BytesBefore(ChunkCount(raw.size()));
  const std::uint64_t n = (in_memory - in_file) % ShardFile::kPage;
  // Nothing helps memory that is not aligned as records are.
  if (n == 0 || n % limits::kAlignment != 0) return;
  const std::vector<std::byte> zeros(n - limits::kRecordHeader);
  Append(RecordType::kPad, kNoStep, 0, zeros);
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
  progress_();
  end.file_length = length() + limits::kRecordHeader + kEndBytes;
  if (index_.is_complete()) {
    IndexBuilder::File index = index_.Finish(end.n_records, end.file_length);
    index_file_ = std::move(index.bytes);
    end.index_crc = index.directory_crc;
    progress_();
  }
  Append(RecordType::kEnd, kNoStep, 0, EncodeEnd(end));
  TDBG_RETURN_IF_ERROR(WriteBatch());
  file_.ReleaseReserve();
  return Status::Ok();
}

}  // namespace tdbg
