// Every record type: round trips, every prefix, and lengths that lie.
//
// Seen to fail when: a product is not checked for overflow; a zero extent hides
// the others; an element type may have any size; an entry may be smaller than
// its fields; the size of a table is computed in 32 bits; keys may repeat.

#include "format/record.h"

#include <limits>

#include "complete_shard.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int64_t>::max();

// Checks that no prefix of `payload` decodes, and that more bytes do no harm.
template <typename Decode>
void CheckLengths(const Bytes& payload, std::size_t smallest, Decode decode) {
  for (std::size_t n = 0; n < smallest; ++n) {
    const Bytes prefix(payload.begin(),
                       payload.begin() + static_cast<std::ptrdiff_t>(n));
    if (decode(prefix).ok()) {
      Fail(__FILE__, __LINE__, "a prefix of " + std::to_string(n));
    }
  }
  Bytes longer = payload;
  longer.resize(longer.size() + 40, std::byte{0xcc});
  EXPECT_OK(decode(longer));
}

TDBG_TEST(DefinitionsComeBack) {
  Definition d = SomeDefinition(7, "layer/\xc3\xa9", DType::kNumpy, {2, 0, 5});
  d.item_size = 20;
  d.dtype_text = "<U5";
  d.flags = 1;
  d.global_shape = {4, 0, 5};
  d.global_offset = {2, 0, 0};
  d.placements = {{PlacementKind::kShard, 0, 1, 8, 3},
                  {PlacementKind::kPartial, 5, 0, 2, 1}};
  d.aliases = {"", "other", std::string(4096, 'x')};
  const Bytes payload = EncodeDefinition(d);
  const auto back = DecodeDefinition(payload);
  EXPECT_OK(back);
  EXPECT_TRUE(back.value() == d);
  EXPECT_EQ(RawLength(d).value(), 0U);
  CheckLengths(payload, payload.size(), DecodeDefinition);
}

TDBG_TEST(EveryElementTypeHasItsSize) {
  for (std::uint16_t code = 0; code < 100; ++code) {
    Definition d = SomeDefinition(1, "w");
    d.dtype = static_cast<DType>(code);
    d.item_size = ItemSize(d.dtype);
    const auto right = DecodeDefinition(EncodeDefinition(d));
    ++d.item_size;
    const auto wrong = DecodeDefinition(EncodeDefinition(d));
    if (code == 0) {
      EXPECT_OK(right);
      EXPECT_FALSE(wrong.ok());
    } else if (code == 64) {
      EXPECT_FALSE(right.ok());  // No size.
      EXPECT_OK(wrong);          // Any other.
    } else if (IsKnownDType(code)) {
      EXPECT_OK(right);
      EXPECT_TRUE(wrong.status().code() == StatusCode::kCorruption);
    } else {
      EXPECT_TRUE(right.status().code() == StatusCode::kUnsupported);
    }
  }
}

TDBG_TEST(ShapesThatOverflowAreTypedErrors) {
  struct Row {
    std::vector<std::int64_t> shape;
    bool fits;
  };
  const Row rows[] = {
      {{}, true},
      {{1LL << 31}, true},
      {{(1LL << 31) + 1, (1LL << 28)}, true},
      {{1LL << 32, 1LL << 27}, true},
      {{1LL << 32, 1LL << 28}, true},  // 2^62 bytes: the last that fit.
      {{1LL << 32, (1LL << 28) + 1}, false},
      {{1LL << 61}, false},
      {{1LL << 62}, false},
      {{kMaxExtent}, false},
      {{kMaxExtent, kMaxExtent}, false},
      {{1LL << 32, 1LL << 32}, false},        // Wraps to 0.
      {{(1LL << 32) + 1, 1LL << 32}, false},  // Wraps to small.
      {{0, 1LL << 32, 1LL << 32}, false},     // Hidden by a zero.
      {{1LL << 32, 1LL << 32, 0}, false},
      {{0, kMaxExtent}, false},
      {{0, 1LL << 40}, true},
      {{0, 0}, true},
      {{-1}, false},
      {{-1, -1}, false},
      {{std::numeric_limits<std::int64_t>::min()}, false},
      {{0, -1}, false},
      {std::vector<std::int64_t>(64, 1), true},
      {std::vector<std::int64_t>(64, 2), false},
      {std::vector<std::int64_t>(65, 1), false},
  };
  for (const Row& row : rows) {
    const Definition d = SomeDefinition(1, "w", DType::kFloat32, row.shape);
    const auto decoded = DecodeDefinition(EncodeDefinition(d));
    EXPECT_EQ(decoded.ok(), row.fits);
    if (!row.fits) {
      EXPECT_TRUE(decoded.status().code() == StatusCode::kCorruption ||
                  decoded.status().code() == StatusCode::kLimitExceeded);
    }
  }
}

TDBG_TEST(LengthsOfADefinitionThatLieAreTypedErrors) {
  const Bytes good = EncodeDefinition(SomeDefinition(1, "w"));
  EXPECT_OK(DecodeDefinition(good));
  const auto with = [&](std::size_t at, auto value) {
    Bytes payload = good;
    Store(payload.data() + at, value);
    return DecodeDefinition(payload).status();
  };
  EXPECT_FALSE(with(0, std::uint32_t{0}).ok());  // Id 0.
  for (const std::uint16_t n :
       std::initializer_list<std::uint16_t>{0x41, 0xff, 0xffff}) {
    EXPECT_TRUE(with(12, n).code() == StatusCode::kLimitExceeded);
  }
  for (const std::uint16_t n :
       std::initializer_list<std::uint16_t>{1, 0x100, 0xffff}) {
    EXPECT_FALSE(with(14, n).ok());  // Aliases.
    EXPECT_FALSE(with(16, n).ok());  // Placements.
    EXPECT_FALSE(with(18, n).ok());  // Global dimensions.
  }
  for (const std::uint32_t n : {4097U, 0x7fffffffU, 0xffffffffU}) {
    EXPECT_TRUE(with(20, n).code() == StatusCode::kLimitExceeded);
    EXPECT_TRUE(with(24, n).code() == StatusCode::kLimitExceeded);
  }
  EXPECT_FALSE(with(20, std::uint32_t{2}).ok());
  EXPECT_FALSE(DecodeDefinition(Bytes((64 << 10) + 1)).ok());
}

TDBG_TEST(RowsComeBack) {
  std::vector<Row> rows = {SomeRow(1, 2.0), SomeRow(9, -3.5)};
  rows[1].call = 5;
  rows[1].micro_batch = 6;
  rows[1].flags = kRescaled;
  const Bytes payload = EncodeRows(rows);
  EXPECT_EQ(payload.size(), 16U + 2 * 112);
  const auto back = DecodeRows(payload);
  EXPECT_OK(back);
  EXPECT_EQ(back.value().size(), 2U);
  EXPECT_TRUE(EncodeRows(back.value()) == payload);
  CheckLengths(payload, payload.size(), DecodeRows);
}

TDBG_TEST(RowsOfALaterVersionAreRead) {
  const auto rows = DecodeRows(LongerRows(4));
  EXPECT_OK(rows);
  EXPECT_EQ(rows.value().size(), 2U);
  const Row& row = rows.value()[1];
  EXPECT_EQ(row.definition, 4U);
  EXPECT_EQ(row.call, 1);
  EXPECT_EQ(row.summary.count, 101U);
  EXPECT_EQ(row.summary.nan, 3U);
  EXPECT_EQ(row.summary.mean, 0.5);
  // What is not there has the value of no element.
  EXPECT_EQ(row.summary.zero, 0U);
  EXPECT_EQ(row.summary.min.f64, std::numeric_limits<double>::infinity());
}

TDBG_TEST(TablesThatLieAboutTheirLengthAreTypedErrors) {
  struct Case {
    std::uint32_t size;
    std::uint32_t n;
    std::uint64_t fields;
  };
  for (const Case& c :
       std::initializer_list<Case>{{0, 1, 0},
                                   {15, 1, 0},
                                   {16, 0xffffffff, 0},
                                   {0xffffffff, 0xffffffff, 0},
                                   {0xffffffff, 2, 0xfff},
                                   {1U << 31, 1U << 31, 0},
                                   {16, 1, 1},  // Smaller than its fields.
                                   {16 + 63 * 8, 1, ~0ULL},
                                   {16 + 64 * 8, 8, ~0ULL}}) {
    Bytes payload(16 + 1000);
    Store(payload.data(), c.size);
    Store(payload.data() + 4, c.n);
    Store(payload.data() + 8, c.fields);
    EXPECT_TRUE(DecodeRows(payload).status().code() == StatusCode::kCorruption);
  }
  for (const auto& [n, size] :
       std::initializer_list<std::pair<std::uint32_t, std::uint32_t>>{
           {1, 0},
           {1, 31},
           {4, 300},
           {0xffffffff, 0xffffffff},
           {1U << 31, 1U << 31},
           {1, 0xffffffff}}) {
    Bytes payload(8 + 1000);
    Store(payload.data(), n);
    Store(payload.data() + 4, size);
    EXPECT_FALSE(DecodeScalars(payload).ok());
    EXPECT_FALSE(DecodeSpans(payload).ok());
  }
  for (const std::uint32_t n : {101U, 1U << 16, 1U << 31, 0xffffffffU}) {
    Bytes payload(16 + 1000);
    Store(payload.data() + 12, n);
    EXPECT_FALSE(DecodeHistogram(payload).ok());
  }
}

TDBG_TEST(ScalarsAndSpansComeBack) {
  const std::vector<Scalar> scalars = {{1, 2, 3, 4.5}, {5, 6, -7, -8.5}};
  Bytes payload = EncodeScalars(scalars);
  EXPECT_TRUE(EncodeScalars(DecodeScalars(payload).value()) == payload);
  CheckLengths(payload, payload.size(), DecodeScalars);
  const std::vector<Span> spans = {{1, 2, 3, 4, 5, 6, 7},
                                   {8, 9, -10, 11, 12, 13, -14}};
  payload = EncodeSpans(spans);
  EXPECT_TRUE(EncodeSpans(DecodeSpans(payload).value()) == payload);
  CheckLengths(payload, payload.size(), DecodeSpans);
}

TDBG_TEST(StepsEventsGapsAndEndsComeBack) {
  StepRecord step;
  step.mode = 3;
  step.flags = 2;
  step.mode_step = 4;
  step.wall_ns = 5;
  step.monotonic_ns = 6;
  step.offered = 7;
  step.written = 8;
  step.dropped = 9;
  step.failed = 10;
  step.micro_batches = 11;
  step.capture_ns = 12;
  step.duration_ns = 13;
  Bytes payload = EncodeStep(step);
  EXPECT_EQ(payload.size(), 88U);
  EXPECT_TRUE(EncodeStep(DecodeStep(payload).value()) == payload);
  CheckLengths(payload, payload.size(), DecodeStep);

  Event event;
  event.kind = EventKind::kFinding;
  event.severity = 3;
  event.flags = 4;
  event.wall_ns = -5;
  event.json = "{}";
  payload = EncodeEvent(event);
  EXPECT_TRUE(EncodeEvent(DecodeEvent(payload).value()) == payload);
  CheckLengths(payload, payload.size(), DecodeEvent);
  EXPECT_FALSE(DecodeEvent(Bytes((1 << 20) + 1)).ok());

  const Gap gap = {1, 2, 3, 4, GapReason::kStalled, 127};
  payload = EncodeGap(gap);
  EXPECT_EQ(payload.size(), 40U);
  EXPECT_TRUE(EncodeGap(DecodeGap(payload).value()) == payload);
  CheckLengths(payload, payload.size(), DecodeGap);
  const Gap abandoned = {-1, -1, 3, 4, GapReason::kIoError, 127, 70, 75};
  payload = EncodeGap(abandoned);
  EXPECT_EQ(payload.size(), 56U);
  EXPECT_EQ(DecodeGap(payload).value().first_sequence, 70U);
  EXPECT_EQ(DecodeGap(payload).value().end_sequence, 75U);
  CheckLengths(payload, 40, DecodeGap);

  const End end = {128, 3, 4096, -1, 9, EndReason::kRotated};
  payload = EncodeEnd(end);
  EXPECT_EQ(payload.size(), 64U);
  EXPECT_TRUE(EncodeEnd(DecodeEnd(payload).value()) == payload);
  CheckLengths(payload, payload.size(), DecodeEnd);
}

TDBG_TEST(HistogramsComeBack) {
  for (const std::size_t n : {0U, 1U, 3U, 4U, 100U}) {
    Histogram histogram;
    histogram.definition = 3;
    histogram.call = 1;
    histogram.micro_batch = 2;
    for (std::size_t i = 0; i < n; ++i) {
      histogram.keys.push_back(static_cast<std::uint16_t>(i * 600));
      histogram.counts.push_back(i + 1);
    }
    const Bytes payload = EncodeHistogram(histogram);
    EXPECT_TRUE(EncodeHistogram(DecodeHistogram(payload).value()) == payload);
    CheckLengths(payload, payload.size(), DecodeHistogram);
  }
  Histogram twice;
  twice.keys = {5, 5};
  twice.counts = {1, 1};
  EXPECT_FALSE(DecodeHistogram(EncodeHistogram(twice)).ok());
}

TDBG_TEST(SamplesComeBack) {
  for (const std::size_t n : {0U, 1U, 3U}) {
    Bytes rows;
    ByteWriter w(&rows);
    for (std::size_t i = 0; i < n; ++i) {
      w.Put(std::int64_t{20} - 10 * static_cast<std::int64_t>(i));
      w.Put(std::uint32_t{7});
    }
    Bytes payload = EncodeSamples(3, 12, rows);
    const auto head = DecodeSamplesHead(payload);
    EXPECT_OK(head);
    EXPECT_EQ(head.value().definition, 3U);
    EXPECT_EQ(head.value().n_rows, n);
    EXPECT_EQ(head.value().row_size, 12U);
    const TimeRange times = TimesOf(head.value(), payload);
    EXPECT_EQ(times.first, n == 3 ? 0 : n == 1 ? 20 : 0);
    EXPECT_EQ(times.last, n == 0 ? -1 : 20);
    CheckLengths(payload, payload.size(), DecodeSamplesHead);
    payload[12] = std::byte{1};
    EXPECT_TRUE(DecodeSamplesHead(payload).status().code() ==
                StatusCode::kUnsupported);
  }
  for (const auto& [n, size] :
       std::initializer_list<std::pair<std::uint32_t, std::uint32_t>>{
           {1, 0},
           {1, 7},
           {11, 100},
           {0xffffffff, 0xffffffff},
           {1U << 31, 1U << 31}}) {
    Bytes payload(16 + 1000);
    Store(payload.data() + 4, n);
    Store(payload.data() + 8, size);
    EXPECT_TRUE(DecodeSamplesHead(payload).status().code() ==
                StatusCode::kCorruption);
  }
}

TDBG_TEST(ARowTakesWhatItsColumnsSay) {
  EXPECT_EQ(RowSize("time:<i8"), 8U);
  EXPECT_EQ(RowSize("time:<i8,a:<u2,b:|u1*192,c:<f4"), 206U);
  for (const char* columns :
       {"", "time", "time:<u8", "a:<i8", "time:<i8,", "time:<i8,:<i4",
        "time:<i8,a:<i3", "time:<i8,a:|i8", "time:<i8,a:<i1", "time:<i8,a:<f2",
        "time:<i8,a:|u1*", "time:<i8,a:|u1*x", "time:<i8,a:|u1*9999999999",
        "time:<i8,a:|u1*0", "time:<i8,a:<f8*999999999", "time:<i8*2"}) {
    EXPECT_EQ(RowSize(columns), 0U);
  }
}

TDBG_TEST(RecordHeadersAreCheckedAgainstTheirLimits) {
  const auto decode = [](RecordHeader header) {
    Bytes bytes(64);
    EncodeRecordHeader(header, 5, std::span<std::byte, 64>(bytes.data(), 64));
    return DecodeRecordHeader(bytes, 5).status();
  };
  RecordHeader header;
  for (unsigned type = 1; type < 20; ++type) {
    header.type = static_cast<RecordType>(type);
    const std::uint64_t limit = PayloadLimit(header.type);
    for (const std::uint64_t length :
         {limit + 1, std::uint64_t{1} << 41, ~std::uint64_t{0} - 63,
          ~std::uint64_t{0}}) {
      header.payload_length = header.checked_length = length;
      EXPECT_TRUE(decode(header).code() == StatusCode::kLimitExceeded);
    }
    header.payload_length = header.checked_length = 1000;
    EXPECT_OK(decode(header));
    header.checked_length = 1001;
    EXPECT_TRUE(decode(header).code() == StatusCode::kCorruption);
    header.checked_length = 999;
    EXPECT_EQ(decode(header).ok(), header.type == RecordType::kTensor);
  }
  header.type = RecordType::kTensor;
  header.payload_length = limits::kRecord;
  header.checked_length = limits::kTensorTable + 1;
  EXPECT_TRUE(decode(header).code() == StatusCode::kLimitExceeded);
  header = {};
  header.type = static_cast<RecordType>(0);
  EXPECT_TRUE(decode(header).code() == StatusCode::kCorruption);
  EXPECT_EQ(NextRecord(128, 0), 192U);
  EXPECT_EQ(NextRecord(128, 1), 256U);
  EXPECT_EQ(NextRecord(128, 64), 256U);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
