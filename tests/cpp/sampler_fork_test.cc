// Who samples when processes die, and what a forked child has of a sampler.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "child_process.h"
#include "collected_rows.h"
#include "sampler/node_file.h"
#include "sampler/system_sampler.h"
#include "temporary_directory.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::CollectedRows;
using testing::Fork;
using testing::TemporaryDirectory;
using testing::WaitFor;

constexpr std::chrono::milliseconds kPatience{60'000};

TDBG_TEST(AnotherProcessSamplesOnceTheFirstWasKilled) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/node";
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = Fork([&] {
    auto file = NodeFile::Join(path);
    const char answer = file.ok() && file.value()->TrySample() ? 'y' : 'n';
    (void)::write(ready[1], &answer, 1);
    ::pause();
    return 0;
  });
  char answer = 0;
  EXPECT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  auto file = NodeFile::Join(path);
  EXPECT_OK(file);
  EXPECT_FALSE(file.value()->TrySample());
  ::kill(child, SIGKILL);
  EXPECT_EQ(WaitFor(child, kPatience).signal, SIGKILL);
  EXPECT_TRUE(file.value()->TrySample());
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TDBG_TEST(ProcessesThatCameAndWentLeaveNoFile) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/node";
  for (int i = 0; i < 20; ++i) {
    pid_t children[4];
    for (pid_t& child : children) {
      child = Fork([&] { return NodeFile::Join(path).ok() ? 0 : 1; });
    }
    for (const pid_t child : children) {
      EXPECT_EQ(WaitFor(child, kPatience).exit_code, 0);
    }
    EXPECT_NE(::access(path.c_str(), F_OK), 0);
  }
}

TDBG_TEST(AForkedChildsCopyDoesNothing) {
  const TemporaryDirectory directory;
  CollectedRows rows;
  SamplerOptions options;
  options.interval_ns = SamplerOptions::kLeastIntervalNs;
  options.node_file = directory.path() + "/node";
  auto sampler = SystemSampler::Start(options, rows.sink());
  EXPECT_OK(sampler);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = Fork([&] {
      if (sampler.value()->AddProcess(::getpid(), 0, 1, -1)) return 1;
      sampler.value()->Close();
      sampler.value().reset();
      return 0;
    });
    EXPECT_EQ(WaitFor(child, kPatience).exit_code, 0);
  }
  // The parent still samples, and still holds the lock.
  const std::size_t n = rows.Of<SystemRow>().size();
  EXPECT_TRUE(rows.WaitFor<SystemRow>(n + 20));
  EXPECT_TRUE(sampler.value()->is_sampling());
  const pid_t other = Fork([&] {
    auto file = NodeFile::Join(options.node_file);
    return file.ok() && !file.value()->TrySample() ? 0 : 1;
  });
  EXPECT_EQ(WaitFor(other, kPatience).exit_code, 0);
}

TDBG_TEST(AProcessEndsThoughItsSamplerWasNeverClosed) {
  const pid_t child = Fork([] {
    static CollectedRows rows;  // Threads may write until the very end.
    auto sampler = SystemSampler::Start({}, rows.sink());
    if (!sampler.ok()) return 1;
    (void)sampler.value().release();
    return 0;
  });
  EXPECT_EQ(WaitFor(child, kPatience).exit_code, 0);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
