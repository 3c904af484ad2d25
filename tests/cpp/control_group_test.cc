// Control groups of both versions, nested, in containers, and broken ones.

#include "sampler/control_group.h"

#include <cmath>
#include <string>

#include "machine_tree.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::MachineTree;

constexpr char kVersion2Mount[] =
    "22 27 0:21 / /proc rw - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

MachineTree Version2(const std::string& group) {
  MachineTree tree;
  tree.Write("/proc/self/cgroup", "0::" + group + "\n");
  tree.Write("/proc/self/mountinfo", kVersion2Mount);
  tree.Write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  return tree;
}

ControlGroup::Reading Read(const MachineTree& tree) {
  TextBuffer buffer;
  return ControlGroup(tree.root()).Read(1, &buffer);
}

TDBG_TEST(TheTightestLimitOnTheWayUpCounts) {
  const MachineTree tree = Version2("/pod/container/step");
  const std::string top = "/sys/fs/cgroup/pod";
  tree.Write(top + "/memory.max", "8000\n");
  tree.Write(top + "/memory.current", "3000\n");
  tree.Write(top + "/cpu.max", "400000 100000\n");
  tree.Write(top + "/container/memory.max", "1000\n");
  tree.Write(top + "/container/memory.current", "700\n");
  tree.Write(top + "/container/memory.stat",
             "anon 1\nfile 9\ninactive_file 150\nactive_file 50\n");
  tree.Write(top + "/container/memory.events", "low 0\noom 2\noom_kill 1\n");
  tree.Write(top + "/container/cpu.max", "150000 100000\n");
  tree.Write(top + "/container/cpu.stat",
             "usage_usec 5\nnr_periods 40\nnr_throttled 30\n"
             "throttled_usec 2000\n");
  tree.Write(top + "/container/step/memory.max", "max\n");
  tree.Write(top + "/container/step/memory.current", "600\n");
  tree.Write(top + "/container/step/cpu.max", "max 100000\n");
  const ControlGroup::Reading reading = Read(tree);
  EXPECT_EQ(reading.memory_limit, 1000U);
  EXPECT_EQ(reading.memory, 500U);  // Without 200 bytes of files.
  EXPECT_EQ(reading.oom_kills, 1U);
  EXPECT_CLOSE(reading.quota_cores, 1.5, 1e-9);
  EXPECT_EQ(reading.throttling.periods, 40U);
  EXPECT_EQ(reading.throttling.throttled, 30U);
  EXPECT_EQ(reading.throttling.throttled_ns, 2'000'000U);
}

TDBG_TEST(WithoutALimitTheOwnGroupCounts) {
  const MachineTree tree = Version2("/user/session");
  tree.Write("/sys/fs/cgroup/user/memory.current", "900\n");
  tree.Write("/sys/fs/cgroup/user/memory.max", "max\n");
  tree.Write("/sys/fs/cgroup/user/session/memory.current", "300\n");
  tree.Write("/sys/fs/cgroup/user/session/memory.max", "max\n");
  const ControlGroup::Reading reading = Read(tree);
  EXPECT_EQ(reading.memory, 300U);
  EXPECT_EQ(reading.memory_limit, kNotMeasured);
  EXPECT_TRUE(std::isinf(reading.quota_cores));
  EXPECT_EQ(reading.throttling.periods, kNotMeasured);
}

TDBG_TEST(TheGroupOfTheWholeHostHasNoFigures) {
  const MachineTree tree = Version2("/");
  const ControlGroup::Reading reading = Read(tree);
  EXPECT_EQ(reading.memory, kNotMeasured);
  EXPECT_EQ(reading.memory_limit, kNotMeasured);
}

TDBG_TEST(AContainerWithItsOwnViewSeesItsGroupAtTheTop) {
  const MachineTree tree = Version2("/");
  tree.Write("/sys/fs/cgroup/memory.max", "5000\n");
  tree.Write("/sys/fs/cgroup/memory.current", "100\n");
  tree.Write("/sys/fs/cgroup/cgroup.type", "domain\n");
  tree.Write("/sys/fs/cgroup/cpu.pressure", "some avg10=0 total=3\n");
  tree.Write("/proc/pressure/cpu", "some avg10=0 total=999\n");
  tree.Write("/proc/pressure/io", "some avg10=0 total=8\n");
  EXPECT_EQ(Read(tree).memory_limit, 5000U);
  TextBuffer buffer;
  ControlGroup group(tree.root());
  (void)group.Read(1, &buffer);
  EXPECT_EQ(group.ReadStalls(&buffer).cpu.some_ns, 3000U);  // Its own.
  EXPECT_EQ(group.ReadStalls(&buffer).io.some_ns, 8000U);   // The host's.
}

TDBG_TEST(AContainerThatSeesItsHostsNamesIsFound) {
  MachineTree tree;
  tree.Write("/proc/self/cgroup",
             "9:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n"
             "1:name=systemd:/docker/abc\n0::/docker/abc\n");
  tree.Write(
      "/proc/self/mountinfo",
      "41 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,nosuid master:9 - "
      "cgroup cgroup rw,memory\n"
      "42 31 0:33 /docker/abc /sys/fs/cgroup/cpu\\040set ro - cgroup "
      "cgroup rw,cpu,cpuacct\n");
  const std::string memory = "/sys/fs/cgroup/memory/";
  tree.Write(memory + "memory.limit_in_bytes", "4096\n");
  tree.Write(memory + "memory.usage_in_bytes", "3000\n");
  tree.Write(memory + "memory.stat",
             "inactive_file 1\nactive_file 1\ntotal_inactive_file 900\n"
             "total_active_file 100\n");
  tree.Write(memory + "memory.oom_control",
             "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
  const std::string cpu = "/sys/fs/cgroup/cpu set/";
  tree.Write(cpu + "cpu.cfs_quota_us", "50000\n");
  tree.Write(cpu + "cpu.cfs_period_us", "100000\n");
  tree.Write(cpu + "cpu.stat",
             "nr_periods 10\nnr_throttled 5\nthrottled_time 777\n");
  const ControlGroup::Reading reading = Read(tree);
  EXPECT_EQ(reading.memory_limit, 4096U);
  EXPECT_EQ(reading.memory, 2000U);
  EXPECT_EQ(reading.oom_kills, 4U);
  EXPECT_CLOSE(reading.quota_cores, 0.5, 1e-9);
  EXPECT_EQ(reading.throttling.throttled_ns, 777U);
}

TDBG_TEST(VersionOneSaysNoLimitByAHugeOne) {
  MachineTree tree;
  tree.Write("/proc/self/cgroup", "4:memory:/job/step\n1:cpu:/job/step\n");
  tree.Write("/proc/self/mountinfo",
             "1 1 0:1 / /cg/memory rw - cgroup cgroup rw,memory\n"
             "2 1 0:2 / /cg/cpu rw - cgroup cgroup rw,cpu\n");
  tree.Write("/cg/memory/job/step/memory.limit_in_bytes",
             "9223372036854771712\n");
  tree.Write("/cg/memory/job/step/memory.usage_in_bytes", "10\n");
  tree.Write("/cg/memory/job/memory.limit_in_bytes", "500\n");
  tree.Write("/cg/memory/job/memory.usage_in_bytes", "20\n");
  tree.Write("/cg/cpu/job/step/cpu.cfs_quota_us", "-1\n");
  tree.Write("/cg/cpu/job/step/cpu.cfs_period_us", "100000\n");
  const ControlGroup::Reading reading = Read(tree);
  EXPECT_EQ(reading.memory_limit, 500U);
  EXPECT_EQ(reading.memory, 20U);
  EXPECT_TRUE(std::isinf(reading.quota_cores));
}

TDBG_TEST(AGroupThatIsNotSeenHereIsTakenForTheOneAtTheTop) {
  for (const char* group : {"/../other", "/gone/away"}) {
    const MachineTree tree = Version2(group);
    tree.Write("/sys/fs/cgroup/memory.max", "123\n");
    EXPECT_EQ(Read(tree).memory_limit, 123U);
  }
}

TDBG_TEST(LimitsThatChangeAreSeenAtTheNextLookup) {
  const MachineTree tree = Version2("/job");
  tree.Write("/sys/fs/cgroup/job/memory.max", "100\n");
  TextBuffer buffer;
  ControlGroup group(tree.root());
  EXPECT_EQ(group.Read(1, &buffer).memory_limit, 100U);
  tree.Write("/sys/fs/cgroup/job/memory.max", "200\n");
  EXPECT_EQ(group.Read(2, &buffer).memory_limit, 100U);
  EXPECT_EQ(group.Read(1 + ControlGroup::kLookupNs, &buffer).memory_limit,
            200U);
}

TDBG_TEST(WithoutGroupsNothingIsMeasured) {
  const MachineTree tree;
  const ControlGroup::Reading reading = Read(tree);
  EXPECT_EQ(reading.memory, kNotMeasured);
  EXPECT_EQ(reading.oom_kills, kNotMeasured);
  EXPECT_TRUE(std::isinf(reading.quota_cores));
}

TDBG_TEST(HostileGroupsAreSurvived) {
  const std::string deep(3000, '/');
  for (const std::string& text :
       {std::string(), std::string("::"), std::string("0::"),
        std::string("0::relative"), "0::" + deep, std::string("a:b"),
        "0::/" + std::string(100'000, 'x'), std::string(10'000, ':'),
        std::string("0::/a\0b", 7)}) {
    MachineTree tree;
    tree.Write("/proc/self/cgroup", text);
    tree.Write("/proc/self/mountinfo", kVersion2Mount + text);
    (void)Read(tree);
    (void)ParseMemberships(text);
    (void)ParseGroupMounts(text + " - cgroup2 x y\n\\\\0\\04 - cgroup");
  }
  EXPECT_TRUE(std::isinf(ParseQuota("100000 0")));
  EXPECT_TRUE(std::isinf(ParseQuota("garbage")));
  EXPECT_EQ(ParseMemoryLimit("max"), kNotMeasured);
  EXPECT_EQ(ParseFileBytes("active_file 1", true), kNotMeasured);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
