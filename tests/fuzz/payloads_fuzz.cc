// The payload of a record: the first byte says of which type.
//
// Promises: what was decoded and is encoded again decodes to the same.

#include "complete_shard.h"
#include "format/index.h"
#include "format/record.h"
#include "format/tensor_record.h"
#include "fuzz.h"

namespace tdbg::fuzz {

std::vector<Bytes> Seeds() {
  const testing::ShardBuilder shard = testing::CompleteShard();
  std::vector<Bytes> seeds;
  for (const testing::PlacedRecord& record : shard.records()) {
    const auto payload = std::span(shard.bytes())
                             .subspan(record.offset + limits::kRecordHeader,
                                      record.header.payload_length);
    Bytes seed{static_cast<std::byte>(record.header.type)};
    seed.insert(seed.end(), payload.begin(), payload.end());
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

namespace {

// Decodes, encodes, decodes and encodes: the two encodings are the same.
template <typename Decode, typename Encode>
void GoAround(std::span<const std::byte> payload, Decode decode,
              Encode encode) {
  const auto decoded = decode(payload);
  if (!decoded.ok()) return;
  const Bytes encoded = encode(decoded.value());
  const auto again = decode(encoded);
  Expect(again.ok(), "what was encoded can be decoded");
  Expect(encode(again.value()) == encoded, "and is the same");
}

void AskDefinition(std::span<const std::byte> payload) {
  GoAround(payload, DecodeDefinition, EncodeDefinition);
  const auto definition = DecodeDefinition(payload);
  if (!definition.ok()) return;
  const auto length = RawLength(definition.value());
  Expect(!length.ok() || length.value() <= 1ULL << 62, "tensors have a limit");
  const std::uint32_t row = RowSize(definition.value().dtype_text);
  Expect(row == 0 || row >= 8, "a row of samples begins with its time");
}

void AskTensor(std::span<const std::byte> payload) {
  const auto head = DecodeTensorHead(payload, payload.size());
  if (!head.ok()) return;
  const TensorHead& h = head.value();
  Expect(h.chunks.size() <= payload.size() / 16, "chunks have bytes");
  if (h.raw_length > 1 << 20 || h.base_sequence != 0) return;
  Bytes out(h.raw_length);
  for (const std::uint32_t item_size : {1U, 2U, 4U, 8U, 16U}) {
    // Any answer but a crash: the checksums of chunks stand in the head.
    static_cast<void>(
        DecodeTensor(h, payload.subspan(h.data_offset), item_size, {}, out));
  }
}

void AskSamples(std::span<const std::byte> payload) {
  const auto head = DecodeSamplesHead(payload);
  if (!head.ok() || head.value().row_size < 8) return;
  const TimeRange times = TimesOf(head.value(), payload);
  Expect(head.value().n_rows == 0 || times.first <= times.last,
         "times of rows are a range");
}

}  // namespace
}  // namespace tdbg::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace tdbg;  // NOLINT
  if (size == 0) return 0;
  const auto payload = fuzz::AsBytes(data, size).subspan(1);
  switch (static_cast<RecordType>(data[0])) {
    case RecordType::kDefinition:
      fuzz::AskDefinition(payload);
      break;
    case RecordType::kRows:
      fuzz::GoAround(payload, DecodeRows,
                     [](const auto& rows) { return EncodeRows(rows); });
      break;
    case RecordType::kTensor:
      fuzz::AskTensor(payload);
      break;
    case RecordType::kStep:
      fuzz::GoAround(payload, DecodeStep, EncodeStep);
      break;
    case RecordType::kScalar:
      fuzz::GoAround(payload, DecodeScalars,
                     [](const auto& all) { return EncodeScalars(all); });
      break;
    case RecordType::kEvent:
      fuzz::GoAround(payload, DecodeEvent, EncodeEvent);
      break;
    case RecordType::kSpan:
      fuzz::GoAround(payload, DecodeSpans,
                     [](const auto& all) { return EncodeSpans(all); });
      break;
    case RecordType::kGap:
      fuzz::GoAround(payload, DecodeGap, EncodeGap);
      break;
    case RecordType::kHistogram:
      fuzz::GoAround(payload, DecodeHistogram, EncodeHistogram);
      break;
    case RecordType::kIndex:
      fuzz::GoAround(payload, DecodeIndex,
                     [](const auto& all) { return EncodeIndex(all); });
      break;
    case RecordType::kEnd:
      fuzz::GoAround(payload, DecodeEnd, EncodeEnd);
      break;
    case RecordType::kSamples:
      fuzz::AskSamples(payload);
      break;
    default:
      break;
  }
  return 0;
}
