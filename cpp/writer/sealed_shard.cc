#include "writer/sealed_shard.h"

#include <array>
#include <utility>

#include "base/crc32c.h"

namespace tdbg {

Result<SealedShard> SealedShard::Open(FileSystem* file_system,
                                      std::string path) {
  auto file = SourceFile::Open(file_system, std::move(path));
  if (!file.ok()) return file.status();
  SealedShard shard(std::move(file).value());
  TDBG_RETURN_IF_ERROR(shard.ReadEnd());
  TDBG_RETURN_IF_ERROR(shard.ReadIndex());
  return shard;
}

Status SealedShard::ReadEnd() {
  const auto open = [this] {
    return Status::NotFound(file_.path() + ": is not sealed");
  };
  constexpr std::uint64_t kTail = limits::kRecordHeader + kEndBytes;
  if (file_.size() < limits::kFileHeader + kTail) return open();
  std::array<std::byte, limits::kFileHeader> first{};
  TDBG_RETURN_IF_ERROR(file_.ReadAt(0, first));
  const auto header = DecodeFileHeader(first);
  if (!header.ok()) return header.status();
  header_ = header.value();
  std::array<std::byte, kTail> last{};
  TDBG_RETURN_IF_ERROR(file_.ReadAt(file_.size() - kTail, last));
  const std::span<const std::byte> tail(last);
  const auto record =
      DecodeRecordHeader(tail.first(limits::kRecordHeader), header_.salt);
  if (!record.ok() || record.value().type != RecordType::kEnd) return open();
  const auto payload = tail.subspan(limits::kRecordHeader);
  if (record.value().payload_crc !=
      MaskedCrc32c(payload.data(), payload.size())) {
    return open();
  }
  const auto end = DecodeEnd(payload);
  if (!end.ok()) return end.status();
  if (end.value().file_length != file_.size()) return open();
  end_ = end.value();
  end_sequence_ = record.value().sequence + 1;
  return Status::Ok();
}

Status SealedShard::ReadIndex() {
  if (end_.index_offset < limits::kFileHeader ||
      end_.index_offset > file_.size() - limits::kRecordHeader) {
    return Status::Corruption(file_.path() + ": has no index record", 0);
  }
  std::array<std::byte, limits::kRecordHeader> bytes{};
  TDBG_RETURN_IF_ERROR(file_.ReadAt(end_.index_offset, bytes));
  const auto header = DecodeRecordHeader(bytes, header_.salt);
  if (!header.ok()) return header.status();
  const auto payload =
      Read({.header = header.value(), .offset = end_.index_offset});
  if (!payload.ok()) return payload.status();
  auto entries = DecodeIndex(payload.value());
  if (!entries.ok()) return entries.status();
  entries_ = std::move(entries).value();
  return Status::Ok();
}

Result<std::vector<std::byte>> SealedShard::Read(
    const IndexEntry& entry) const {
  TDBG_RETURN_IF_ERROR(CheckLengths(entry.header));
  if (entry.offset > file_.size() ||
      entry.header.checked_length > file_.size() - entry.offset) {
    return Status::Corruption(file_.path() + ": a record is not there",
                              entry.offset);
  }
  std::vector<std::byte> payload(entry.header.checked_length);
  TDBG_RETURN_IF_ERROR(
      file_.ReadAt(entry.offset + limits::kRecordHeader, payload));
  if (MaskedCrc32c(payload.data(), payload.size()) !=
      entry.header.payload_crc) {
    return Status::Corruption(file_.path() + ": a record is damaged",
                              entry.offset);
  }
  return payload;
}

Status SealedShard::ReadData(const IndexEntry& entry, std::uint64_t offset,
                             std::span<std::byte> out) const {
  return file_.ReadAt(entry.offset + limits::kRecordHeader +
                          entry.header.checked_length + offset,
                      out);
}

}  // namespace tdbg
