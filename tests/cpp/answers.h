// Everything a reader answers, as one value that can be compared.

#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "reader/run_reader.h"
#include "reader/shard_reader.h"
#include "reader/tensor_values.h"
#include "shard_builder.h"

namespace tdbg::testing {

struct Answers {
  std::string tables;                        // All but values and problems.
  std::vector<std::optional<Bytes>> values;  // Of the tensors, in order.
  bool operator==(const Answers&) const = default;
};

class AnswerText {
 public:
  template <typename T>
  void Put(const T& value) {
    static_assert(std::has_unique_object_representations_v<T> ||
                  std::is_floating_point_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void Put(const std::string& value) {
    Put(value.size());
    text_ += value;
  }
  template <typename T>
  void Put(const std::vector<T>& values) {
    Put(values.size());
    for (const T& value : values) Put(value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

template <typename Tables>
void PutTables(Tables& t, AnswerText* out) {
  for (const Definition& d : t.definitions().list()) {
    out->Put(d.id);
    out->Put(d.role);
    out->Put(d.dtype);
    out->Put(d.item_size);
    out->Put(d.flags);
    out->Put(d.name);
    out->Put(d.dtype_text);
    out->Put(d.shape);
    out->Put(d.global_shape);
    out->Put(d.global_offset);
    for (const Placement& p : d.placements) {
      out->Put(p.kind);
      out->Put(p.reduction);
      out->Put(p.dimension);
      out->Put(p.mesh_size);
      out->Put(p.coordinate);
    }
    out->Put(d.aliases);
  }
  for (const StepEntry& e : t.steps()) {
    const StepRecord& s = e.record;
    for (const auto v : {s.step, s.mode_step, s.wall_ns, s.monotonic_ns,
                         s.capture_ns, s.duration_ns}) {
      out->Put(v);
    }
    for (const auto v :
         {s.offered, s.written, s.dropped, s.failed, e.sequence}) {
      out->Put(v);
    }
    for (const auto v : {s.mode, s.flags, s.micro_batches}) out->Put(v);
  }
  for (const TensorEntry& e : t.tensors()) out->Put(e);
  for (const ScalarEntry& e : t.scalars()) {
    out->Put(e.step);
    out->Put(e.scalar.definition);
    out->Put(e.scalar.flags);
    out->Put(e.scalar.wall_ns);
    out->Put(e.scalar.value);
  }
  for (const EventEntry& e : t.events()) {
    out->Put(e.step);
    out->Put(e.sequence);
    out->Put(e.event.kind);
    out->Put(e.event.severity);
    out->Put(e.event.flags);
    out->Put(e.event.wall_ns);
    out->Put(e.event.json);
  }
  for (const SpanEntry& e : t.spans()) {
    out->Put(e.step);
    out->Put(e.span.definition);
    out->Put(e.span.flags);
    out->Put(e.span.start_ns);
    out->Put(e.span.duration_ns);
    out->Put(e.span.thread);
    out->Put(e.span.depth);
    out->Put(e.span.value);
  }
  for (const Gap& g : t.gaps()) {
    out->Put(g.first_step);
    out->Put(g.last_step);
    out->Put(g.records);
    out->Put(g.bytes);
    out->Put(g.reason);
    out->Put(g.what);
  }
  for (std::size_t i = 0; i < t.histograms().size(); ++i) {
    out->Put(t.histograms()[i].step);
    const auto read = t.ReadHistogram(i);
    if (!read.ok()) continue;
    const Histogram& histogram = read.value();
    out->Put(histogram.definition);
    out->Put(histogram.call);
    out->Put(histogram.micro_batch);
    out->Put(histogram.scheme);
    out->Put(histogram.keys);
    out->Put(histogram.counts);
  }
}

inline void PutSamples(const SamplesPlace& place, const Bytes& payload,
                       AnswerText* out) {
  out->Put(place.definition);
  out->Put(place.first_time);
  out->Put(place.last_time);
  out->Put(place.n_rows);
  out->Put(std::string(reinterpret_cast<const char*>(payload.data()),
                       payload.size()));
}

inline std::string TextOfRows(const std::vector<ColumnRow>& rows) {
  return {reinterpret_cast<const char*>(rows.data()),
          rows.size() * sizeof(ColumnRow)};
}

inline std::optional<Bytes> ValueOf(const Result<TensorValue>& value) {
  if (!value.ok()) return std::nullopt;
  return Bytes(value.value().bytes.begin(), value.value().bytes.end());
}

inline std::vector<std::uint32_t> AllDefinitions(RunReader& reader) {
  std::vector<std::uint32_t> ids;
  for (const Definition& d : reader.definitions().list()) ids.push_back(d.id);
  return ids;
}

// What a RunReader says, columns one by one included.
inline Answers AnswersOf(RunReader& reader) {
  AnswerText text;
  PutTables(reader, &text);
  Answers answers;
  const std::vector<std::uint32_t> ids = AllDefinitions(reader);
  constexpr TimeRange kAllTimes{kAllSteps.first, kAllSteps.last};
  for (const SamplesPlace& place : reader.FindSamples(kAllTimes, ids, 0)) {
    PutSamples(place, reader.ReadSamples(place), &text);
  }
  answers.tables = text.Take();
  answers.tables += TextOfRows(reader.Rows(0, reader.n_rows()));
  for (const std::uint32_t id : AllDefinitions(reader)) {
    answers.tables += TextOfRows(reader.Column(std::vector{id}));
  }
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    answers.values.push_back(ValueOf(reader.ReadTensor(i)));
  }
  return answers;
}

// Tables of a shard in memory, seen as a RunReader shows its own.
struct MemoryShard {
  MemoryShard(std::span<const std::byte> bytes, const FileHeader& header,
              bool settled)
      : all(bytes), reader(bytes, PlaceOf(header)) {
    for (int i = 0; i < 4 && reader.Scan(settled, &tables); ++i) {
    }
  }

  static ShardPlace PlaceOf(const FileHeader& header) {
    return {header.role, header.rank, header.generation, header.shard_number,
            header.run};
  }

  const auto& definitions() const { return *tables.definitions; }
  const auto& steps() const { return tables.steps; }
  const auto& tensors() const { return tables.tensors; }
  const auto& scalars() const { return tables.scalars; }
  const auto& events() const { return tables.events; }
  const auto& spans() const { return tables.spans; }
  const auto& gaps() const { return tables.gaps; }
  const auto& histograms() const { return tables.histograms; }
  const auto& problems() const { return tables.problems; }

  Result<Histogram> ReadHistogram(std::size_t i) {
    return reader.ReadHistogram(tables.histograms[i]);
  }
  Result<TensorValue> ReadTensor(std::size_t i) {
    TensorValues values({.max_tensor_bytes = 1 << 20});
    return values.Read(tables.tensors, i, *tables.definitions, &reader);
  }

  Answers Ask() {
    AnswerText text;
    PutTables(*this, &text);
    for (const RowsPlace& place : tables.rows) {
      text.Put(place.step);
      text.Put(place.first_position);
      text.Put(place.first_row);
      const auto rows =
          DecodeRows(all.subspan(place.offset, place.payload_length));
      for (const Row& row : rows.value()) {
        text.Put(row.definition);
        text.Put(row.call);
        text.Put(row.micro_batch);
        text.Put(row.flags);
        text.Put(std::bit_cast<std::array<std::uint64_t, 12>>(row.summary));
      }
    }
    for (const SamplesPlace& place : tables.samples) {
      const auto payload = reader.ReadSamples(place);
      PutSamples(place, payload.ok() ? payload.value() : Bytes(), &text);
    }
    Answers answers;
    answers.tables = text.Take();
    for (std::size_t i = 0; i < tables.tensors.size(); ++i) {
      answers.values.push_back(ValueOf(ReadTensor(i)));
    }
    return answers;
  }

  const std::span<const std::byte> all;
  Tables tables;
  ShardReader reader;
};

}  // namespace tdbg::testing
