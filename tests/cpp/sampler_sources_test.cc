// What the kernel's text files say, of whole machines and of broken ones.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "machine_tree.h"
#include "sampler/devices.h"
#include "sampler/host_memory.h"
#include "sampler/kernel_file.h"
#include "sampler/package_energy.h"
#include "sampler/process_files.h"
#include "sampler/processors.h"
#include "sampler/text.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::MachineTree;

// Texts that a parser must survive, whatever it was written for.
std::vector<std::string> HostileTexts() {
  std::vector<std::string> texts = {
      "",
      "\n\n\n",
      std::string(100'000, '\n'),
      std::string(100'000, ' '),
      std::string(100'000, '9'),
      std::string("cpu\0\0 1 2", 9),
      "cpu",
      "cpu0",
      "cpu 1",
      "cpu99999999999999999999 1 2 3 4",
      "cpu8192 1 2 3 4",
      "cpu-1 1 2 3 4",
      "procs_running -5\nprocs_blocked 99999999999999999999999",
      "some avg10=nan total=",
      "full total=18446744073709551616",
      "1 (",
      "1 ()",
      ") R",
      "1 (a) RR 2 3",
      "MemTotal: 99999999999999999999 kB",
      "MemTotal: 18446744073709551615 kB",
      "pswpin 18446744073709551615",
      "eth0:",
      ": : : :",
      "eth0: -1 -2 -3",
      "8 0",
      "8 0 sda 1 2 3",
      "8 0 sda -1 x y z 1 2 3 4 5 6",
  };
  std::string bytes;
  for (int i = 0; i < 4096; ++i) {
    bytes += static_cast<char>(i * 2654435761U >> 13);
  }
  texts.push_back(bytes);
  return texts;
}

TDBG_TEST(NumbersAreDigitsOnlyAndFit) {
  EXPECT_EQ(ParseNumber("0").value_or(7), 0U);
  EXPECT_EQ(ParseNumber("18446744073709551614").value_or(7), kNotMeasured - 1);
  for (const char* text :
       {"", "-1", "+1", "1.5", "0x1", "1 ", "1k", "18446744073709551616"}) {
    EXPECT_FALSE(ParseNumber(text).has_value());
  }
  EXPECT_EQ(Scaled(kNotMeasured, 2), kNotMeasured);
  EXPECT_EQ(Scaled(1ULL << 63, 2), kNotMeasured);
  EXPECT_EQ(Scaled(3, 512), 1536U);
  EXPECT_EQ(Sum(1, kNotMeasured), kNotMeasured);
  EXPECT_EQ(Sum(kNotMeasured - 1, 2), kNotMeasured);
  EXPECT_EQ(Narrow(1ULL << 32), kNotMeasured32);
  EXPECT_EQ(Narrow(5), 5U);
}

TDBG_TEST(AFileIsReadAgainFromItsBeginning) {
  const MachineTree tree;
  TextBuffer buffer;
  tree.Write("/a", "one");
  KernelFile file(tree.root() + "/a");
  EXPECT_TRUE(file.Read(&buffer) == "one");
  tree.Write("/a", "another");
  EXPECT_TRUE(file.Read(&buffer) == "another");
  tree.Write("/a", std::string(100'000, 'x'));
  EXPECT_EQ(file.Read(&buffer).value_or("").size(), 100'000U);
  tree.Write("/a", "");
  EXPECT_TRUE(file.Read(&buffer) == "");
}

TDBG_TEST(AFileThatIsNotThereIsReadWhenItIs) {
  const MachineTree tree;
  TextBuffer buffer;
  KernelFile file(tree.root() + "/late");
  EXPECT_FALSE(file.Read(&buffer).has_value());
  EXPECT_EQ(file.error(), ENOENT);
  tree.Write("/late", "here");
  EXPECT_TRUE(file.Read(&buffer) == "here");
  EXPECT_FALSE(KernelFile(tree.root()).Read(&buffer).has_value());
}

TDBG_TEST(ARecordIsReadWholeHoweverLongItIs) {
  MachineTree tree;
  TextBuffer buffer;
  KernelFile file(tree.root() + "/record", KernelFile::Content::kRecord);
  for (const std::size_t n : {0, 1, 8191, 8192, 8193, 40000}) {
    const std::string text(n, 'x');
    tree.Write("/record", text);
    EXPECT_EQ(file.Read(&buffer).value_or("none"), text);
  }
}

TDBG_TEST(AFileWithoutEndIsRefused) {
  TextBuffer buffer;
  KernelFile zeros("/dev/zero");
  EXPECT_FALSE(zeros.Read(&buffer).has_value());
  EXPECT_EQ(zeros.error(), EFBIG);
}

// --- Processors --------------------------------------------------------------

TDBG_TEST(CoresAreReadByTheirNumber) {
  ProcessorTicks ticks;
  ParseProcessorTicks(
      "cpu  10 20 30 40 50 6 7 8 9 10\n"
      "cpu0 1 2 3 4 5 6 7 8 0 0\n"
      "cpu2 100 0 0 300 0 0 0 0 0 0\n"
      "intr 5 0 0\nctxt 4\nprocs_running 3\nprocs_blocked 2\n",
      &ticks);
  EXPECT_EQ(ticks.all.user, 30U);
  EXPECT_EQ(ticks.all.system, 30U + 6 + 7);
  EXPECT_EQ(ticks.all.steal, 8U);
  EXPECT_EQ(ticks.cores.size(), 3U);
  EXPECT_EQ(ticks.cores[0].user, 3U);
  EXPECT_FALSE(ticks.cores[1].is_known());  // Offline.
  EXPECT_EQ(ticks.cores[2].idle, 300U);
  EXPECT_EQ(ticks.processes_running, 3U);
  EXPECT_EQ(ticks.processes_blocked, 2U);
}

TDBG_TEST(ACoreThatGoesOfflineIsUnknownFromThen) {
  ProcessorTicks ticks;
  ParseProcessorTicks("cpu0 1 0 0 0\ncpu1 1 0 0 0\n", &ticks);
  EXPECT_TRUE(ticks.cores[1].is_known());
  ParseProcessorTicks("cpu0 1 0 0 0\n", &ticks);
  EXPECT_EQ(ticks.cores.size(), 2U);
  EXPECT_FALSE(ticks.cores[1].is_known());
}

TDBG_TEST(AMachineOf192CoresIsReadWhole) {
  std::string text = "cpu  0 0 0 0\n";
  for (int i = 0; i < 192; ++i) {
    text += "cpu" + std::to_string(i) + " " + std::to_string(i) +
            " 0 0 1000 0 0 0 0 0 0\n";
  }
  text += "intr 1" + std::string(200'000, ' ') + "0\nprocs_running 192\n";
  ProcessorTicks ticks;
  ParseProcessorTicks(text, &ticks);
  EXPECT_EQ(ticks.cores.size(), 192U);
  EXPECT_EQ(ticks.cores[191].user, 191U);
  EXPECT_EQ(ticks.processes_running, 192U);
}

TDBG_TEST(SharesAddUpAndBusyIsWhatIsNeitherIdleNorWaiting) {
  const CoreTicks before{
      .user = 100, .system = 100, .idle = 100, .iowait = 100, .steal = 100};
  const CoreTicks now{
      .user = 140, .system = 130, .idle = 110, .iowait = 105, .steal = 115};
  const CoreShares shares = SharesBetween(before, now);
  EXPECT_CLOSE(shares.user, 0.4, 1e-6);
  EXPECT_CLOSE(shares.system, 0.3, 1e-6);
  EXPECT_CLOSE(shares.iowait, 0.05, 1e-6);
  EXPECT_CLOSE(shares.steal, 0.15, 1e-6);
  EXPECT_CLOSE(shares.busy, 0.85, 1e-6);
}

TDBG_TEST(TicksThatGoBackAreNoTime) {
  const CoreTicks before{.user = 10, .system = 0, .idle = 50, .iowait = 9};
  const CoreTicks now{.user = 20, .system = 0, .idle = 60, .iowait = 5};
  EXPECT_CLOSE(SharesBetween(before, now).busy, 0.5, 1e-6);
  EXPECT_EQ(SharesBetween(before, now).iowait, 0.0F);
}

TDBG_TEST(SharesOfNoTimeAreUnknown) {
  const CoreTicks ticks{.user = 10, .system = 0, .idle = 50, .iowait = 9};
  EXPECT_TRUE(std::isnan(SharesBetween(ticks, ticks).busy));
  EXPECT_TRUE(std::isnan(SharesBetween({}, ticks).busy));
  EXPECT_TRUE(std::isnan(SharesBetween(ticks, {}).user));
  EXPECT_EQ(HalfPercents(std::nanf("")), 255U);
  EXPECT_EQ(HalfPercents(0.5F), 100U);
  EXPECT_EQ(HalfPercents(1.0F), 200U);
}

// --- Memory ------------------------------------------------------------------

TDBG_TEST(MemoryIsInBytes) {
  const HostMemory memory = ParseHostMemory(
      "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n");
  EXPECT_EQ(memory.total, 16384U * 1024);
  EXPECT_EQ(memory.available, 8192U * 1024);
  EXPECT_EQ(ParseHostMemory("MemTotal: 1 kB\n").available, kNotMeasured);
}

TDBG_TEST(PagingIsInBytes) {
  const Paging paging = ParsePaging(
      "nr_free_pages 5\npgpgin 9\npswpin 2\npswpout 3\npgfault 8\n"
      "pgmajfault 4\n",
      4096);
  EXPECT_EQ(paging.swap_in_bytes, 8192U);
  EXPECT_EQ(paging.swap_out_bytes, 12288U);
  EXPECT_EQ(paging.major_faults, 4U);
}

TDBG_TEST(PressureIsInNanoseconds) {
  const Pressure pressure = ParsePressure(
      "some avg10=0.00 avg60=1.00 avg300=0.10 total=12\n"
      "full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n");
  EXPECT_EQ(pressure.some_ns, 12'000U);
  EXPECT_EQ(pressure.full_ns, 5'000U);
  EXPECT_EQ(ParsePressure("some avg10=0.00 total=7\n").full_ns, kNotMeasured);
}

// --- Devices -----------------------------------------------------------------

constexpr char kDisks[] =
    "   7       0 loop0 9 0 9 0 9 0 9 0 0 9 9\n"
    " 259       0 nvme0n1 100 5 2000 77 50 6 1000 88 0 1234 99 1 2 3 4\n"
    " 259       1 nvme0n1p1 90 5 1900 70 40 6 900 80 0 1200 90\n"
    "   8       0 sdb 0 0 0 0 0 0 0 0 0 0 0\n"
    " 253       0 zram0 4 0 32 0 1 0 8 0 0 4 0\n";

TDBG_TEST(WholeDisksThatWorkedAreSampled) {
  const MachineTree tree;
  tree.Write("/proc/diskstats", kDisks);
  tree.Write("/sys/block/nvme0n1/size", "1");
  tree.Write("/sys/block/sdb/size", "1");
  TextBuffer buffer;
  Disks disks(tree.root());
  std::vector<std::string> names;
  DiskRow seen;
  EXPECT_TRUE(disks.Sample(77, &buffer, [&](std::string_view name, auto& row) {
    names.emplace_back(name);
    seen = row;
  }));
  EXPECT_EQ(names.size(), 1U);
  EXPECT_EQ(names.at(0), "nvme0n1");
  EXPECT_EQ(seen.time, 77);
  EXPECT_EQ(seen.reads, 100U);
  EXPECT_EQ(seen.read_bytes, 2000U * 512);
  EXPECT_EQ(seen.writes, 50U);
  EXPECT_EQ(seen.write_bytes, 1000U * 512);
  EXPECT_EQ(seen.busy_ns, 1'234'000'000U);
  EXPECT_EQ(disks.names().size(), 1U);
}

TDBG_TEST(DisksThatCannotBeReadAreSaidTo) {
  const MachineTree tree;
  TextBuffer buffer;
  EXPECT_FALSE(Disks(tree.root()).Sample(1, &buffer, [](auto, const auto&) {}));
  EXPECT_FALSE(
      Networks(tree.root()).Sample(1, &buffer, [](auto, const auto&) {}));
}

constexpr char kNetworks[] =
    "Inter-|   Receive                            |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes\n"
    "    lo: 300 3 0 0 0 0 0 0 300 3 0 0 0 0 0 0\n"
    "  eth0:1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n"
    "eth0:1: 7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0\n"
    " veth9: 5 5 0 0 0 0 0 0 5 5 0 0 0 0 0 0\n"
    "  ifb0: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

TDBG_TEST(InterfacesThatCarriedSomethingAreSampled) {
  const MachineTree tree;
  tree.Write("/proc/net/dev", kNetworks);
  tree.Write("/sys/class/net/eth0/speed", "25000\n");
  tree.Write("/sys/class/net/lo/speed", "-1\n");
  tree.Write("/sys/class/net/veth9/master/x", "");
  TextBuffer buffer;
  Networks networks(tree.root());
  std::map<std::string, NetworkRow> seen;
  EXPECT_TRUE(networks.Sample(5, &buffer, [&](auto name, const auto& row) {
    seen[std::string(name)] = row;
  }));
  EXPECT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen["eth0"].received_bytes, 1000U);
  EXPECT_EQ(seen["eth0"].sent_bytes, 2000U);
  EXPECT_EQ(seen["eth0"].received_packets, 10U);
  EXPECT_EQ(seen["eth0"].sent_packets, 20U);
  EXPECT_EQ(seen["eth0"].bits_per_second, 25'000'000'000U);
  EXPECT_EQ(seen["lo"].bits_per_second, kNotMeasured);
  EXPECT_EQ(seen["eth0:1"].received_bytes, 7U);
}

TDBG_TEST(InfinibandPortsAreCountedInBytes) {
  const MachineTree tree;
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1/";
  tree.Write("/proc/net/dev", "");
  tree.Write(port + "rate", "100 Gb/sec (4X EDR)\n");
  tree.Write(port + "counters/port_rcv_data", "10\n");
  tree.Write(port + "counters/port_xmit_data", "20\n");
  tree.Write(port + "counters/port_rcv_packets", "3\n");
  TextBuffer buffer;
  Networks networks(tree.root());
  NetworkRow seen;
  EXPECT_TRUE(networks.Sample(5, &buffer, [&](auto name, const auto& row) {
    EXPECT_EQ(name, "mlx5_0:1");
    seen = row;
  }));
  EXPECT_EQ(seen.received_bytes, 40U);
  EXPECT_EQ(seen.sent_bytes, 80U);
  EXPECT_EQ(seen.received_packets, 3U);
  EXPECT_EQ(seen.sent_packets, kNotMeasured);
  EXPECT_EQ(seen.bits_per_second, 100'000'000'000U);
  EXPECT_EQ(ParseInfinibandRate("2.5 Gb/sec"), 2'500'000'000U);
  EXPECT_EQ(ParseInfinibandRate("fast"), kNotMeasured);
  EXPECT_EQ(ParseInfinibandRate("1e400 Gb/sec"), kNotMeasured);
}

// --- Processes ---------------------------------------------------------------

TDBG_TEST(AProcessIsReadBehindItsName) {
  const ProcessStat stat = ParseProcessStat(
      "42 (a) b) R 1\n(x) S 1 42 42 0 -1 4194304 102 0 7 0 150 50 0 0 20 0 9 0 "
      "5930856 3133440 380 18446744073709551615 1 1\n");
  EXPECT_EQ(stat.state, 'S');
  EXPECT_EQ(stat.major_faults, 7U);
  EXPECT_EQ(stat.cpu_ticks, 200U);
  EXPECT_EQ(stat.threads, 9U);
  EXPECT_EQ(stat.start_ticks, 5930856U);
  EXPECT_EQ(stat.resident_pages, 380U);
}

TDBG_TEST(AProcessTextThatIsCutIsPartlyUnknown) {
  const ProcessStat stat = ParseProcessStat("42 (python) D 1 42 42 0 -1 4");
  EXPECT_EQ(stat.state, 'D');
  EXPECT_EQ(stat.start_ticks, kNotMeasured);
  EXPECT_EQ(ParseProcessStat("42 (pyth").state, '\0');
}

TDBG_TEST(RunTimesAndBytesOfAProcessAreRead) {
  EXPECT_EQ(ParseRunTimes("907178 2830686 2\n").run_ns, 907178U);
  EXPECT_EQ(ParseRunTimes("907178 2830686 2\n").queued_ns, 2830686U);
  const ProcessBytes bytes = ParseProcessBytes(
      "rchar: 7279\nwchar: 303\nsyscr: 12\nread_bytes: 4096\nwrite_bytes: 8\n"
      "cancelled_write_bytes: 1\n");
  EXPECT_EQ(bytes.all_read, 7279U);
  EXPECT_EQ(bytes.read, 4096U);
  EXPECT_EQ(bytes.written, 8U);
}

// --- Energy ------------------------------------------------------------------

TDBG_TEST(PackagesAreAddedUpAndStartOver) {
  const MachineTree tree;
  const auto zone = [&](const std::string& name, const char* label,
                        const char* energy) {
    const std::string folder = "/sys/class/powercap/" + name + "/";
    tree.Write(folder + "name", std::string(label) + "\n");
    tree.Write(folder + "energy_uj", energy);
    tree.Write(folder + "max_energy_range_uj", "1000\n");
  };
  zone("intel-rapl:0", "package-0", "100\n");
  zone("intel-rapl:1", "package-1", "900\n");
  zone("intel-rapl:0:0", "core", "5\n");
  zone("intel-rapl-mmio:0", "package-0", "100\n");  // The same, once more.
  TextBuffer buffer;
  PackageEnergy energy(tree.root());
  EXPECT_EQ(energy.Read(&buffer), 1000U);
  zone("intel-rapl:0", "package-0", "150\n");
  zone("intel-rapl:1", "package-1", "20\n");  // 900 -> 1000 -> 20
  EXPECT_EQ(energy.Read(&buffer), 1000U + 50 + 120);
  EXPECT_EQ(energy.reason(), "");
  tree.Remove("/sys/class/powercap/intel-rapl:1/energy_uj");
  tree.Write("/sys/class/powercap/intel-rapl:1/energy_uj", "garbage");
  EXPECT_TRUE(energy.Read(&buffer) == kNotMeasured ||
              energy.Read(&buffer) == 1000U + 50 + 120);
}

TDBG_TEST(WithoutCountersEnergyIsUnknownForAReason) {
  const MachineTree tree;
  TextBuffer buffer;
  PackageEnergy energy(tree.root());
  EXPECT_EQ(energy.Read(&buffer), kNotMeasured);
  EXPECT_TRUE(energy.reason().find("RAPL") != std::string::npos);
}

// --- All ---------------------------------------------------------------------

TDBG_TEST(NoTextIsTooHostile) {
  for (const std::string& text : HostileTexts()) {
    ProcessorTicks ticks;
    ParseProcessorTicks(text, &ticks);
    EXPECT_LE(ticks.cores.size(), ProcessorTicks::kMaxCores);
    (void)ParseHostMemory(text);
    (void)ParsePaging(text, 4096);
    (void)ParsePressure(text);
    ParseDisks(text, [](auto, const auto&) {});
    ParseNetworks(text, [](auto, const auto&) {});
    (void)ParseProcessStat(text);
    (void)ParseRunTimes(text);
    (void)ParseProcessBytes(text);
  }
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
