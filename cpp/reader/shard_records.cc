// What becomes of a record that passed its checks.

#include "reader/shard_reader.h"

namespace tdbg {

void ShardReader::Accept(const Checked& record, Tables* tables) {
  const Status status = Take(record, tables);
  ++n_records_;
  if (status.ok()) return;
  Report(status.code() == StatusCode::kUnsupported ? ProblemKind::kUnsupported
                                                   : ProblemKind::kDamage,
         next_, record.end - next_,
         "its checksum holds but not its content: " + status.message(), tables);
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
      auto decoded = DecodeHistogram(record.payload);
      if (!decoded.ok()) return decoded.status();
      tables->histograms.push_back({step, std::move(decoded).value()});
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
  Definition definition = std::move(decoded).value();
  if (const Definition* known = tables->Find(definition.id)) {
    if (*known == definition) return Status::Ok();
    // Every shard repeats its definitions; only aliases may have changed.
    Definition first = *known;
    first.aliases = definition.aliases;
    if (!(first == definition)) {
      return Status::Corruption("definition " + std::to_string(definition.id) +
                                    " is not what it was before",
                                next_);
    }
  }
  tables->definition_of_id[definition.id] = tables->definitions.size();
  tables->definitions.push_back(std::move(definition));
  return Status::Ok();
}

Status ShardReader::TakeRows(const Checked& record, Tables* tables) {
  const auto head = DecodeRowsHead(record.payload);
  if (!head.ok()) return head.status();
  const std::int64_t step = record.header.step;
  if (rows_step_ != step) rows_position_ = 0;
  rows_step_ = step;
  RowsPlace place;
  place.step = step;
  place.offset = next_ + limits::kRecordHeader;
  place.payload_length = record.header.payload_length;
  place.first_row = tables->n_rows;
  place.n_rows = head.value().n_rows;
  place.payload_crc = record.header.payload_crc;
  place.first_position = rows_position_;
  place.shard_number = place_.shard_number;
  if (place.n_rows == 0) return Status::Ok();
  rows_position_ += place.n_rows;
  n_rows_ += place.n_rows;
  tables->n_rows += place.n_rows;
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
  const std::int64_t step = record.header.step;
  if (tensor_step_ != step) tensor_position_ = 0;
  tensor_step_ = step;
  TensorEntry entry;
  entry.step = step;
  entry.sequence = record.header.sequence;
  entry.offset = next_;
  entry.payload_length = record.header.payload_length;
  entry.definition = head.definition;
  entry.shard_number = place_.shard_number;
  entry.call = head.call;
  entry.micro_batch = head.micro_batch;
  entry.position = tensor_position_++;
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
