// The bytes on the disk: numbers that never change, headers, and the worked
// example of docs/format.md.
//
// Seen to fail when: fields of the file header or of a commit slot change
// places; the document has no example.

#include <cstdio>
#include <fstream>
#include <sstream>

#include "format/commit_page.h"
#include "format/index.h"
#include "format/index_file.h"
#include "format/record.h"
#include "shard_builder.h"
#include "testing.h"

namespace tdbg::testing {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(b));
    text += digits;
  }
  return text;
}

template <typename E>
unsigned Code(E e) {
  return static_cast<unsigned>(e);
}

TDBG_TEST(NumbersOnTheDiskNeverChange) {
  EXPECT_EQ(Code(RecordType::kPad), 1U);
  EXPECT_EQ(Code(RecordType::kDefinition), 2U);
  EXPECT_EQ(Code(RecordType::kRows), 3U);
  EXPECT_EQ(Code(RecordType::kTensor), 4U);
  EXPECT_EQ(Code(RecordType::kStep), 5U);
  EXPECT_EQ(Code(RecordType::kScalar), 6U);
  EXPECT_EQ(Code(RecordType::kEvent), 7U);
  EXPECT_EQ(Code(RecordType::kSpan), 8U);
  EXPECT_EQ(Code(RecordType::kGap), 9U);
  EXPECT_EQ(Code(RecordType::kHistogram), 10U);
  EXPECT_EQ(Code(RecordType::kIndex), 11U);
  EXPECT_EQ(Code(RecordType::kEnd), 12U);
  EXPECT_EQ(Code(WriterRole::kTrain), 1U);
  EXPECT_EQ(Code(WriterRole::kEngine), 2U);
  EXPECT_EQ(Code(WriterRole::kProfiler), 3U);
  const TensorRole roles[] = {TensorRole::kWeight,
                              TensorRole::kBias,
                              TensorRole::kGradient,
                              TensorRole::kInput,
                              TensorRole::kOutput,
                              TensorRole::kLoss,
                              TensorRole::kScalar,
                              TensorRole::kBuffer,
                              TensorRole::kOptimizerState,
                              TensorRole::kUpdate,
                              TensorRole::kUnitSummary,
                              TensorRole::kSpan,
                              TensorRole::kGradientUnclipped,
                              TensorRole::kOutputGradient,
                              TensorRole::kOther,
                              TensorRole::kPrediction,
                              TensorRole::kLabel,
                              TensorRole::kModelInput,
                              TensorRole::kGradientLocal};
  for (unsigned i = 0; i < 19; ++i) EXPECT_EQ(Code(roles[i]), i + 1);
  EXPECT_EQ(Code(PlacementKind::kShard), 1U);
  EXPECT_EQ(Code(PlacementKind::kReplicate), 2U);
  EXPECT_EQ(Code(PlacementKind::kPartial), 3U);
  EXPECT_EQ(Code(EventKind::kConfiguration), 1U);
  EXPECT_EQ(Code(EventKind::kCollections), 2U);
  EXPECT_EQ(Code(EventKind::kChange), 3U);
  EXPECT_EQ(Code(EventKind::kFinding), 4U);
  EXPECT_EQ(Code(EventKind::kStatus), 5U);
  EXPECT_EQ(Code(EventKind::kMessage), 6U);
  EXPECT_EQ(Code(GapReason::kQueueFull), 1U);
  EXPECT_EQ(Code(GapReason::kDiskNearlyFull), 2U);
  EXPECT_EQ(Code(GapReason::kIoError), 3U);
  EXPECT_EQ(Code(GapReason::kLargerThanQueue), 4U);
  EXPECT_EQ(Code(GapReason::kRefused), 5U);
  EXPECT_EQ(Code(GapReason::kStalled), 6U);
  EXPECT_EQ(Code(EndReason::kRotated), 1U);
  EXPECT_EQ(Code(EndReason::kClosed), 2U);
  EXPECT_EQ(Code(Codec::kRaw), 0U);
  EXPECT_EQ(Code(Codec::kZstd), 1U);
  EXPECT_EQ(Code(Codec::kZstdPlanes), 2U);
  EXPECT_EQ(Code(WriterState::kRunning), 1U);
  EXPECT_EQ(Code(WriterState::kClosed), 2U);
  EXPECT_EQ(Code(WriterState::kDegraded), 3U);
  EXPECT_EQ(kStepSkipped, 1U);
  EXPECT_EQ(kStepInterrupted, 2U);
  EXPECT_EQ(kRescaled, 1U);
  EXPECT_EQ(kChunkXorBase, 1U);
}

TDBG_TEST(ElementTypesNeverChange) {
  const std::pair<DType, unsigned> codes[] = {{DType::kBool, 1},
                                              {DType::kUInt8, 2},
                                              {DType::kInt8, 3},
                                              {DType::kUInt16, 4},
                                              {DType::kInt16, 5},
                                              {DType::kUInt32, 6},
                                              {DType::kInt32, 7},
                                              {DType::kUInt64, 8},
                                              {DType::kInt64, 9},
                                              {DType::kFloat16, 16},
                                              {DType::kFloat32, 17},
                                              {DType::kFloat64, 18},
                                              {DType::kBFloat16, 19},
                                              {DType::kFloat8E4M3Fn, 20},
                                              {DType::kFloat8E5M2, 21},
                                              {DType::kFloat8E4M3FnUz, 22},
                                              {DType::kFloat8E5M2FnUz, 23},
                                              {DType::kFloat8E8M0Fnu, 24},
                                              {DType::kComplex64, 32},
                                              {DType::kComplex128, 33},
                                              {DType::kNumpy, 64}};
  for (const auto& [dtype, code] : codes) EXPECT_EQ(Code(dtype), code);
}

// The shard of the document: an event and the end.
ShardBuilder Example() {
  FileHeader header;
  header.run = MakeUuid(0x00);
  header.attempt = MakeUuid(0xf0);
  header.world_size = 1;
  header.salt = 0x1122334455667788ULL;
  header.created_ns = 1'700'000'000'000'000'000;
  ShardBuilder shard(header);
  Event event;
  event.kind = EventKind::kMessage;
  event.severity = 1;
  event.wall_ns = 1'700'000'001'000'000'000;
  event.json = R"({"text": "hello"})";
  shard.Add(RecordType::kEvent, 7, EncodeEvent(event),
            static_cast<std::uint32_t>(event.kind));
  return shard;
}

TDBG_TEST(TheExampleOfTheDocumentIsWhatIsWritten) {
  // The lines "0000  89 54 ..." of the section "An example".
  std::ifstream file(TDBG_SOURCE_DIR "/docs/format.md");
  EXPECT_TRUE(file.good());
  std::string line;
  std::string shown;
  bool in_example = false;
  while (std::getline(file, line)) {
    if (line.starts_with("## ")) in_example = line == "## An example";
    if (!in_example || !line.starts_with("    0")) continue;
    std::istringstream words(line.substr(8, 50));
    std::string word;
    while (words >> word) shown += word;
  }
  EXPECT_EQ(shown, Hex(Example().bytes()));
  EXPECT_EQ(Example().bytes().size(), 256U);
}

TDBG_TEST(CommitPagesAndIndexesHaveTheirGoldenBytes) {
  CommitHeader header;
  header.pid = 4242;
  header.boot_id = MakeUuid(1);
  header.process_start = 99;
  header.host = MakeUuid(0x21);
  CommitSlot slot;
  slot.counter = 5;
  slot.visible = 256;
  slot.durable = 128;
  slot.heartbeat_ns = 77;
  slot.written = 3;
  slot.lost = 1;
  slot.shard_number = 2;
  slot.state = WriterState::kDegraded;
  slot.last_errno = 28;
  const auto page = EncodeCommitPage(header, slot);
  EXPECT_EQ(Hex(std::span(page).first(64)),
            std::string("89544443"
                        "0d0a1a0a"
                        "01004000"
                        "92100000"
                        "0102030405060708090a0b0c0d0e0f10"
                        "6300000000000000"
                        "2122232425262728292a2b2c2d2e2f30"
                        "00000000") +
                Hex(std::span(page).subspan(60, 4)));
  EXPECT_EQ(Hex(std::span(page).subspan(128, 60)),
            std::string("0500000000000000"
                        "0001000000000000"
                        "8000000000000000"
                        "4d00000000000000"
                        "0300000000000000"
                        "0100000000000000"
                        "02000000"
                        "0300"
                        "1c00"
                        "00000000"));
  EXPECT_EQ(Load<std::uint32_t>(page.data() + 60),
            MaskedCrc32c(page.data(), 60));
  EXPECT_EQ(Load<std::uint32_t>(page.data() + 188),
            MaskedCrc32c(page.data() + 128, 60));

  std::array<std::byte, 64> bytes{};
  IndexEntry entry;
  entry.header.type = RecordType::kTensor;
  entry.header.sequence = 9;
  entry.header.step = 4;
  entry.header.payload_length = 300;
  entry.header.checked_length = 128;
  entry.header.subject = 6;
  entry.header.payload_crc = 0x01020304;
  entry.call = 2;
  entry.micro_batch = 3;
  entry.offset = 128;
  EncodeIndexEntry(entry, bytes);
  EXPECT_EQ(Hex(std::span(bytes).first(60)), std::string("0400"
                                                         "0200"
                                                         "06000000"
                                                         "0900000000000000"
                                                         "0400000000000000"
                                                         "8000000000000000"
                                                         "2c01000000000000"
                                                         "8000000000000000"
                                                         "04030201"
                                                         "0300"
                                                         "0000"
                                                         "00000000"));
  EncodeIndexHeader({0x0102030405060708ULL, 3}, bytes);
  EXPECT_EQ(Hex(std::span(bytes).first(32)), std::string("895444490d0a1a0a"
                                                         "02004000"
                                                         "00000000"
                                                         "0807060504030201"
                                                         "03000000"
                                                         "00000000"));
  const Section section{.kind = SectionKind::kSteps,
                        .entry_size = 104,
                        .offset = 128,
                        .n_entries = 3,
                        .crc = 0x01020304,
                        .flags = kStepsAscend,
                        .first_step = 5,
                        .last_step = 7};
  EXPECT_EQ(Hex(EncodeSections({&section, 1})),
            std::string("04000000"
                        "68000000"
                        "8000000000000000"
                        "0300000000000000"
                        "04030201"
                        "01000000"
                        "0500000000000000"
                        "0700000000000000") +
                std::string(32, '0'));
  EncodeIndexFooter({.salt = 0x0102030405060708ULL,
                     .shard_length = 9,
                     .n_records = 10,
                     .directory_offset = 11,
                     .n_sections = 12,
                     .directory_crc = 0x01020304},
                    bytes);
  EXPECT_EQ(Hex(std::span(bytes).first(48)), std::string("54444946"
                                                         "4f4f5432"
                                                         "0807060504030201"
                                                         "0900000000000000"
                                                         "0a00000000000000"
                                                         "0b00000000000000"
                                                         "0c000000"
                                                         "04030201"));
}

TDBG_TEST(FileHeadersComeBack) {
  FileHeader header = SomeHeader(9);
  header.compatible_features = 0xffff0000;
  header.role = WriterRole::kProfiler;
  header.attempt_ordinal = 3;
  header.rank = 17;
  header.world_size = 64;
  header.generation = 5;
  header.first_sequence = 1000;
  Bytes bytes(128);
  EncodeFileHeader(header, std::span<std::byte, 128>(bytes.data(), 128));
  const auto decoded = DecodeFileHeader(bytes);
  EXPECT_OK(decoded);
  const FileHeader& back = decoded.value();
  EXPECT_TRUE(back.role == header.role && back.run == header.run &&
              back.attempt == header.attempt);
  EXPECT_EQ(back.compatible_features, header.compatible_features);
  EXPECT_EQ(back.attempt_ordinal, 3U);
  EXPECT_EQ(back.rank, 17U);
  EXPECT_EQ(back.world_size, 64U);
  EXPECT_EQ(back.generation, 5U);
  EXPECT_EQ(back.shard_number, 9U);
  EXPECT_EQ(back.salt, header.salt);
  EXPECT_EQ(back.created_ns, header.created_ns);
  EXPECT_EQ(back.first_sequence, 1000U);
  for (std::size_t n = 0; n < 128; ++n) {
    EXPECT_FALSE(DecodeFileHeader(std::span(bytes).first(n)).ok());
  }
}

// Changes two bytes at `at` and makes the checksum fit again.
Status WithField(std::size_t at, std::uint16_t value) {
  Bytes bytes(128);
  EncodeFileHeader(SomeHeader(), std::span<std::byte, 128>(bytes.data(), 128));
  Store(bytes.data() + at, value);
  Store(bytes.data() + 124, MaskedCrc32c(bytes.data(), 124));
  return DecodeFileHeader(bytes).status();
}

TDBG_TEST(LaterVersionsAndFeaturesAreUnsupported) {
  EXPECT_OK(WithField(12, 0xffff));   // Compatible features.
  EXPECT_OK(WithField(104, 0xffff));  // Room for what comes.
  EXPECT_TRUE(WithField(8, 2).code() == StatusCode::kUnsupported);
  EXPECT_TRUE(WithField(16, 1).code() == StatusCode::kUnsupported);
  EXPECT_TRUE(WithField(18, 0x8000).code() == StatusCode::kUnsupported);
  EXPECT_TRUE(WithField(10, 256).code() == StatusCode::kCorruption);
  EXPECT_TRUE(WithField(20, 0).code() == StatusCode::kCorruption);
  EXPECT_TRUE(WithField(20, 4).code() == StatusCode::kCorruption);
}

}  // namespace
}  // namespace tdbg::testing

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
