#include "writer/index_writer.h"

#include <array>
#include <utility>

namespace tdbg {

Status IndexWriter::Open(FileSystem* file_system, const std::string& path,
                         const IndexHeader& header) {
  file_system_ = file_system;
  header_ = header;
  n_bytes_ = n_entries_ = 0;
  Result<File> file = File::Create(file_system, path);
  if (!file.ok()) return file.status();
  file_ = std::move(file).value();
  std::array<std::byte, 64> bytes{};
  EncodeIndexHeader(header, bytes);
  return Write(bytes);
}

Status IndexWriter::Append(std::span<const IndexEntry> entries) {
  if (!is_open() || entries.empty()) return Status::Ok();
  std::vector<std::byte> bytes(entries.size() * kIndexEntryBytes);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EncodeIndexEntry(
        entries[i], std::span<std::byte, kIndexEntryBytes>(
                        bytes.data() + i * kIndexEntryBytes, kIndexEntryBytes));
  }
  n_entries_ += entries.size();
  return Write(bytes);
}

Status IndexWriter::Finish(std::vector<ColumnRow>* rows,
                           std::uint64_t shard_length) {
  if (!is_open()) return Status::Ok();
  TDBG_RETURN_IF_ERROR(Write(
      EncodeColumns(rows, header_.salt, n_entries_, n_bytes_, shard_length)));
  return file_.Close();
}

void IndexWriter::GiveUp() {
  if (!is_open()) return;
  (void)file_.Close();
  (void)RemoveFile(file_system_, file_.path());
}

Status IndexWriter::Write(std::span<const std::byte> bytes) {
  const Status status = file_.WriteAt(bytes, n_bytes_);
  if (!status.ok()) {
    GiveUp();
    return status;
  }
  n_bytes_ += bytes.size();
  return status;
}

}  // namespace tdbg
