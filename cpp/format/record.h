// The records of a shard: their types, their contents as values, and the
// functions that turn one into the other.
//
// Implements docs/format.md, "A shard".  Pure functions over bytes: no files,
// no threads.  Encoders cannot fail.  Decoders check every length against its
// limit and against the bytes given, ignore trailing bytes that they do not
// know, and return kCorruption, kLimitExceeded or kUnsupported otherwise.
//
// Thread safety: values and pure functions.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"
#include "tensor/summary.h"

namespace tdbg {

using Uuid = std::array<std::byte, 16>;

// All on disk: never renumber.
enum class RecordType : std::uint16_t {
  kPad = 1,
  kDefinition = 2,
  kRows = 3,
  kTensor = 4,
  kStep = 5,
  kScalar = 6,
  kEvent = 7,
  kSpan = 8,
  kGap = 9,
  kHistogram = 10,
  kIndex = 11,
  kEnd = 12,
  kSamples = 13,
};
enum class WriterRole : std::uint32_t {
  kTrain = 1,
  kEngine = 2,
  kProfiler = 3
};
enum class TensorRole : std::uint16_t {
  kWeight = 1,
  kBias = 2,
  kGradient = 3,
  kInput = 4,
  kOutput = 5,
  kLoss = 6,
  kScalar = 7,
  kBuffer = 8,
  kOptimizerState = 9,
  kUpdate = 10,
  kUnitSummary = 11,
  kSpan = 12,
  kGradientUnclipped = 13,
  kOutputGradient = 14,
  kOther = 15,
  kPrediction = 16,
  kLabel = 17,
  kModelInput = 18,
  kGradientLocal = 19,
  kTable = 20,
};
enum class PlacementKind : std::uint8_t {
  kShard = 1,
  kReplicate = 2,
  kPartial = 3
};
enum class EventKind : std::uint16_t {
  kConfiguration = 1,
  kCollections = 2,
  kChange = 3,
  kFinding = 4,
  kStatus = 5,
  kMessage = 6,
};
enum class GapReason : std::uint32_t {
  kQueueFull = 1,
  kDiskNearlyFull = 2,
  kIoError = 3,
  kLargerThanQueue = 4,
  kRefused = 5,
  kStalled = 6,
  kSampled = 7,      // Left out on purpose, so that others could be kept.
  kDeviceError = 8,  // The device did not deliver.
  kRetention = 9,    // Removed afterwards, as somebody wished.
};
enum class EndReason : std::uint32_t { kRotated = 1, kClosed = 2 };

inline constexpr std::uint32_t kStepSkipped = 1;      // StepRecord::flags
inline constexpr std::uint32_t kStepInterrupted = 2;  // StepRecord::flags
// All that the step dropped are tensors that were left out on purpose.
inline constexpr std::uint32_t kStepSampled = 4;  // StepRecord::flags
inline constexpr std::uint32_t kRescaled = 1;     // Row and tensor flags.
inline constexpr std::int64_t kNoStep = -1;

namespace limits {
inline constexpr std::size_t kAlignment = 64;
inline constexpr std::size_t kFileHeader = 128;
inline constexpr std::size_t kRecordHeader = 64;
inline constexpr std::size_t kDimensions = 64;
inline constexpr std::size_t kName = 4096;
inline constexpr std::uint64_t kDefinition = 64ULL << 10;
inline constexpr std::uint64_t kEvent = 1ULL << 20;
inline constexpr std::uint64_t kTable = 64ULL << 20;  // rows, scalars, ...
inline constexpr std::uint64_t kSmall = 64ULL << 10;  // step, gap, end.
inline constexpr std::uint64_t kTensorTable = 128ULL << 20;
inline constexpr std::uint64_t kIndex = 1ULL << 30;
inline constexpr std::uint64_t kRecord = 1ULL << 40;
inline constexpr std::uint64_t kShard = 1ULL << 62;
inline constexpr std::uint32_t kChunk = 16U << 20;
}  // namespace limits

inline constexpr std::uint32_t kChunkBytes = 256U << 10;  // What we write.

struct FileHeader {
  std::uint32_t compatible_features = 0;
  std::uint32_t incompatible_features = 0;
  WriterRole role = WriterRole::kTrain;
  Uuid run{};
  Uuid attempt{};
  std::uint32_t attempt_ordinal = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t generation = 1;
  std::uint32_t shard_number = 1;
  std::uint64_t salt = 0;
  std::int64_t created_ns = 0;
  std::uint64_t first_sequence = 1;
};

struct RecordHeader {
  RecordType type = RecordType::kPad;  // May hold a value unknown to us.
  std::uint64_t sequence = 0;
  std::int64_t step = kNoStep;
  std::uint64_t payload_length = 0;
  std::uint64_t checked_length = 0;
  std::uint32_t subject = 0;
  std::uint32_t payload_crc = 0;  // Masked.
};

struct Placement {
  PlacementKind kind = PlacementKind::kReplicate;
  std::uint8_t reduction = 0;
  std::uint16_t dimension = 0;
  std::uint32_t mesh_size = 1;
  std::uint32_t coordinate = 0;
  bool operator==(const Placement&) const = default;
};

struct Definition {
  std::uint32_t id = 0;
  TensorRole role = TensorRole::kOther;
  DType dtype = DType::kInvalid;
  std::uint32_t item_size = 0;
  std::uint32_t flags = 0;
  std::string name;
  std::string dtype_text;  // NumPy's dtype.str, for DType::kNumpy.
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> global_shape;   // Empty, or as long as shape.
  std::vector<std::int64_t> global_offset;  // Likewise.
  std::vector<Placement> placements;
  std::vector<std::string> aliases;
  bool operator==(const Definition&) const = default;
};

// A statistics row as it stands in a `rows` record.
struct Row {
  std::uint32_t definition = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint32_t flags = 0;
  Summary summary;
};

struct StepRecord {
  std::int64_t step = 0;  // Global; stands in the record header.
  std::uint32_t mode = 4;
  std::uint32_t flags = 0;
  std::int64_t mode_step = 0;
  std::int64_t wall_ns = 0;
  std::int64_t monotonic_ns = 0;
  std::uint64_t offered = 0;
  std::uint64_t written = 0;
  std::uint64_t dropped = 0;
  std::uint64_t failed = 0;
  std::uint32_t micro_batches = 1;
  std::uint32_t reserved =
      0;  // Of an index that an older tdbg wrote, anything.
  std::int64_t capture_ns = 0;
  std::int64_t duration_ns = 0;
};

struct Scalar {
  std::uint32_t definition = 0;
  std::uint32_t flags = 0;
  std::int64_t wall_ns = 0;
  double value = 0.0;
};

struct Event {
  EventKind kind = EventKind::kMessage;
  std::uint16_t severity = 0;
  std::uint32_t flags = 0;
  std::int64_t wall_ns = 0;
  std::string json;
};

struct Span {
  std::uint32_t definition = 0;
  std::uint32_t flags = 0;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::uint64_t thread = 0;
  std::uint32_t depth = 0;
  std::int64_t value = 0;
};

struct Gap {
  std::int64_t first_step = kNoStep;
  std::int64_t last_step = kNoStep;
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
  GapReason reason = GapReason::kQueueFull;
  std::uint32_t what = 0;
  // Of shards that were abandoned: the sequences [first_sequence, end_sequence)
  // were given to records that may not be there.  0 and 0: none.
  std::uint64_t first_sequence = 0;
  std::uint64_t end_sequence = 0;
};

struct Histogram {
  std::uint32_t definition = 0;
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
  std::uint16_t scheme = 1;
  std::vector<std::uint16_t> keys;
  std::vector<std::uint64_t> counts;
};

// Rows of a table whose columns its definition names; they follow the head.
struct SamplesHead {
  std::uint32_t definition = 0;
  std::uint32_t n_rows = 0;
  std::uint32_t row_size = 0;
};

struct End {
  std::uint64_t index_offset = 0;
  std::uint64_t n_records = 0;
  std::uint64_t file_length = 0;
  std::int64_t first_step = kNoStep;
  std::int64_t last_step = kNoStep;
  EndReason reason = EndReason::kClosed;
  // Crc of the directory of the shard's index file; 0 when it has none.
  std::uint32_t index_crc = 0;
};

// --- Headers ---------------------------------------------------------------

void EncodeFileHeader(const FileHeader& header, std::span<std::byte, 128> out);
Result<FileHeader> DecodeFileHeader(std::span<const std::byte> bytes);

// Writes the 64 bytes of a record header, both checksums included.
// `header.payload_crc` must hold the masked crc of the checked payload.
void EncodeRecordHeader(const RecordHeader& header, std::uint64_t salt,
                        std::span<std::byte, 64> out);
// Checks magic, salt, crc, reserved bytes and the limits of the lengths.
Result<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes,
                                        std::uint64_t salt);
// Checks magic and salt only, which is cheap.
// REQUIRES: 64 readable bytes.
[[nodiscard]] bool MayBeRecord(const std::byte* bytes, std::uint64_t salt);

// The largest payload of a record of this type.
[[nodiscard]] std::uint64_t PayloadLimit(RecordType type);
// Whether the lengths of `header` are within limits and fit each other.
Status CheckLengths(const RecordHeader& header);

// Offset of the next record when one of `payload_length` starts at `offset`.
// REQUIRES: payload_length <= limits::kRecord.
[[nodiscard]] std::uint64_t NextRecord(std::uint64_t offset,
                                       std::uint64_t payload_length);

// Appends a whole record (header, payload, padding) to `out`, whose size must
// be a multiple of 64.  checked_length and payload_crc are computed here over
// the whole payload.
void AppendRecord(RecordHeader header, std::uint64_t salt,
                  std::span<const std::byte> payload,
                  std::vector<std::byte>* out);

// --- Payloads --------------------------------------------------------------

std::vector<std::byte> EncodeDefinition(const Definition& definition);
Result<Definition> DecodeDefinition(std::span<const std::byte> payload);
// Bytes of a tensor of this definition: elements times bytes per element.
// Errors: kLimitExceeded when that is above 2^62.
Result<std::uint64_t> RawLength(const Definition& definition);

// The head of a `rows` record; its rows follow it.
struct RowsHead {
  std::uint32_t row_size = 0;
  std::uint32_t n_rows = 0;
  std::uint64_t fields = 0;
};
inline constexpr std::size_t kRowsHeadBytes = 16;

std::vector<std::byte> EncodeRows(std::span<const Row> rows);
// Checks that all the rows are there.
Result<RowsHead> DecodeRowsHead(std::span<const std::byte> payload);
// Fields missing from the record's bitmap keep the value of an empty Summary.
Result<std::vector<Row>> DecodeRows(std::span<const std::byte> payload);

std::vector<std::byte> EncodeStep(const StepRecord& step);
// `step.step` is not in the payload: take it from the record header.
Result<StepRecord> DecodeStep(std::span<const std::byte> payload);

std::vector<std::byte> EncodeScalars(std::span<const Scalar> scalars);
Result<std::vector<Scalar>> DecodeScalars(std::span<const std::byte> payload);

std::vector<std::byte> EncodeEvent(const Event& event);
Result<Event> DecodeEvent(std::span<const std::byte> payload);

std::vector<std::byte> EncodeSpans(std::span<const Span> spans);
Result<std::vector<Span>> DecodeSpans(std::span<const std::byte> payload);

std::vector<std::byte> EncodeGap(const Gap& gap);
Result<Gap> DecodeGap(std::span<const std::byte> payload);

std::vector<std::byte> EncodeHistogram(const Histogram& histogram);
// Bytes of one of `n_bins` bins.
[[nodiscard]] constexpr std::uint64_t HistogramBytes(std::uint64_t n_bins) {
  return 16 + (2 * n_bins + 7) / 8 * 8 + 8 * n_bins;
}
Result<Histogram> DecodeHistogram(std::span<const std::byte> payload);

inline constexpr std::size_t kSamplesHeadBytes = 16;

// REQUIRES: rows.size() is a multiple of row_size, which is not 0.
std::vector<std::byte> EncodeSamples(std::uint32_t definition,
                                     std::uint32_t row_size,
                                     std::span<const std::byte> rows);
// Checks that all the rows are there.
Result<SamplesHead> DecodeSamplesHead(std::span<const std::byte> payload);
// The least and the greatest time of the rows; 0 and -1 without rows.
// REQUIRES: the head of `payload` was decoded.
struct TimeRange {
  std::int64_t first = 0;
  std::int64_t last = -1;
};
[[nodiscard]] TimeRange TimesOf(const SamplesHead& head,
                                std::span<const std::byte> payload);

// What a row of these columns takes, as the definition of a table names them:
// `time:<i8,busy:|u1*4`.  0 where they are no columns, or the first is no time.
[[nodiscard]] std::uint32_t RowSize(std::string_view columns);

inline constexpr std::size_t kEndBytes = 64;

std::vector<std::byte> EncodeEnd(const End& end);
Result<End> DecodeEnd(std::span<const std::byte> payload);

}  // namespace tdbg
