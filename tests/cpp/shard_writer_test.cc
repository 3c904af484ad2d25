// The records of a shard as they stand in the file: large raw tensors aligned
// by pads, written in pieces, and an index and an end that count all of them.

#include "writer/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/huge_memory.h"
#include "fault_injection.h"
#include "temporary_directory.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Call;
using testing::FaultyFileSystem;
using testing::TemporaryDirectory;

constexpr std::uint64_t kPage = ShardFile::kPage;
constexpr std::uint64_t kMiB = 1U << 20;

struct Found {
  RecordHeader header;
  std::uint64_t offset = 0;
  std::span<const std::byte> payload;
};

// Walks a shard as a reader does; stops at what is not a record.
std::vector<Found> Walk(std::span<const std::byte> file) {
  std::vector<Found> found;
  const auto header = DecodeFileHeader(file.first(limits::kFileHeader));
  EXPECT_OK(header);
  std::uint64_t offset = limits::kFileHeader;
  while (offset + limits::kRecordHeader <= file.size()) {
    const auto record = DecodeRecordHeader(
        file.subspan(offset, limits::kRecordHeader), header.value().salt);
    EXPECT_OK(record);
    if (!record.ok()) break;
    const RecordHeader& at = record.value();
    const std::uint64_t start = offset + limits::kRecordHeader;
    EXPECT_LE(start + at.payload_length, file.size());
    if (start + at.payload_length > file.size()) break;
    const auto payload = file.subspan(start, at.payload_length);
    EXPECT_EQ(MaskedCrc32c(payload.data(), at.checked_length), at.payload_crc);
    found.push_back({.header = at, .offset = offset, .payload = payload});
    offset = NextRecord(offset, at.payload_length);
  }
  EXPECT_EQ(offset, file.size());
  return found;
}

// Values at `past` bytes beyond a page.
class Source {
 public:
  Source(std::uint64_t past, std::uint64_t n)
      : memory_(HugeMemory::Create(past + n + 1).value()),
        bytes_(memory_.data() + past, n) {
    for (std::uint64_t i = 0; i < n; i += 8) {
      const std::uint64_t word = (i + past) * 0x9e3779b97f4a7c15U;
      std::memcpy(bytes_.data() + i, &word, std::min<std::uint64_t>(8, n - i));
    }
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  HugeMemory memory_;
  std::span<std::byte> bytes_;
};

struct Shard {
  explicit Shard(TemporaryDirectory where) : directory(std::move(where)) {
    EXPECT_OK(writer.Open(&disk, path, {.salt = 77, .first_sequence = 5}));
  }
  // What a shard log does for a raw tensor.
  void Add(std::span<const std::byte> raw) {
    const bool in_pieces = writer.IsWrittenInPieces(raw.size(), false);
    if (in_pieces) {
      writer.Align(raw);
      EXPECT_OK(writer.WriteBatch());
    }
    EXPECT_OK(
        writer.AppendTensor(3, {.definition = 1, .chunks = {}}, raw, nullptr));
    EXPECT_EQ(writer.length() % 64, 0U);
    if (in_pieces) EXPECT_EQ(writer.length(), writer.written());
  }
  [[nodiscard]] std::string Contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/000001.tds";
  FaultyFileSystem disk;
  int n_progress = 0;
  ShardWriter writer{ShardWriter::kMinBatch, [this] { ++n_progress; }};
};

void CheckTensor(const Found& found, std::span<const std::byte> raw) {
  const auto head = DecodeTensorHead(
      found.payload.first(found.header.checked_length), found.payload.size());
  EXPECT_OK(head);
  std::vector<std::byte> values(raw.size());
  EXPECT_OK(DecodeTensor(head.value(),
                         found.payload.subspan(head.value().data_offset), 1, {},
                         values));
  EXPECT_TRUE(std::ranges::equal(values, raw));
}

TDBG_TEST(LargeRawTensorsAreAlignedByPadsAndNotCopied) {
  for (const bool on_disk : {false, true}) {
    Shard shard(on_disk ? TemporaryDirectory::OnDisk() : TemporaryDirectory());
    std::vector<Source> sources;
    // Odd sizes, any place within a page, and one in many pieces.
    for (const std::uint64_t n :
         {2 * kMiB, 2 * kMiB + 1, 3 * kMiB - 63, 5 * kMiB + 4097,
          2 * kMiB + 4095, 100UL, 0UL, 2 * kMiB - 1, 70 * kMiB + 5}) {
      sources.emplace_back(64 * (n % 61), n);
      shard.writer.Append(RecordType::kEvent, 3, 6,
                          std::vector<std::byte>(n % 900 + 24));
      shard.Add(sources.back().bytes());
    }
    EXPECT_OK(shard.writer.Seal(EndReason::kClosed));
    EXPECT_OK(shard.writer.Close());

    const std::string contents = shard.Contents();
    const auto found = Walk(std::as_bytes(std::span(contents)));
    std::map<RecordType, std::uint64_t> n_of;
    std::size_t n_tensors = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const Found& at = found[i];
      ++n_of[at.header.type];
      EXPECT_EQ(at.header.sequence, 5 + i);
      if (at.header.type == RecordType::kPad) {
        EXPECT_LT(at.payload.size(), kPage);
        for (const std::byte zero : at.payload) EXPECT_EQ(zero, std::byte{0});
      }
      if (at.header.type != RecordType::kTensor) continue;
      const auto raw = sources[n_tensors++].bytes();
      CheckTensor(at, raw);
      if (raw.size() < ShardWriter::kMinUncopied) continue;
      const std::uint64_t in_file =
          at.offset + limits::kRecordHeader + at.header.checked_length;
      EXPECT_EQ(in_file % kPage,
                reinterpret_cast<std::uintptr_t>(raw.data()) % kPage);
    }
    EXPECT_EQ(n_tensors, sources.size());
    EXPECT_EQ(n_of[RecordType::kEvent], sources.size());
    EXPECT_GE(n_of[RecordType::kPad], 4U);
    EXPECT_EQ(n_of[RecordType::kIndex], 1U);
    const auto end = DecodeEnd(found.back().payload);
    EXPECT_OK(end);
    EXPECT_EQ(end.value().n_records, found.size() - 1);
    EXPECT_EQ(end.value().file_length, contents.size());
    const auto index = DecodeIndex(found[found.size() - 2].payload);
    EXPECT_OK(index);
    EXPECT_EQ(index.value().size(), found.size() - 2);
    for (std::size_t i = 0; i < index.value().size(); ++i) {
      EXPECT_EQ(index.value()[i].offset, found[i].offset);
      EXPECT_EQ(index.value()[i].header.sequence, found[i].header.sequence);
    }
    // One call for each of the tensors at least, and the large one in pieces
    // (of which the first are direct even if the disk is slow).
    EXPECT_GE(shard.disk.calls()[Call::kPwriteDirect], 5U + 2U);
    EXPECT_GE(shard.n_progress, 280);  // Each chunk of 70 MiB.
  }
}

// A reader that looks while a large tensor is written sees the end of the shard
// where it begins.
TDBG_TEST(TheHeadOfALargeTensorIsWrittenLast) {
  const Source source(128, 9 * kMiB);
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/000001.tds";
  std::uint64_t at = 0;
  std::uint64_t n_looks = 0;
  std::uint64_t longest = 0;
  ShardWriter writer(ShardWriter::kMinBatch, [&] {
    if (at == 0) return;
    std::ifstream file(path, std::ios::binary);
    const std::string now(std::istreambuf_iterator<char>(file), {});
    ++n_looks;
    longest = std::max<std::uint64_t>(longest, now.size());
    if (now.size() <= at) return;
    const auto bytes = std::as_bytes(std::span(now)).subspan(at);
    const std::size_t n = std::min(bytes.size(), limits::kRecordHeader);
    EXPECT_FALSE(DecodeRecordHeader(bytes.first(n), 77).ok());
  });
  EXPECT_OK(writer.Open(FileSystem::Posix(), path, {.salt = 77}));
  writer.Align(source.bytes());
  EXPECT_OK(writer.WriteBatch());
  at = writer.length();
  EXPECT_OK(writer.AppendTensor(0, {.definition = 1, .chunks = {}},
                                source.bytes(), nullptr));
  EXPECT_GE(n_looks, 36U);
  EXPECT_GE(longest, at + 9 * kMiB);
  EXPECT_OK(writer.Close());
}

TDBG_TEST(NothingIsPaddedForWritesThatAreNotDirect) {
  Shard shard{TemporaryDirectory()};
  const Source source(64, 3 * kMiB);
  shard.disk.SetPlan({.first = 1,
                      .for_ever = true,
                      .error = EINVAL,
                      .only = {Call::kSetDirect}});
  for (int i = 0; i < 4; ++i) {
    shard.writer.Append(RecordType::kEvent, 3, 6, std::vector<std::byte>(24));
    shard.Add(source.bytes());
  }
  EXPECT_OK(shard.writer.Seal(EndReason::kClosed));
  const std::string contents = shard.Contents();
  std::uint64_t n_pads = 0;
  std::uint64_t n_tensors = 0;
  for (const Found& found : Walk(std::as_bytes(std::span(contents)))) {
    if (found.header.type == RecordType::kPad) ++n_pads;
    if (found.header.type != RecordType::kTensor) continue;
    ++n_tensors;
    CheckTensor(found, source.bytes());
  }
  EXPECT_EQ(n_tensors, 4U);
  EXPECT_LE(n_pads, 1U);  // Before it was known.
  EXPECT_EQ(shard.disk.n_faults(), 1U);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
