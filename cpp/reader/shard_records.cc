// What becomes of a record that passed its checks.

#include <utility>

#include "base/coding.h"
#include "base/crc32c.h"
#include "reader/shard_reader.h"

namespace tdbg {
namespace {

// Whether records of this type are what a producer offered; a writer adds the
// others.
bool IsOffered(RecordType type) {
  switch (type) {
    case RecordType::kRows:
    case RecordType::kTensor:
    case RecordType::kStep:
    case RecordType::kScalar:
    case RecordType::kEvent:
    case RecordType::kSpan:
    case RecordType::kHistogram:
    case RecordType::kSamples:
      return true;
    case RecordType::kPad:
    case RecordType::kDefinition:
    case RecordType::kGap:
    case RecordType::kIndex:
    case RecordType::kEnd:
      break;
  }
  return false;
}

}  // namespace

void ShardReader::Accept(const Checked& record, Tables* tables) {
  const Status status = Take(record, tables);
  if (rebuilt_) rebuilt_->Add(EntryOf(record), record.payload);
  ++n_records_;
  if (IsOffered(record.header.type)) ++n_offered_;
  if (status.ok()) return;
  const std::uint64_t sequence = record.header.sequence;
  tables->holes.push_back({sequence, sequence + 1});
  Report(status.code() == StatusCode::kUnsupported ? ProblemKind::kUnsupported
                                                   : ProblemKind::kDamage,
         next_, record.end - next_,
         "its checksum holds but not its content: " + status.message(), tables);
}

IndexEntry ShardReader::EntryOf(const Checked& record) const {
  IndexEntry entry{.header = record.header, .offset = next_};
  if (record.header.type == RecordType::kHistogram) {
    const auto histogram = DecodeHistogram(record.payload);
    if (histogram.ok()) {
      entry.call = histogram.value().call;
      entry.micro_batch = histogram.value().micro_batch;
    }
  }
  return entry;
}

HistogramEntry ShardReader::PlaceOf(const IndexEntry& entry,
                                    std::uint32_t definition) const {
  return {.step = entry.header.step,
          .sequence = entry.header.sequence,
          .offset = entry.offset,
          .payload_length = entry.header.payload_length,
          .definition = definition,
          .shard_number = place_.shard_number,
          .call = entry.call,
          .micro_batch = entry.micro_batch,
          .payload_crc = entry.header.payload_crc};
}

Result<Histogram> ShardReader::ReadHistogram(const HistogramEntry& entry) {
  const auto bad = [&](const Status& status) {
    return InRecord(status, file_.name(), entry.offset, 0);
  };
  if (entry.offset < limits::kFileHeader || entry.offset >= size_) {
    return bad(Status::Corruption("it is not there", 0));
  }
  const Checked record = Check(entry.offset);
  if (!record.status.ok()) return bad(record.status);
  if (record.header.type != RecordType::kHistogram ||
      record.header.sequence != entry.sequence ||
      record.header.step != entry.step ||
      record.header.payload_crc != entry.payload_crc) {
    return bad(Status::Corruption("another record than before", 0));
  }
  auto histogram = DecodeHistogram(record.payload);
  if (!histogram.ok()) return bad(histogram.status());
  if (histogram.value().definition != entry.definition ||
      histogram.value().call != entry.call ||
      histogram.value().micro_batch != entry.micro_batch) {
    return bad(Status::Corruption("the index tells of another tensor", 0));
  }
  return histogram;
}

Result<std::vector<std::byte>> ShardReader::ReadSamples(
    const SamplesPlace& place) {
  const auto bad = [&](const Status& status) {
    return InRecord(status, file_.name(), place.offset, 0);
  };
  if (place.offset < limits::kFileHeader || place.offset >= size_ ||
      place.payload_length > limits::kTable ||
      NextRecord(place.offset, place.payload_length) > size_) {
    return bad(Status::Corruption("it is not there", 0));
  }
  std::vector<std::byte> bytes(limits::kRecordHeader + place.payload_length);
  TDBG_RETURN_IF_ERROR(file_.Read(place.offset, bytes));
  const auto header = DecodeRecordHeader(bytes, header_.salt);
  if (!header.ok()) return bad(header.status());
  if (header.value().type != RecordType::kSamples ||
      header.value().sequence != place.sequence ||
      header.value().payload_length != place.payload_length ||
      header.value().payload_crc != place.payload_crc) {
    return bad(Status::Corruption("another record than before", 0));
  }
  bytes.erase(bytes.begin(), bytes.begin() + limits::kRecordHeader);
  if (MaskedCrc32c(bytes.data(), bytes.size()) != place.payload_crc) {
    return bad(Status::Corruption("checksum of the payload", 0));
  }
  const auto head = DecodeSamplesHead(bytes);
  if (!head.ok()) return bad(head.status());
  if (head.value().definition != place.definition ||
      head.value().n_rows != place.n_rows) {
    return bad(Status::Corruption("the index tells of another table", 0));
  }
  return bytes;
}

void ShardReader::Lose(std::uint64_t sequence, std::uint64_t offset,
                       std::uint64_t payload_length, const Status& why,
                       Tables* tables) {
  tables->holes.push_back({sequence, sequence + 1});
  Report(why.code() == StatusCode::kIoError ? ProblemKind::kIo
                                            : ProblemKind::kDamage,
         offset, NextRecord(offset, payload_length) - offset, why.message(),
         tables);
}

void ShardReader::TakeIndexed(const IndexEntry& entry, Tables* tables) {
  if (entry.header.type == RecordType::kHistogram) {
    tables->histograms.push_back(PlaceOf(entry, entry.header.subject));
    return;
  }
  const std::uint64_t after = std::exchange(next_, entry.offset);
  Checked record;
  record.status = Status::Corruption("it is not there", entry.offset);
  if (entry.offset >= limits::kFileHeader && entry.offset < size_) {
    record = Check(entry.offset);
  }
  if (record.status.ok() &&
      (record.header.sequence != entry.header.sequence ||
       record.header.type != entry.header.type ||
       record.header.payload_crc != entry.header.payload_crc)) {
    record.status =
        Status::Corruption("it is not the one of the index", entry.offset);
  }
  if (record.status.ok()) {
    Accept(record, tables);
  } else {
    Lose(entry.header.sequence, entry.offset, entry.header.payload_length,
         record.status, tables);
  }
  next_ = after;
}

Status ShardReader::Take(const Checked& record, Tables* tables) {
  const std::int64_t step = record.header.step;
  switch (record.header.type) {
    case RecordType::kDefinition:
      return TakeDefinition(record, tables);
    case RecordType::kRows:
      return TakeRows(record, tables);
    case RecordType::kTensor:
      return TakeTensor(record, tables);
    case RecordType::kScalar:
      return TakeScalars(record, tables);
    case RecordType::kSpan:
      return TakeSpans(record, tables);
    case RecordType::kStep: {
      auto decoded = DecodeStep(record.payload);
      if (!decoded.ok()) return decoded.status();
      StepEntry entry{std::move(decoded).value(), record.header.sequence};
      entry.record.step = step;
      tables->steps.push_back(entry);
      return Status::Ok();
    }
    case RecordType::kEvent: {
      auto decoded = DecodeEvent(record.payload);
      if (!decoded.ok()) return decoded.status();
      tables->events.push_back(
          {step, record.header.sequence, std::move(decoded).value()});
      return Status::Ok();
    }
    case RecordType::kGap: {
      const auto decoded = DecodeGap(record.payload);
      if (!decoded.ok()) return decoded.status();
      tables->gaps.push_back(decoded.value());
      return Status::Ok();
    }
    case RecordType::kHistogram: {
      const auto decoded = DecodeHistogram(record.payload);
      if (!decoded.ok()) return decoded.status();
      const Histogram& histogram = decoded.value();
      tables->histograms.push_back(
          PlaceOf({record.header, histogram.call, histogram.micro_batch, next_},
                  histogram.definition));
      return Status::Ok();
    }
    case RecordType::kSamples: {
      const auto place =
          PlaceOfSamples({.header = record.header, .offset = next_},
                         record.payload, place_.shard_number);
      if (!place.ok()) return place.status();
      tables->samples.push_back(place.value());
      return Status::Ok();
    }
    case RecordType::kEnd:
      return TakeEnd(record);
    case RecordType::kPad:
    case RecordType::kIndex:
      break;
  }
  return Status::Ok();  // Also for types that we do not know.
}

Status ShardReader::TakeDefinition(const Checked& record,
                                   Tables* tables) const {
  auto decoded = DecodeDefinition(record.payload);
  if (!decoded.ok()) return decoded.status();
  const Status status = tables->definitions->Take(decoded.value());
  return status.ok() ? Status::Ok()
                     : Status::Corruption(status.message(), next_);
}

Status ShardReader::TakeRows(const Checked& record, Tables* tables) {
  const auto head = DecodeRowsHead(record.payload);
  if (!head.ok()) return head.status();
  const std::int64_t step = record.header.step;
  const std::uint32_t n_rows = head.value().n_rows;
  RowsPlace place;
  place.step = step;
  place.offset = next_ + limits::kRecordHeader;
  place.payload_length = record.header.payload_length;
  place.first_row = tables->n_rows;
  place.n_rows = n_rows;
  place.payload_crc = record.header.payload_crc;
  place.first_position = row_positions_.Next(step, n_rows);
  if (n_rows == 0) return Status::Ok();
  std::vector<std::uint32_t> ids(n_rows);
  const std::byte* row = record.payload.data() + kRowsHeadBytes;
  for (std::uint32_t& id : ids) {
    id = Load<std::uint32_t>(row);
    row += head.value().row_size;
  }
  place.signature = tables->signatures.Add(ids);
  tables->n_rows += n_rows;
  tables->rows.push_back(place);
  return Status::Ok();
}

Status ShardReader::TakeTensor(const Checked& record, Tables* tables) {
  const auto decoded =
      DecodeTensorHead(record.payload, record.header.payload_length);
  if (!decoded.ok()) return decoded.status();
  const TensorHead& head = decoded.value();
  if (head.data_offset != record.header.checked_length) {
    return Status::Corruption("tensor: the checksum does not end at the data",
                              next_);
  }
  TensorEntry entry;
  entry.step = record.header.step;
  entry.sequence = record.header.sequence;
  entry.offset = next_;
  entry.payload_length = record.header.payload_length;
  entry.definition = head.definition;
  entry.shard_number = place_.shard_number;
  entry.call = head.call;
  entry.micro_batch = head.micro_batch;
  entry.position = tensor_positions_.Next(entry.step, 1);
  tables->tensors.push_back(entry);
  return Status::Ok();
}

Status ShardReader::TakeScalars(const Checked& record, Tables* tables) {
  const auto decoded = DecodeScalars(record.payload);
  if (!decoded.ok()) return decoded.status();
  for (const Scalar& scalar : decoded.value()) {
    tables->scalars.push_back({record.header.step, scalar});
  }
  return Status::Ok();
}

Status ShardReader::TakeSpans(const Checked& record, Tables* tables) {
  const auto decoded = DecodeSpans(record.payload);
  if (!decoded.ok()) return decoded.status();
  for (const Span& span : decoded.value()) {
    tables->spans.push_back({record.header.step, span});
  }
  return Status::Ok();
}

Status ShardReader::TakeEnd(const Checked& record) {
  const auto decoded = DecodeEnd(record.payload);
  if (!decoded.ok()) return decoded.status();
  const End& end = decoded.value();
  if (end.file_length != record.end) {
    return Status::Corruption("end: stands at " + std::to_string(record.end) +
                                  " and seals " +
                                  std::to_string(end.file_length) + " bytes",
                              next_);
  }
  state_ = ShardState::kSealed;
  end_ = end;
  // Where records are known to be lost, their number cannot be right.
  if (n_problems_ == 0 && end.n_records != n_records_) {
    return Status::Corruption("end: " + std::to_string(end.n_records) +
                                  " records were written, " +
                                  std::to_string(n_records_) + " are there",
                              next_);
  }
  return Status::Ok();
}

}  // namespace tdbg
