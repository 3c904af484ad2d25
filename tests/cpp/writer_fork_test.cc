// The process forks while producers and writer are busy: the child's copy does
// nothing and blocks nowhere, and the parent's data is its own.
//
//   writer_fork_test [FILTER [FORKS]]     1,000 forks when not told, under
//   AddressSanitizer
//                                         150

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "reader/run_reader.h"
#include "sanitized.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"

namespace tdbg {
namespace {

using std::chrono::milliseconds;

constexpr std::int64_t kChildStep = 1LL << 40;
constexpr int kProducers = 4;

std::uint64_t n_forks = testing::kHasAddressSanitizer ? 150 : 1000;

// Uses every method of the parent's writer; 0 when all of them are inert.
int UseInChild(std::unique_ptr<Writer>* writer, std::uint32_t definition) {
  Writer& w = **writer;
  const auto start = std::chrono::steady_clock::now();
  Row row;
  row.definition = definition;
  const Scalar scalar{.definition = definition, .value = 1};
  const Span span{.definition = definition};
  const double value = 1;
  const TensorView view{.data = &value,
                        .dtype = DType::kFloat64,
                        .item_size = 8,
                        .shape = {},
                        .strides = {}};
  int n_wrong = 0;
  n_wrong += w.inert() ? 0 : 1;
  n_wrong += w.AddRows(kChildStep, {&row, 1}) ? 1 : 0;
  n_wrong += w.AddScalars(kChildStep, {&scalar, 1}) ? 1 : 0;
  n_wrong += w.AddSpans(kChildStep, {&span, 1}) ? 1 : 0;
  n_wrong += w.AddEvent(kChildStep, {.json = "{}"}) ? 1 : 0;
  n_wrong += w.AddTensor(kChildStep, definition, view) ? 1 : 0;
  n_wrong +=
      w.AddHistogram(kChildStep,
                     {.definition = definition, .keys = {}, .counts = {}})
          ? 1
          : 0;
  w.Refuse(kChildStep, 1, 1);
  n_wrong += w.EndStep({.step = kChildStep}) ? 1 : 0;
  n_wrong += w.Define(Definition()) == 0 ? 0 : 1;
  n_wrong += w.definition(definition) == nullptr ? 0 : 1;
  n_wrong += w.counters().offered == 0 ? 0 : 1;
  n_wrong +=
      w.Flush(true, milliseconds(5000)).code() == StatusCode::kClosed ? 0 : 1;
  n_wrong += w.Close(milliseconds(5000)).ok() ? 0 : 1;
  writer->reset();
  // All of this at once.  The bound is for a busy machine.
  if (std::chrono::steady_clock::now() - start > milliseconds(2000)) ++n_wrong;
  return n_wrong;
}

// Sabotage seen to fail here: a writer that does not notice the fork (the first
// children hang on a lock or fault on memory that they do not have).
TDBG_TEST(AChildIsInertAndTheParentUnharmed) {
  const testing::TemporaryDirectory run;
  WriterOptions options;
  options.run_directory = run.path();
  options.min_free_bytes = 0;
  options.queue_bytes = 4 << 20;
  options.shard_bytes = 4 << 20;
  options.flush_interval = milliseconds(2);
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  std::unique_ptr<Writer> writer = std::move(opened).value();
  const std::string directory = writer->directory();
  Definition definition;
  definition.name = "loss";
  const std::uint32_t id = writer->Define(definition);

  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> n_taken{0};
  std::atomic<std::uint64_t> n_offered{0};
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (std::int64_t i = 0; !stop.load(); ++i) {
        const std::int64_t step = i * kProducers + p;
        const Scalar scalar{.definition = id,
                            .value = static_cast<double>(step)};
        n_offered.fetch_add(1);
        if (writer->AddScalars(step, {&scalar, 1})) n_taken.fetch_add(1);
        if (i % 16 == 0) (void)writer->EndStep({.step = step});
        // Busy, but not so that the forks never get a turn on two cores.
        if (i % 64 == 0) std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  std::uint64_t n_inert = 0;
  std::uint64_t n_while_busy = 0;
  for (std::uint64_t i = 0; i < n_forks; ++i) {
    const std::uint64_t before = n_offered.load();
    const pid_t child = testing::Fork([&] { return UseInChild(&writer, id); });
    const testing::Ending ending = testing::WaitFor(child, milliseconds(10000));
    EXPECT_FALSE(ending.timed_out);
    EXPECT_EQ(ending.signal, 0);
    EXPECT_EQ(ending.exit_code, 0);
    if (ending.exit_code == 0) ++n_inert;
    if (n_offered.load() != before) ++n_while_busy;
    if (testing::Failures() > 5) break;
  }
  stop.store(true);
  for (std::thread& producer : producers) producer.join();
  EXPECT_OK(writer->Close(milliseconds(20000)));
  const Counters c = writer->counters();
  EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);

  auto opened_reader = RunReader::Open(directory, {});
  EXPECT_OK(opened_reader);
  RunReader& reader = *opened_reader.value();
  EXPECT_EQ(reader.problems().size(), 0U);
  EXPECT_EQ(reader.scalars().size(), n_taken.load());
  std::uint64_t n_wrong = 0;
  for (const ScalarEntry& entry : reader.scalars()) {
    if (entry.scalar.value != static_cast<double>(entry.step)) ++n_wrong;
    if (entry.step >= kChildStep) ++n_wrong;
  }
  for (const StepEntry& entry : reader.steps()) {
    if (entry.record.step >= kChildStep) ++n_wrong;
  }
  EXPECT_EQ(n_wrong, 0U);
  EXPECT_EQ(reader.definitions().size(), 1U);
  std::printf("       %llu forks, %llu while records came in, %llu records\n",
              static_cast<unsigned long long>(n_inert),
              static_cast<unsigned long long>(n_while_busy),
              static_cast<unsigned long long>(reader.scalars().size()));
  EXPECT_EQ(n_inert, n_forks);
  EXPECT_GE(n_while_busy, n_forks / 2);
}

// ThreadSanitizer supports no new threads in a forked child.
#if !defined(__SANITIZE_THREAD__)
TDBG_TEST(AChildMayOpenAWriterOfItsOwn) {
  const testing::TemporaryDirectory run;
  WriterOptions options;
  options.run_directory = run.path();
  options.min_free_bytes = 0;
  auto opened = Writer::Open(options);
  EXPECT_OK(opened);
  const pid_t child = testing::Fork([&] {
    auto own = Writer::Open(options);
    if (!own.ok() || own.value()->generation() != 2) return 1;
    if (!own.value()->AddEvent(kNoStep, {.json = "{}"})) return 2;
    return own.value()->Close(milliseconds(20000)).ok() ? 0 : 3;
  });
  EXPECT_EQ(testing::WaitFor(child, milliseconds(30000)).exit_code, 0);
  auto reader = RunReader::Open(run.path() + "/w/train-0-2", {});
  EXPECT_OK(reader);
  EXPECT_EQ(reader.value()->events().size(), 1U);
}
#endif

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) {
  if (argc > 2) tdbg::n_forks = std::strtoull(argv[2], nullptr, 10);
  return tdbg::testing::Run(argc, argv);
}
