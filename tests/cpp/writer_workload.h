// A small training, as a writer sees it, and the check of what a reader finds
// of it afterwards: all that the tests of the writer under faults share.

#pragma once

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reader/run_reader.h"
#include "testing.h"
#include "writer/writer.h"

namespace tdbg::testing {

// How many values the tensor of step `step` has: mostly few, now and then more
// than a batch, or than is copied to one.
inline std::size_t WorkloadSize(std::int64_t step) {
  return step % 4 == 3 ? 600'000 : 700;
}
// The values of that tensor.  Made often, and so from what is made once.
inline std::vector<float> WorkloadValues(std::int64_t step) {
  static const std::vector<float> pattern = [] {
    std::vector<float> values(WorkloadSize(3));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 1000) * 0.5F;
    }
    return values;
  }();
  std::vector<float> values(WorkloadSize(step));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(step) + pattern[i];
  }
  return values;
}

constexpr std::uint64_t kWorkloadRows = 5;  // A step.
// Rows, tensor, scalar, event, step.
constexpr std::uint64_t kWorkloadRecords = 5;

inline WriterOptions WorkloadOptions(const std::string& run) {
  WriterOptions options;
  options.run_directory = run;
  options.min_free_bytes = 1;
  options.shard_bytes = 100'000;
  options.queue_bytes = 16U << 20;  // Batches are as small as they get.
  options.flush_interval = std::chrono::milliseconds(5);
  options.retry_interval = std::chrono::milliseconds(1);
  return options;
}

class Workload {
 public:
  explicit Workload(Writer* writer) : writer_(writer) {
    Definition definition;
    definition.role = TensorRole::kWeight;
    definition.dtype = DType::kFloat32;
    definition.item_size = 4;
    for (const std::int64_t step : {0, 3}) {
      definition.name = "weight";
      definition.shape = {static_cast<std::int64_t>(WorkloadSize(step))};
      (step == 0 ? small_ : large_) = writer->Define(definition);
    }
    Definition loss;
    loss.name = "loss";
    loss_ = writer->Define(loss);
  }

  // What a step of the training offers.
  void Step(std::int64_t step) {
    std::vector<Row> rows(kWorkloadRows);
    for (std::uint64_t i = 0; i < kWorkloadRows; ++i) {
      rows[i].definition = small_;
      rows[i].summary.count = static_cast<std::uint64_t>(step) * 10 + i;
    }
    (void)writer_->AddRows(step, rows);
    const std::vector<float> values = WorkloadValues(step);
    const std::size_t n = values.size();
    const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(n)};
    const TensorView view{.data = values.data(),
                          .dtype = DType::kFloat32,
                          .item_size = 4,
                          .shape = shape,
                          .strides = {}};
    (void)writer_->AddTensor(step, n > 1000 ? large_ : small_, view);
    const Scalar scalar{.definition = loss_,
                        .value = static_cast<double>(step)};
    (void)writer_->AddScalars(step, {&scalar, 1});
    (void)writer_->AddEvent(step, {.json = std::to_string(step)});
    (void)writer_->EndStep({.step = step, .mode = 1, .mode_step = step});
  }

 private:
  Writer* const writer_;
  std::uint32_t small_ = 0;
  std::uint32_t large_ = 0;
  std::uint32_t loss_ = 0;
};

// What a reader found.
struct Found {
  std::uint64_t records = 0;  // Of producers.
  std::uint64_t wrong = 0;    // Whose contents are not what was offered.
  std::uint64_t damage = 0;
  std::uint64_t torn = 0;
  std::uint64_t missing = 0;
  std::set<std::int64_t> steps;
  std::set<std::int64_t> tensors;     // Their steps.
  std::set<std::int64_t> unreadable;  // Those whose values cannot be read.
  std::uint64_t gap_records = 0;
  std::uint64_t step_failed = 0;
  std::vector<std::string> lost_tensors;  // The writer's events of them.
  bool readable = false;
};

inline Found ReadWorkload(const std::string& directory,
                          ReaderOptions options = {}) {
  Found found;
  auto opened = RunReader::Open(directory, options);
  if (!opened.ok()) return found;
  RunReader& reader = *opened.value();
  found.readable = true;
  for (const Problem& problem : reader.problems()) {
    if (problem.kind == ProblemKind::kTornTail) {
      ++found.torn;
    } else if (problem.kind == ProblemKind::kMissing) {
      ++found.missing;
      std::printf("%s: %s\n", problem.file.c_str(), problem.message.c_str());
    } else {
      ++found.damage;
      std::fprintf(stderr, "%s at %llu: %s\n", problem.file.c_str(),
                   static_cast<unsigned long long>(problem.offset),
                   problem.message.c_str());
    }
  }
  const auto rows = reader.Rows(0, reader.n_rows());
  for (const ColumnRow& row : rows) {
    const std::uint64_t expected =
        static_cast<std::uint64_t>(row.step) * 10 + row.position;
    if (row.summary.count != expected) ++found.wrong;
  }
  if (rows.size() % kWorkloadRows != 0) ++found.wrong;
  found.records += rows.size() / kWorkloadRows;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const std::int64_t step = reader.tensors()[i].step;
    found.tensors.insert(step);
    const auto value = reader.ReadTensor(i);
    if (!value.ok()) found.unreadable.insert(step);
    const std::vector<float> expected = WorkloadValues(step);
    if (!value.ok() || value.value().bytes.size() != expected.size() * 4 ||
        std::memcmp(value.value().bytes.data(), expected.data(),
                    expected.size() * 4) != 0) {
      ++found.wrong;
    }
  }
  found.records += reader.tensors().size();
  for (const ScalarEntry& entry : reader.scalars()) {
    if (entry.scalar.value != static_cast<double>(entry.step)) ++found.wrong;
  }
  found.records += reader.scalars().size();
  for (const EventEntry& entry : reader.events()) {
    if (entry.event.json.starts_with(R"({"what":"lost")")) {
      found.lost_tensors.push_back(entry.event.json);  // The writer's own.
      continue;
    }
    ++found.records;
    if (entry.event.json != std::to_string(entry.step)) ++found.wrong;
  }
  for (const StepEntry& entry : reader.steps()) {
    found.steps.insert(entry.record.step);
    found.step_failed += entry.record.failed;
  }
  found.records += reader.steps().size();
  for (const Gap& gap : reader.gaps()) found.gap_records += gap.records;
  return found;
}

}  // namespace tdbg::testing
