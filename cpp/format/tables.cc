// The records that are tables: rows, scalars, spans, histograms, samples.

#include <algorithm>
#include <bit>

#include "base/checked_math.h"
#include "base/coding.h"
#include "format/record.h"

namespace tdbg {
namespace {

constexpr std::uint32_t kRowHead = 16;
constexpr std::uint64_t kSummaryFields = 0xfff;  // Bits 0-11.
constexpr std::uint32_t kScalarBytes = 32;
constexpr std::uint32_t kSpanBytes = 48;
constexpr std::uint32_t kTimeBytes = 8;  // At the beginning of a sample.

// Where the field of each bit stands in a Summary, which is 12 words.
static_assert(sizeof(Summary) == 12 * sizeof(double));

Status Bad(const char* record, const std::string& what) {
  return Status::Corruption(std::string(record) + ": " + what, 0);
}

// Checks that `n` entries of `size` bytes, at least `smallest`, are there.
Status CheckTable(const char* record, const ByteReader& in, std::uint64_t n,
                  std::uint64_t size, std::uint64_t smallest) {
  if (in.failed()) return Bad(record, "too short");
  if (size < smallest) {
    return Bad(record, "entries of " + std::to_string(size) + " bytes, not " +
                           std::to_string(smallest) + " or more");
  }
  std::uint64_t n_bytes = 0;
  if (!CheckedMul(n, size, &n_bytes) || n_bytes > in.remaining()) {
    return Bad(record, std::to_string(n) + " entries of " +
                           std::to_string(size) + " bytes in " +
                           std::to_string(in.remaining()));
  }
  return Status::Ok();
}

}  // namespace

std::vector<std::byte> EncodeRows(std::span<const Row> rows) {
  std::vector<std::byte> out;
  out.reserve(16 + rows.size() * (kRowHead + sizeof(Summary)));
  ByteWriter w(&out);
  w.Put(static_cast<std::uint32_t>(kRowHead + sizeof(Summary)));
  w.Put(static_cast<std::uint32_t>(rows.size()));
  w.Put(kSummaryFields);
  for (const Row& row : rows) {
    w.Put(row.definition);
    w.Put(row.call);
    w.Put(row.micro_batch);
    w.Put(row.flags);
    w.Put(std::uint32_t{0});
    w.PutBytes(&row.summary, sizeof(Summary));
  }
  return out;
}

Result<RowsHead> DecodeRowsHead(std::span<const std::byte> payload) {
  ByteReader in(payload);
  RowsHead head;
  head.row_size = in.Get<std::uint32_t>();
  head.n_rows = in.Get<std::uint32_t>();
  head.fields = in.Get<std::uint64_t>();
  const auto n_fields = static_cast<std::uint64_t>(std::popcount(head.fields));
  TDBG_RETURN_IF_ERROR(CheckTable("rows", in, head.n_rows, head.row_size,
                                  kRowHead + 8 * n_fields));
  return head;
}

Result<std::vector<Row>> DecodeRows(std::span<const std::byte> payload) {
  const auto decoded = DecodeRowsHead(payload);
  if (!decoded.ok()) return decoded.status();
  const RowsHead& head = decoded.value();
  std::vector<Row> rows(head.n_rows);
  const std::byte* p = payload.data() + kRowsHeadBytes;
  for (Row& row : rows) {
    row.definition = Load<std::uint32_t>(p);
    row.call = Load<std::uint16_t>(p + 4);
    row.micro_batch = Load<std::uint16_t>(p + 6);
    row.flags = Load<std::uint32_t>(p + 8);
    const std::byte* field = p + kRowHead;
    if ((head.fields & kSummaryFields) == kSummaryFields) {
      std::memcpy(&row.summary, field, sizeof(Summary));
    } else {
      // Fields stand in the order of their bits; those above bit 11 follow
      // all that a Summary holds.
      auto* to = reinterpret_cast<std::byte*>(&row.summary);
      for (unsigned bit = 0; bit < 12; ++bit) {
        if ((head.fields >> bit & 1) == 0) continue;
        std::memcpy(to + std::size_t{8} * bit, field, 8);
        field += 8;
      }
    }
    p += head.row_size;
  }
  return rows;
}

std::vector<std::byte> EncodeScalars(std::span<const Scalar> scalars) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(static_cast<std::uint32_t>(scalars.size()));
  w.Put(kScalarBytes);
  for (const Scalar& scalar : scalars) {
    w.Put(scalar.definition);
    w.Put(scalar.flags);
    w.Put(scalar.wall_ns);
    w.Put(scalar.value);
    w.Put(std::uint64_t{0});
  }
  return out;
}

Result<std::vector<Scalar>> DecodeScalars(std::span<const std::byte> payload) {
  ByteReader in(payload);
  const auto n = in.Get<std::uint32_t>();
  const auto size = in.Get<std::uint32_t>();
  TDBG_RETURN_IF_ERROR(CheckTable("scalar", in, n, size, kScalarBytes));
  std::vector<Scalar> scalars(n);
  for (Scalar& scalar : scalars) {
    scalar.definition = in.Get<std::uint32_t>();
    scalar.flags = in.Get<std::uint32_t>();
    scalar.wall_ns = in.Get<std::int64_t>();
    scalar.value = in.Get<double>();
    in.Skip(size - 24);
  }
  return scalars;
}

std::vector<std::byte> EncodeSpans(std::span<const Span> spans) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(static_cast<std::uint32_t>(spans.size()));
  w.Put(kSpanBytes);
  for (const Span& span : spans) {
    w.Put(span.definition);
    w.Put(span.flags);
    w.Put(span.start_ns);
    w.Put(span.duration_ns);
    w.Put(span.thread);
    w.Put(span.depth);
    w.Put(std::uint32_t{0});
    w.Put(span.value);
  }
  return out;
}

Result<std::vector<Span>> DecodeSpans(std::span<const std::byte> payload) {
  ByteReader in(payload);
  const auto n = in.Get<std::uint32_t>();
  const auto size = in.Get<std::uint32_t>();
  TDBG_RETURN_IF_ERROR(CheckTable("span", in, n, size, kSpanBytes));
  std::vector<Span> spans(n);
  for (Span& span : spans) {
    span.definition = in.Get<std::uint32_t>();
    span.flags = in.Get<std::uint32_t>();
    span.start_ns = in.Get<std::int64_t>();
    span.duration_ns = in.Get<std::int64_t>();
    span.thread = in.Get<std::uint64_t>();
    span.depth = in.Get<std::uint32_t>();
    in.Skip(4);
    span.value = in.Get<std::int64_t>();
    in.Skip(size - kSpanBytes);
  }
  return spans;
}

namespace {

// Thousands of numbers at once: room is made for them once.
template <typename T>
void PutAll(const std::vector<T>& values, std::vector<std::byte>* out) {
  const std::size_t at = out->size();
  out->resize(at + values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    Store(out->data() + at + i * sizeof(T), values[i]);
  }
}

}  // namespace

std::vector<std::byte> EncodeHistogram(const Histogram& histogram) {
  std::vector<std::byte> out;
  ByteWriter w(&out);
  w.Put(histogram.definition);
  w.Put(histogram.call);
  w.Put(histogram.micro_batch);
  w.Put(histogram.scheme);
  w.Put(std::uint16_t{0});
  w.Put(static_cast<std::uint32_t>(histogram.keys.size()));
  PutAll(histogram.keys, &out);
  w.Align(8);
  PutAll(histogram.counts, &out);
  return out;
}

Result<Histogram> DecodeHistogram(std::span<const std::byte> payload) {
  ByteReader in(payload);
  Histogram histogram;
  histogram.definition = in.Get<std::uint32_t>();
  histogram.call = in.Get<std::uint16_t>();
  histogram.micro_batch = in.Get<std::uint16_t>();
  histogram.scheme = in.Get<std::uint16_t>();
  in.Skip(2);
  const auto n = in.Get<std::uint32_t>();
  // A key and a count are ten bytes.
  TDBG_RETURN_IF_ERROR(CheckTable("histogram", in, n, 10, 10));
  histogram.keys.resize(n);
  for (std::uint16_t& key : histogram.keys) key = in.Get<std::uint16_t>();
  in.Skip((8 - in.position() % 8) % 8);
  histogram.counts.resize(n);
  for (std::uint64_t& count : histogram.counts) {
    count = in.Get<std::uint64_t>();
  }
  if (in.failed()) return Bad("histogram", "too short");
  if (std::adjacent_find(histogram.keys.begin(), histogram.keys.end(),
                         std::greater_equal<>()) != histogram.keys.end()) {
    return Bad("histogram", "keys do not ascend");
  }
  return histogram;
}

std::vector<std::byte> EncodeSamples(std::uint32_t definition,
                                     std::uint32_t row_size,
                                     std::span<const std::byte> rows) {
  std::vector<std::byte> out;
  out.reserve(kSamplesHeadBytes + rows.size());
  ByteWriter w(&out);
  w.Put(definition);
  w.Put(static_cast<std::uint32_t>(rows.size() / row_size));
  w.Put(row_size);
  w.Put(std::uint32_t{0});
  w.PutBytes(rows.data(), rows.size());
  return out;
}

Result<SamplesHead> DecodeSamplesHead(std::span<const std::byte> payload) {
  ByteReader in(payload);
  SamplesHead head;
  head.definition = in.Get<std::uint32_t>();
  head.n_rows = in.Get<std::uint32_t>();
  head.row_size = in.Get<std::uint32_t>();
  const auto flags = in.Get<std::uint32_t>();
  TDBG_RETURN_IF_ERROR(
      CheckTable("samples", in, head.n_rows, head.row_size, kTimeBytes));
  if (flags != 0) {
    return Status::Unsupported("samples: flags " + std::to_string(flags) +
                               " of a later tdbg");
  }
  return head;
}

TimeRange TimesOf(const SamplesHead& head, std::span<const std::byte> payload) {
  TimeRange times;
  for (std::size_t i = 0; i < head.n_rows; ++i) {
    const auto time = Load<std::int64_t>(payload.data() + kSamplesHeadBytes +
                                         i * head.row_size);
    times.first = i == 0 ? time : std::min(times.first, time);
    times.last = i == 0 ? time : std::max(times.last, time);
  }
  return times;
}

namespace {

// Of one element, as NumPy writes it: `<i8`, `|u1`; 0: of none.
std::uint64_t ElementSize(std::string_view type) {
  if (type.size() != 3 ||
      std::string_view("iuf").find(type[1]) == std::string_view::npos) {
    return 0;
  }
  const auto size = static_cast<std::uint64_t>(type[2] - '0');
  const bool is_known = size == 1 || size == 2 || size == 4 || size == 8;
  const bool is_float = type[1] == 'f';
  if (!is_known || (is_float && size < 4)) return 0;
  return type[0] == (size == 1 ? '|' : '<') ? size : 0;
}

// Of a column `name:type` or `name:type*n`.
std::uint64_t ColumnSize(std::string_view column) {
  const std::size_t colon = column.find(':');
  if (colon == 0 || colon == std::string_view::npos) return 0;
  std::string_view type = column.substr(colon + 1);
  std::uint64_t n = 1;
  if (const std::size_t star = type.find('*'); star != std::string_view::npos) {
    const std::string_view digits = type.substr(star + 1);
    if (digits.empty() || digits.size() > 9) return 0;
    n = 0;
    for (const char digit : digits) {
      if (digit < '0' || digit > '9') return 0;
      n = 10 * n + static_cast<std::uint64_t>(digit - '0');
    }
    type = type.substr(0, star);
  }
  return n * ElementSize(type);
}

}  // namespace

std::uint32_t RowSize(std::string_view columns) {
  if (columns != "time:<i8" && !columns.starts_with("time:<i8,")) {
    return 0;
  }
  std::uint64_t total = 0;
  for (std::size_t at = 0; at <= columns.size();) {
    const std::size_t comma = std::min(columns.find(',', at), columns.size());
    const std::uint64_t size = ColumnSize(columns.substr(at, comma - at));
    total += size;
    if (size == 0 || total > limits::kTable / 2) return 0;
    at = comma + 1;
  }
  return static_cast<std::uint32_t>(total);
}

}  // namespace tdbg
