// The index file (.tdi): its header, directory and footer.
//
// Implements docs/format.md, "The index".  Pure functions over bytes; the index
// is never evidence: a reader falls back to the shard when anything here does
// not hold.
//
// Thread safety: values and pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "format/record.h"

namespace tdbg {

inline constexpr std::size_t kIndexHeaderBytes = 64;
inline constexpr std::size_t kIndexFooterBytes = 64;
inline constexpr std::size_t kIndexSectionBytes = 64;

// All on disk: never renumber.  A reader ignores kinds that it does not know.
enum class SectionKind : std::uint32_t {
  kDefinitions = 1,      // DefinitionPlace, ascending by id.
  kDefinitionBytes = 2,  // Payloads of `definition` records.
  kDefinitionOrder = 3,  // u32 places in 1, in the order of the records.
  kSteps = 4,            // StepEntry
  kTensors = 5,          // TensorEntry
  kTensorGroups = 6,     // Group, ascending by definition.
  kTensorPostings = 7,   // u32 places in 5
  kScalars = 8,          // ScalarEntry
  kScalarGroups = 9,     // Group
  kScalarPostings = 10,  // u32 places in 8
  kRowsPlaces = 11,      // RowsPlace
  kSignatureIds = 12,    // u32 definitions
  kSignatureEnds = 13,   // u64 ends in 12
  kColumnGroups = 14,    // Group
  kColumns = 15,         // ColumnRow, grouped by definition; checked by column.
  kRecords = 16,         // IndexEntry of events, spans, gaps and histograms.
  kCellGroups = 17,      // Group
  kCells = 18,           // Cell, grouped by definition; checked by group.
  kSamples = 19,         // SamplesPlace; its steps are times.
};
inline constexpr std::uint32_t kSectionKinds = 19;

// Section::flags
inline constexpr std::uint32_t kStepsAscend = 1;
// Of kCells the logarithm of a bucket's steps stands from this bit on.
inline constexpr unsigned kBucketShiftBit = 8;

// Where the payload of a `definition` record lies in kDefinitionBytes.
struct DefinitionPlace {
  std::uint32_t id = 0;
  std::uint32_t length = 0;
  std::uint64_t first = 0;
};
static_assert(sizeof(DefinitionPlace) == 16);

// A directory entry.
struct Section {
  SectionKind kind = SectionKind::kDefinitions;
  std::uint32_t entry_size = 0;
  std::uint64_t offset = 0;
  std::uint64_t n_entries = 0;
  std::uint32_t crc = 0;  // Masked, of all its bytes; 0: checked by group.
  std::uint32_t flags = 0;
  // Smallest and largest step of the entries; 0 and -1 if none has a step.
  std::int64_t first_step = 0;
  std::int64_t last_step = -1;

  [[nodiscard]] std::uint64_t n_bytes() const { return n_entries * entry_size; }
};

struct IndexHeader {
  std::uint64_t salt = 0;
  std::uint32_t shard_number = 0;
};

struct IndexFooter {
  std::uint64_t salt = 0;
  std::uint64_t shard_length = 0;
  std::uint64_t n_records = 0;  // As in `end`.
  std::uint64_t directory_offset = 0;
  std::uint32_t n_sections = 0;
  std::uint32_t directory_crc = 0;  // Masked; as in `end`.
};

void EncodeIndexHeader(const IndexHeader& header, std::span<std::byte, 64> out);
Result<IndexHeader> DecodeIndexHeader(std::span<const std::byte> bytes);

std::vector<std::byte> EncodeSections(std::span<const Section> sections);
// Checks that each lies within [header, footer.directory_offset), at a multiple
// of 64, in ascending order and without overlap, and that no known kind stands
// twice.
Result<std::vector<Section>> DecodeSections(std::span<const std::byte> bytes,
                                            const IndexFooter& footer);

void EncodeIndexFooter(const IndexFooter& footer, std::span<std::byte, 64> out);
Result<IndexFooter> DecodeIndexFooter(std::span<const std::byte> bytes);

}  // namespace tdbg
