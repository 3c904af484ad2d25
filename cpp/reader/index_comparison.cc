#include "reader/index_comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "format/cells.h"
#include "format/names.h"

namespace tdbg {
namespace {

// The tables that are compared as a whole; columns and cells are by
// group.
constexpr std::pair<SectionKind, const char*> kTables[] = {
    {SectionKind::kDefinitions, "definitions"},
    {SectionKind::kDefinitionBytes, "definitions"},
    {SectionKind::kDefinitionOrder, "order of the definitions"},
    {SectionKind::kTensors, "tensors"},
    {SectionKind::kTensorGroups, "tensors by definition"},
    {SectionKind::kTensorPostings, "tensors by definition"},
    {SectionKind::kScalars, "scalars"},
    {SectionKind::kScalarGroups, "scalars by definition"},
    {SectionKind::kScalarPostings, "scalars by definition"},
    {SectionKind::kRowsPlaces, "places of the rows"},
    {SectionKind::kSignatureIds, "definitions of the rows"},
    {SectionKind::kSignatureEnds, "definitions of the rows"},
    {SectionKind::kRecords, "events, spans, gaps and histograms"},
    {SectionKind::kSamples, "places of the samples"},
};

bool SayTheSame(StepEntry a, StepEntry b) {
  a.record.reserved = b.record.reserved = 0;
  return std::memcmp(&a, &b, sizeof(StepEntry)) == 0;
}

// Compilers may contract sums in one way or another.
bool IsClose(float a, float b) {
  return a == b ||
         std::abs(a - b) <= 1e-5F * std::max(std::abs(a), std::abs(b));
}

bool SayTheSame(const Cell& a, const Cell& b) {
  return std::memcmp(&a, &b, offsetof(Cell, ranges)) == 0 &&
         std::ranges::equal(a.ranges, b.ranges,
                            [](const auto& x, const auto& y) {
                              return IsClose(x.least, y.least) &&
                                     IsClose(x.greatest, y.greatest) &&
                                     IsClose(x.mean, y.mean);
                            });
}

bool SayTheSame(const ColumnRow& a, const ColumnRow& b) {
  return std::memcmp(&a, &b, sizeof(ColumnRow)) == 0;
}

// Whether what readers believe of these groups is what the records say.
template <typename Entry>
bool GroupsAgree(
    IndexReader* index, IndexReader* truth, SectionKind kind,
    std::size_t (IndexReader::*visit)(std::span<const Group>,
                                      const IndexReader::VisitGroup<Entry>&)) {
  const auto theirs = index->Table<Group>(kind);
  const auto ours = truth->Table<Group>(kind);
  if (!theirs || !ours) return true;  // They do not hold.
  if (theirs->size() != ours->size()) return false;
  for (std::size_t i = 0; i < theirs->size(); ++i) {
    bool agrees = (*theirs)[i].definition == (*ours)[i].definition;
    std::vector<Entry> expected;
    (truth->*visit)(ours->subspan(i, 1),
                    [&](const Group&, std::span<const Entry> entries) {
                      expected.assign(entries.begin(), entries.end());
                    });
    (index->*visit)(theirs->subspan(i, 1), [&](const Group&,
                                               std::span<const Entry> entries) {
      agrees = agrees && std::ranges::equal(entries, expected,
                                            [](const Entry& a, const Entry& b) {
                                              return SayTheSame(a, b);
                                            });
    });
    if (!agrees) return false;
  }
  return true;
}

}  // namespace

std::vector<Problem> CompareIndex(const End& end, IndexBuilder records,
                                  IndexReader* index) {
  const std::string name = ShardName(index->number(), ".tdi");
  std::vector<Problem> problems;
  const auto report = [&](SectionKind kind, const char* what) {
    const Section* section = index->Find(kind);
    const std::uint64_t offset = section == nullptr ? 0 : section->offset;
    const std::uint64_t length = section == nullptr ? 0 : section->n_bytes();
    const std::string message =
        "its " + std::string(what) +
        " are not those of the shard's records, and its checksums hold: the "
        "index was changed";
    if (problems.empty() || problems.back().message != message) {
      problems.push_back({ProblemKind::kDamage, name, offset, length, message});
    }
  };
  const Section* cells = index->Find(SectionKind::kCells);
  if (cells != nullptr) {
    records.UseBuckets(cells->flags >> kBucketShiftBit & 0xffU);
  }
  const IndexBuilder::File file =
      records.Finish(end.n_records, end.file_length);
  auto truth = IndexReader::OfBytes(file.bytes, index->number(), end,
                                    file.directory_crc);
  if (!truth) return problems;
  const auto steps = index->Table<StepEntry>(SectionKind::kSteps);
  const auto true_steps = truth->Table<StepEntry>(SectionKind::kSteps);
  if (steps && true_steps &&
      !std::ranges::equal(*steps, *true_steps,
                          [](const StepEntry& a, const StepEntry& b) {
                            return SayTheSame(a, b);
                          })) {
    report(SectionKind::kSteps, "steps");
  }
  for (const auto& [kind, what] : kTables) {
    const auto theirs = index->Table<std::byte>(kind);
    const auto ours = truth->Table<std::byte>(kind);
    if (theirs && ours && !std::ranges::equal(*theirs, *ours)) {
      report(kind, what);
    }
  }
  if (!GroupsAgree<ColumnRow>(index, &*truth, SectionKind::kColumnGroups,
                              &IndexReader::VisitColumns)) {
    report(SectionKind::kColumns, "columns");
  }
  if (cells != nullptr &&
      !GroupsAgree<Cell>(index, &*truth, SectionKind::kCellGroups,
                         &IndexReader::VisitCells)) {
    report(SectionKind::kCells, "cells");
  }
  return problems;
}

}  // namespace tdbg
