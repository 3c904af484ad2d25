// The sampler on the machine that the test runs on, against what processes of
// the test do.

#include "sampler/system_sampler.h"

#include <sched.h>
#include <signal.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/process.h"
#include "child_process.h"
#include "collected_rows.h"
#include "machine_tree.h"
#include "sampler/machine_board.h"
#include "sampler/machine_facts.h"
#include "sampler/profile_rows.h"
#include "sampler/sources.h"
#include "sampler/training_processes.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::CollectedRows;
using testing::MachineTree;

SamplerOptions Fast() {
  SamplerOptions options;
  options.interval_ns = SamplerOptions::kLeastIntervalNs;
  options.nvml_library = "libnothing.so";
  return options;
}

// A child that burns a core, or sleeps, until it is killed.
class Child {
 public:
  explicit Child(bool burns)
      : pid_(testing::Fork([burns] {
          volatile std::uint64_t n = 0;
          for (;;) {
            if (!burns) ::pause();
            n = n + 1;
          }
          return 0;
        })) {}
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    (void)testing::WaitFor(pid_, std::chrono::milliseconds(60'000));
    pid_ = -1;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TDBG_TEST(AnIntervalBelowTheLeastIsRefused) {
  CollectedRows rows;
  SamplerOptions options = Fast();
  options.interval_ns = 49'999'999;
  const auto refused = SystemSampler::Start(options, rows.sink());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(refused.status().message().find("49999999") != std::string::npos);
}

TDBG_TEST(TheHostIsMeasured) {
  CollectedRows rows;
  auto sampler = SystemSampler::Start(Fast(), rows.sink());
  EXPECT_OK(sampler);
  EXPECT_TRUE(rows.WaitFor<SystemRow>(20));
  sampler.value()->Close();
  const std::vector<SystemRow> system = rows.Of<SystemRow>();
  const SystemRow& last = system.back();
  struct sysinfo info{};
  EXPECT_EQ(::sysinfo(&info), 0);
  EXPECT_EQ(last.memory_total, info.totalram * info.mem_unit);
  EXPECT_LT(last.memory_available, last.memory_total);
  EXPECT_GT(last.processes_running, 0U);
  EXPECT_GT(last.allowed_cores, 0.0F);
  EXPECT_TRUE(std::isnan(system.front().cpu_user));  // Nothing before it.
  EXPECT_TRUE(std::is_sorted(
      system.begin(), system.end(),
      [](const auto& a, const auto& b) { return a.time < b.time; }));
  bool has_shares = false;
  for (const SystemRow& row : system) {
    const float sum =
        row.cpu_user + row.cpu_system + row.cpu_iowait + row.cpu_steal;
    if (std::isnan(sum)) continue;
    has_shares = true;
    EXPECT_GE(sum, 0.0F);
    EXPECT_LE(sum, 1.0001F);
  }
  EXPECT_TRUE(has_shares);
  const auto n_cores =
      static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_CONF));
  EXPECT_EQ(rows.Columns("core"), CoreColumns(n_cores));
  EXPECT_EQ(rows.Bytes("core").size(), system.size() * (8 + n_cores));
}

TDBG_TEST(AProcessThatBurnsACoreIsToldFromOneThatSleeps) {
  CollectedRows rows;
  auto sampler = SystemSampler::Start(Fast(), rows.sink());
  EXPECT_OK(sampler);
  const Child burns(true);
  const Child sleeps(false);
  EXPECT_TRUE(sampler.value()->AddProcess(burns.pid(), 3, kRankKind, -1));
  EXPECT_TRUE(sampler.value()->AddProcess(sleeps.pid(), 3, 2, 7));
  const auto of = [](const auto& all, pid_t pid) {
    std::vector<ProcessRow> own;
    std::copy_if(all.begin(), all.end(), std::back_inserter(own),
                 [pid](const auto& row) { return row.pid == pid; });
    return own;
  };
  EXPECT_TRUE(rows.Wait<ProcessRow>("", [&](const auto& all) {
    const auto own = of(all, burns.pid());
    return own.size() >= 10 && of(all, sleeps.pid()).size() >= 10 &&
           own.back().run_ns > own.front().run_ns + 100'000'000;
  }));
  const auto busy = of(rows.Of<ProcessRow>(), burns.pid());
  const auto idle = of(rows.Of<ProcessRow>(), sleeps.pid());
  EXPECT_EQ(busy.back().state, unsigned{'R'});
  EXPECT_EQ(busy.back().rank, 3);
  EXPECT_EQ(busy.back().kind, kRankKind);
  EXPECT_EQ(busy.back().worker, -1);
  // It ran, or waited for a core, all the time.
  const auto wall = busy.back().time - busy.front().time;
  const auto ran = busy.back().run_ns - busy.front().run_ns;
  const auto queued = busy.back().queued_ns - busy.front().queued_ns;
  EXPECT_CLOSE(ran + queued, wall, 0.2);
  EXPECT_CLOSE(busy.back().cpu_ns, busy.back().run_ns, 0.3);
  EXPECT_EQ(idle.back().state, unsigned{'S'});
  EXPECT_EQ(idle.back().worker, 7);
  EXPECT_LT(idle.back().run_ns - idle.front().run_ns, 20'000'000U);
  EXPECT_GT(idle.back().resident_bytes, 4096U);
  EXPECT_EQ(idle.back().threads, 1U);
}

TDBG_TEST(AProcessThatEndedIsFollowedNoMore) {
  TrainingProcesses processes("", 0);
  Child child(false);
  const std::uint64_t start = ProcessStart(child.pid());
  processes.Add({.pid = child.pid(), .start_ticks = start, .kind = 2});
  processes.Add({.pid = child.pid(), .start_ticks = start, .kind = 2});
  processes.Add({.pid = child.pid(), .start_ticks = start + 1, .kind = 2});
  EXPECT_EQ(processes.size(), 1U);
  TextBuffer buffer;
  int n = 0;
  processes.Sample(1, &buffer, [&](const auto&) { ++n; });
  child.Kill();
  processes.Sample(2, &buffer, [&](const auto&) { ++n; });
  EXPECT_EQ(n, 1);
  EXPECT_EQ(processes.size(), 0U);
}

// A tree with that many processes, of which one is a rank.
MachineTree ManyProcesses(int n) {
  MachineTree tree;
  for (int pid = 1; pid <= n; ++pid) {
    const std::string folder = "/proc/" + std::to_string(pid);
    tree.Write(folder + "/stat", std::to_string(pid) +
                                     " (x) S 1 1 1 0 -1 4 1 0 0 0 1 1 0 0 20 0 "
                                     "1 0 77 1000 5 0\n");
  }
  return tree;
}

TDBG_TEST(ManyWorkersAreReadInTurnAndRanksAlways) {
  const MachineTree tree = ManyProcesses(41);
  for (const std::size_t may_stay_open : {0U, 30U, 1000U}) {
    TrainingProcesses processes(tree.root(), may_stay_open);
    for (int pid = 1; pid <= 41; ++pid) {
      processes.Add({.pid = pid,
                     .start_ticks = 77,
                     .kind = pid == 1 ? kRankKind : kRankKind + 1});
    }
    TextBuffer buffer;
    std::map<std::int32_t, int> seen;
    for (int i = 0; i < 8; ++i) {
      std::size_t n = 0;
      processes.Sample(i, &buffer, [&](const ProcessRow& row) {
        ++seen[row.pid];
        ++n;
        EXPECT_EQ(row.run_ns, kNotMeasured);  // There is no schedstat.
      });
      EXPECT_EQ(n, 1 + TrainingProcesses::kInTurn);
    }
    EXPECT_EQ(seen.size(), 41U);
    EXPECT_EQ(seen[1], 8);
    EXPECT_EQ(seen[41], 1);  // 40 readings of 40 processes.
  }
}

TDBG_TEST(AMachineWithoutFilesHasRowsInWhichNothingIsMeasured) {
  const MachineTree tree;
  CollectedRows rows;
  SamplerOptions options = Fast();
  options.root = tree.root();
  auto sampler = SystemSampler::Start(options, rows.sink());
  EXPECT_OK(sampler);
  EXPECT_TRUE(rows.WaitFor<SystemRow>(20));
  sampler.value()->Close();
  const SystemRow row = rows.Of<SystemRow>().back();
  EXPECT_TRUE(std::isnan(row.cpu_user));
  EXPECT_EQ(row.memory_total, kNotMeasured);
  EXPECT_EQ(row.cgroup_memory, kNotMeasured);
  EXPECT_EQ(row.cpu_some_ns, kNotMeasured);
  EXPECT_EQ(row.energy_uj, kNotMeasured);
  EXPECT_EQ(rows.events().size(), 1U);
  const std::string event = rows.events().at(0);
  for (const char* what : {"\"cores\": \"cannot read", "\"disk\"", "\"gpu\"",
                           "\"energy\"", "\"pressure\"", "\"quota\": null"}) {
    EXPECT_TRUE(event.find(what) != std::string::npos);
  }
}

TDBG_TEST(TheEventOfAMachineIsJson) {
  MachineFacts facts;
  facts.node = "a\"b\\c\n\xff";
  facts.cores = 4;
  facts.quota = 1.5;
  facts.memory = 1024;
  facts.gpus.push_back({.index = 1, .uuid = "GPU-1", .name = "A", .memory = 5});
  facts.disks = {"sda", "sdb"};
  facts.not_measured["energy"] = "none";
  EXPECT_EQ(MachineEvent(facts),
            "{\"what\": \"machine\", \"node\": \"a\\\"b\\\\c\\u000a?\", "
            "\"boot_id\": \"\", \"cores\": 4, \"allowed_cores\": 0, "
            "\"quota\": 1.5, \"memory\": 1024, \"memory_limit\": null, "
            "\"gpus\": [{\"index\": 1, \"uuid\": \"GPU-1\", \"name\": \"A\", "
            "\"memory\": 5}], \"networks\": [], \"disks\": [\"sda\", \"sdb\"], "
            "\"kernel\": \"\", \"container\": null, "
            "\"not_measured\": {\"energy\": \"none\"}}");
}

TDBG_TEST(WhatFailsLaterIsSaidOnceInAnEventOfItsOwn) {
  CollectedRows rows;
  const auto gate = std::make_shared<RowGate>(rows.sink());
  MachineBoard board(gate);
  board.SetNotMeasured("gpu", "no driver");
  EXPECT_FALSE(board.IsMachineDue(1, false));  // It waits for the GPUs,
  EXPECT_TRUE(board.IsMachineDue(1, true));    // but not at the end,
  EXPECT_TRUE(board.IsMachineDue(1 + MachineBoard::kPatienceNs, false));
  board.WriteMachine({});  // and not forever.
  EXPECT_EQ(rows.events().size(), 1U);
  EXPECT_FALSE(board.IsMachineDue(2 + MachineBoard::kPatienceNs, true));
  board.SetNotMeasured("gpu", "no driver");
  board.SetNotMeasured("disk", "gone");
  board.SetNotMeasured("disk", "still gone");
  EXPECT_EQ(rows.events().size(), 2U);
  EXPECT_EQ(rows.events().at(1),
            "{\"what\": \"profiler\", \"part\": \"system\", "
            "\"not_measured\": {\"disk\": \"gone\"}}");
}

TDBG_TEST(ContainersAreTold) {
  const MachineTree tree;
  EXPECT_EQ(FindContainer(tree.root(), "/user.slice"), "");
  EXPECT_EQ(FindContainer(tree.root(), "/kubepods/burstable/pod1"),
            "kubernetes");
  EXPECT_EQ(FindContainer(tree.root(), "/docker/abc"), "docker");
  tree.Write("/run/.containerenv", "");
  EXPECT_EQ(FindContainer(tree.root(), "/"), "podman");
}

TDBG_TEST(AllowedCoresAreThoseOfThisProcess) {
  const std::vector<bool> own = AllowedCores({});
  cpu_set_t set;
  EXPECT_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(std::count(own.begin(), own.end(), true), CPU_COUNT(&set));
  const std::vector<bool> same = AllowedCores({::getpid(), 1 << 29});
  EXPECT_TRUE(same == own);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
