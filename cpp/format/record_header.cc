#include <cstring>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/coding.h"
#include "base/crc32c.h"
#include "format/record.h"

namespace tdbg {
namespace {

// "\x89TDS\r\n\x1a\n": a first byte above 127 and both line ends, so that a
// transfer that took the file for text is noticed.
constexpr std::array<unsigned char, 8> kFileMagic = {0x89, 'T',  'D',  'S',
                                                     '\r', '\n', 0x1a, '\n'};
constexpr std::uint32_t kRecordMagic = 0x31524454;  // "TDR1"
constexpr std::uint16_t kFileVersion = 1;

bool AllZero(std::span<const std::byte> bytes) {
  for (const std::byte b : bytes) {
    if (b != std::byte{0}) return false;
  }
  return true;
}

Uuid LoadUuid(const std::byte* p) {
  Uuid uuid;
  std::memcpy(uuid.data(), p, uuid.size());
  return uuid;
}

std::string Expected(const char* what, std::uint64_t expected,
                     std::uint64_t found) {
  return std::string(what) + " should be " + std::to_string(expected) +
         " and is " + std::to_string(found);
}

}  // namespace

void EncodeFileHeader(const FileHeader& header, std::span<std::byte, 128> out) {
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  std::memcpy(p, kFileMagic.data(), kFileMagic.size());
  Store(p + 8, kFileVersion);
  Store(p + 10, static_cast<std::uint16_t>(limits::kFileHeader));
  Store(p + 12, header.compatible_features);
  Store(p + 16, header.incompatible_features);
  Store(p + 20, static_cast<std::uint32_t>(header.role));
  std::memcpy(p + 24, header.run.data(), header.run.size());
  std::memcpy(p + 40, header.attempt.data(), header.attempt.size());
  Store(p + 56, header.attempt_ordinal);
  Store(p + 60, header.rank);
  Store(p + 64, header.world_size);
  Store(p + 68, header.generation);
  Store(p + 72, header.shard_number);
  Store(p + 80, header.salt);
  Store(p + 88, header.created_ns);
  Store(p + 96, header.first_sequence);
  Store(p + 124, MaskedCrc32c(p, 124));
}

Result<FileHeader> DecodeFileHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < limits::kFileHeader) {
    return Status::Corruption("the file is shorter than a file header", 0);
  }
  const std::byte* p = bytes.data();
  if (std::memcmp(p, kFileMagic.data(), kFileMagic.size()) != 0) {
    return Status::Corruption("no shard: the magic is not there", 0);
  }
  // The checksum comes before the version: a damaged file must not pass for
  // one of a later version.
  if (Load<std::uint32_t>(p + 124) != MaskedCrc32c(p, 124)) {
    return Status::Corruption("checksum of the file header", 0);
  }
  if (const auto version = Load<std::uint16_t>(p + 8);
      version != kFileVersion) {
    return Status::Unsupported(
        Expected("format version", kFileVersion, version));
  }
  if (const auto size = Load<std::uint16_t>(p + 10);
      size != limits::kFileHeader) {
    return Status::Corruption(
        Expected("file header size", limits::kFileHeader, size), 0);
  }
  FileHeader header;
  header.compatible_features = Load<std::uint32_t>(p + 12);
  header.incompatible_features = Load<std::uint32_t>(p + 16);
  if (header.incompatible_features != 0) {
    return Status::Unsupported("incompatible features " +
                               std::to_string(header.incompatible_features) +
                               ": the shard was written by a later tdbg");
  }
  const auto role = Load<std::uint32_t>(p + 20);
  if (role < 1 || role > 3) {
    return Status::Corruption("role " + std::to_string(role), 0);
  }
  header.role = static_cast<WriterRole>(role);
  header.run = LoadUuid(p + 24);
  header.attempt = LoadUuid(p + 40);
  header.attempt_ordinal = Load<std::uint32_t>(p + 56);
  header.rank = Load<std::uint32_t>(p + 60);
  header.world_size = Load<std::uint32_t>(p + 64);
  header.generation = Load<std::uint32_t>(p + 68);
  header.shard_number = Load<std::uint32_t>(p + 72);
  header.salt = Load<std::uint64_t>(p + 80);
  header.created_ns = Load<std::int64_t>(p + 88);
  header.first_sequence = Load<std::uint64_t>(p + 96);
  if (header.first_sequence == 0) {
    return Status::Corruption("sequences start at 1, not at 0", 0);
  }
  return header;
}

std::uint64_t PayloadLimit(RecordType type) {
  switch (type) {
    case RecordType::kDefinition:
      return limits::kDefinition;
    case RecordType::kEvent:
      return limits::kEvent;
    case RecordType::kPad:
    case RecordType::kRows:
    case RecordType::kScalar:
    case RecordType::kSpan:
    case RecordType::kHistogram:
    case RecordType::kSamples:
      return limits::kTable;
    case RecordType::kStep:
    case RecordType::kGap:
    case RecordType::kEnd:
      return limits::kSmall;
    case RecordType::kIndex:
      return limits::kIndex;
    case RecordType::kTensor:
      break;
  }
  return limits::kRecord;  // Tensors, and types that we do not know.
}

Status CheckLengths(const RecordHeader& header) {
  if (header.payload_length > PayloadLimit(header.type)) {
    return Status::LimitExceeded(
        "a payload of " + std::to_string(header.payload_length) +
        " bytes is above the limit of " +
        std::to_string(PayloadLimit(header.type)) + " for record type " +
        std::to_string(static_cast<unsigned>(header.type)));
  }
  if (header.type != RecordType::kTensor) {
    if (header.checked_length != header.payload_length) {
      return Status::Corruption(
          Expected("checked length", header.payload_length,
                   header.checked_length),
          0);
    }
    return Status::Ok();
  }
  if (header.checked_length > header.payload_length) {
    return Status::Corruption("checked length " +
                                  std::to_string(header.checked_length) +
                                  " is more than the payload's " +
                                  std::to_string(header.payload_length),
                              0);
  }
  if (header.checked_length > limits::kTensorTable) {
    return Status::LimitExceeded(
        "a chunk table of " + std::to_string(header.checked_length) +
        " bytes is above the limit of " + std::to_string(limits::kTensorTable));
  }
  return Status::Ok();
}

void EncodeRecordHeader(const RecordHeader& header, std::uint64_t salt,
                        std::span<std::byte, 64> out) {
  std::memset(out.data(), 0, out.size());
  std::byte* p = out.data();
  Store(p, kRecordMagic);
  Store(p + 4, static_cast<std::uint16_t>(header.type));
  Store(p + 8, salt);
  Store(p + 16, header.sequence);
  Store(p + 24, header.step);
  Store(p + 32, header.payload_length);
  Store(p + 40, header.checked_length);
  Store(p + 48, header.subject);
  Store(p + 52, header.payload_crc);
  Store(p + 60, MaskedCrc32c(p, 60));
}

bool MayBeRecord(const std::byte* bytes, std::uint64_t salt) {
  return Load<std::uint32_t>(bytes) == kRecordMagic &&
         Load<std::uint64_t>(bytes + 8) == salt;
}

Result<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes,
                                        std::uint64_t salt) {
  if (bytes.size() < limits::kRecordHeader) {
    return Status::Corruption("the file ends within a record header", 0);
  }
  const std::byte* p = bytes.data();
  if (Load<std::uint32_t>(p) != kRecordMagic) {
    return Status::Corruption("no record: the magic is not there", 0);
  }
  if (Load<std::uint32_t>(p + 60) != MaskedCrc32c(p, 60)) {
    return Status::Corruption("checksum of the record header", 0);
  }
  if (Load<std::uint64_t>(p + 8) != salt) {
    return Status::Corruption("the record belongs to another shard", 0);
  }
  RecordHeader header;
  header.type = static_cast<RecordType>(Load<std::uint16_t>(p + 4));
  header.sequence = Load<std::uint64_t>(p + 16);
  header.step = Load<std::int64_t>(p + 24);
  header.payload_length = Load<std::uint64_t>(p + 32);
  header.checked_length = Load<std::uint64_t>(p + 40);
  header.subject = Load<std::uint32_t>(p + 48);
  header.payload_crc = Load<std::uint32_t>(p + 52);
  if (static_cast<std::uint16_t>(header.type) == 0) {
    return Status::Corruption("record type 0", 0);
  }
  if (!AllZero(bytes.subspan(6, 2)) || !AllZero(bytes.subspan(56, 4))) {
    return Status::Corruption("reserved bytes of the record header are not 0",
                              0);
  }
  TDBG_RETURN_IF_ERROR(CheckLengths(header));
  return header;
}

std::uint64_t NextRecord(std::uint64_t offset, std::uint64_t payload_length) {
  TDBG_DCHECK(payload_length <= limits::kRecord);
  const std::uint64_t end = offset + limits::kRecordHeader + payload_length;
  return (end + limits::kAlignment - 1) & ~(limits::kAlignment - 1);
}

void AppendRecord(RecordHeader header, std::uint64_t salt,
                  std::span<const std::byte> payload,
                  std::vector<std::byte>* out) {
  header.payload_length = payload.size();
  header.checked_length = payload.size();
  header.payload_crc = MaskedCrc32c(payload.data(), payload.size());
  const std::size_t at = out->size();
  out->resize(at + limits::kRecordHeader);
  EncodeRecordHeader(header, salt,
                     std::span<std::byte, 64>(out->data() + at, 64));
  out->insert(out->end(), payload.begin(), payload.end());
  ByteWriter(out).Align(limits::kAlignment);
}

}  // namespace tdbg
