// The records with fields of fixed places: step, event, gap, end.

#include "base/coding.h"
#include "format/record.h"

namespace tdbg {

std::vector<std::byte> EncodeStep(const StepRecord& step) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(step.mode);
  w.Put(step.flags);
  w.Put(step.mode_step);
  w.Put(step.wall_ns);
  w.Put(step.monotonic_ns);
  w.Put(step.offered);
  w.Put(step.written);
  w.Put(step.dropped);
  w.Put(step.failed);
  w.Put(step.micro_batches);
  w.Put(std::uint32_t{0});
  w.Put(step.capture_ns);
  w.Put(step.duration_ns);
  return out;
}

Result<StepRecord> DecodeStep(std::span<const std::byte> payload) {
  ByteReader in(payload);
  StepRecord step;
  step.mode = in.Get<std::uint32_t>();
  step.flags = in.Get<std::uint32_t>();
  step.mode_step = in.Get<std::int64_t>();
  step.wall_ns = in.Get<std::int64_t>();
  step.monotonic_ns = in.Get<std::int64_t>();
  step.offered = in.Get<std::uint64_t>();
  step.written = in.Get<std::uint64_t>();
  step.dropped = in.Get<std::uint64_t>();
  step.failed = in.Get<std::uint64_t>();
  step.micro_batches = in.Get<std::uint32_t>();
  in.Skip(4);
  step.capture_ns = in.Get<std::int64_t>();
  step.duration_ns = in.Get<std::int64_t>();
  if (in.failed()) return Status::Corruption("step: too short", 0);
  return step;
}

std::vector<std::byte> EncodeEvent(const Event& event) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(static_cast<std::uint16_t>(event.kind));
  w.Put(event.severity);
  w.Put(event.flags);
  w.Put(event.wall_ns);
  w.Put(static_cast<std::uint32_t>(event.json.size()));
  w.Put(std::uint32_t{0});
  w.PutString(event.json);
  return out;
}

Result<Event> DecodeEvent(std::span<const std::byte> payload) {
  if (payload.size() > limits::kEvent) {
    return Status::LimitExceeded("event: " + std::to_string(payload.size()) +
                                 " bytes");
  }
  ByteReader in(payload);
  Event event;
  event.kind = static_cast<EventKind>(in.Get<std::uint16_t>());
  event.severity = in.Get<std::uint16_t>();
  event.flags = in.Get<std::uint32_t>();
  event.wall_ns = in.Get<std::int64_t>();
  const auto length = in.Get<std::uint32_t>();
  in.Skip(4);
  event.json = in.GetString(length);
  if (in.failed()) return Status::Corruption("event: too short", 0);
  return event;
}

std::vector<std::byte> EncodeGap(const Gap& gap) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(gap.first_step);
  w.Put(gap.last_step);
  w.Put(gap.records);
  w.Put(gap.bytes);
  w.Put(static_cast<std::uint32_t>(gap.reason));
  w.Put(gap.what);
  if (gap.end_sequence == 0) return out;
  w.Put(gap.first_sequence);
  w.Put(gap.end_sequence);
  return out;
}

Result<Gap> DecodeGap(std::span<const std::byte> payload) {
  ByteReader in(payload);
  Gap gap;
  gap.first_step = in.Get<std::int64_t>();
  gap.last_step = in.Get<std::int64_t>();
  gap.records = in.Get<std::uint64_t>();
  gap.bytes = in.Get<std::uint64_t>();
  gap.reason = static_cast<GapReason>(in.Get<std::uint32_t>());
  gap.what = in.Get<std::uint32_t>();
  if (in.failed()) return Status::Corruption("gap: too short", 0);
  // Most tell of no abandoned shard.
  if (in.remaining() >= 2 * sizeof(std::uint64_t)) {
    gap.first_sequence = in.Get<std::uint64_t>();
    gap.end_sequence = in.Get<std::uint64_t>();
  }
  return gap;
}

std::vector<std::byte> EncodeEnd(const End& end) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(end.index_offset);
  w.Put(end.n_records);
  w.Put(end.file_length);
  w.Put(end.first_step);
  w.Put(end.last_step);
  w.Put(static_cast<std::uint32_t>(end.reason));
  w.Put(end.index_crc);
  out.resize(kEndBytes);
  return out;
}

Result<End> DecodeEnd(std::span<const std::byte> payload) {
  if (payload.size() < kEndBytes) {
    return Status::Corruption("end: too short", 0);
  }
  ByteReader in(payload);
  End end;
  end.index_offset = in.Get<std::uint64_t>();
  end.n_records = in.Get<std::uint64_t>();
  end.file_length = in.Get<std::uint64_t>();
  end.first_step = in.Get<std::int64_t>();
  end.last_step = in.Get<std::int64_t>();
  end.reason = static_cast<EndReason>(in.Get<std::uint32_t>());
  end.index_crc = in.Get<std::uint32_t>();
  return end;
}

}  // namespace tdbg
