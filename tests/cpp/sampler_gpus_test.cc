// GPUs by an NVML that this test brings (fake_nvml/fake_nvml.cc).

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "collected_rows.h"
#include "sampler/gpus.h"
#include "sampler/system_sampler.h"
#include "testing.h"

namespace tdbg {
namespace {

// Sets a variable of the environment for a test.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Setting() { ::unsetenv(name_); }

 private:
  const char* const name_;
};

std::map<std::string, GpuRow> SampleOnce(Gpus* gpus, std::int64_t time,
                                         std::vector<std::int32_t> pids = {}) {
  std::map<std::string, GpuRow> rows;
  gpus->Sample(time, pids, [&](const std::string& uuid, const GpuRow& row) {
    rows[uuid] = row;
  });
  return rows;
}

TDBG_TEST(DevicesAreKnownByTheirUuid) {
  const Setting pid("FAKE_NVML_PID", "4711");
  Gpus gpus(TDBG_FAKE_NVML_LIBRARY);
  EXPECT_OK(gpus.Find());
  EXPECT_EQ(gpus.facts().size(), 3U);
  EXPECT_EQ(gpus.facts().at(2).uuid, "GPU-2");
  EXPECT_EQ(gpus.facts().at(2).memory, 80'000U);
  const auto rows = SampleOnce(&gpus, 9, {12, 4711});
  const GpuRow& row = rows.at("GPU-0");
  EXPECT_EQ(row.time, 9);
  EXPECT_EQ(row.index, 0U);
  EXPECT_CLOSE(row.busy, 0.95, 1e-6);
  EXPECT_CLOSE(row.memory_busy, 0.40, 1e-6);
  EXPECT_CLOSE(row.sm_clock_hz, 1.98e9, 1e-6);
  EXPECT_EQ(row.temperature, 61.0F);
  EXPECT_CLOSE(row.power_watt, 350.5, 1e-6);
  EXPECT_EQ(row.throttle_reasons, 0x44U);
  EXPECT_EQ(row.memory_used, 30'000U);
  EXPECT_EQ(row.run_processes, 1U);  // Of 71.
  EXPECT_EQ(rows.at("GPU-2").run_processes, 0U);
  EXPECT_GT(SampleOnce(&gpus, 10).at("GPU-0").energy_mj, row.energy_mj);
}

TDBG_TEST(ADeviceDividedByMigHasNoUtilisation) {
  Gpus gpus(TDBG_FAKE_NVML_LIBRARY);
  EXPECT_OK(gpus.Find());
  const GpuRow row = SampleOnce(&gpus, 9).at("GPU-1");
  EXPECT_TRUE(std::isnan(row.busy));
  EXPECT_TRUE(std::isnan(row.memory_busy));
  EXPECT_CLOSE(row.power_watt, 350.5, 1e-6);
}

TDBG_TEST(InAContainerNobodyKnowsWhoseProcessesRun) {
  Gpus gpus(TDBG_FAKE_NVML_LIBRARY, /*sees_all_pids=*/false);
  EXPECT_OK(gpus.Find());
  EXPECT_EQ(SampleOnce(&gpus, 9, {1}).at("GPU-0").run_processes,
            kNotMeasured32);
}

TDBG_TEST(ALostDeviceRestsAndTheOthersGoOn) {
  Gpus gpus(TDBG_FAKE_NVML_LIBRARY);
  EXPECT_OK(gpus.Find());
  {
    const Setting lost("FAKE_NVML_LOST", "1");
    const auto rows = SampleOnce(&gpus, 1000);
    EXPECT_TRUE(std::isnan(rows.at("GPU-2").power_watt));
    EXPECT_EQ(rows.at("GPU-2").energy_mj, kNotMeasured);
    EXPECT_CLOSE(rows.at("GPU-0").power_watt, 350.5, 1e-6);
  }
  EXPECT_EQ(SampleOnce(&gpus, 2000).count("GPU-2"), 0U);
  const auto later = SampleOnce(&gpus, 1000 + Gpus::kRestNs);
  EXPECT_CLOSE(later.at("GPU-2").power_watt, 350.5, 1e-6);
}

TDBG_TEST(WithoutDriverOrDeviceThereAreNoGpus) {
  EXPECT_EQ(Gpus("libnothing-of-the-kind.so.1").Find().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(Gpus("libc.so.6").Find().code(), StatusCode::kUnsupported);
  {
    const Setting error("FAKE_NVML_INIT_ERROR", "9");
    EXPECT_EQ(Gpus(TDBG_FAKE_NVML_LIBRARY).Find().code(),
              StatusCode::kNotFound);
  }
  const Setting none("FAKE_NVML_COUNT", "0");
  EXPECT_EQ(Gpus(TDBG_FAKE_NVML_LIBRARY).Find().code(), StatusCode::kNotFound);
}

TDBG_TEST(ADriverThatHangsDelaysNeitherTheHostNorTheEnd) {
  const Setting hangs("FAKE_NVML_HANG_MS", "3000");
  testing::CollectedRows rows;
  SamplerOptions options;
  options.interval_ns = SamplerOptions::kLeastIntervalNs;
  options.nvml_library = TDBG_FAKE_NVML_LIBRARY;
  auto sampler = SystemSampler::Start(options, rows.sink());
  EXPECT_OK(sampler);
  // The machine's event has the GPUs though none has been sampled.
  EXPECT_TRUE(rows.WaitFor<SystemRow>(20));
  EXPECT_EQ(rows.Of<GpuRow>("GPU-0").size(), 0U);
  EXPECT_EQ(rows.events().size(), 1U);
  EXPECT_TRUE(rows.events().at(0).find("\"Fake 1 \\\"H100\\\"\"") !=
              std::string::npos);
  sampler.value()->Close(std::chrono::milliseconds(1));  // Leaves it behind.
  const std::size_t n = rows.Of<SystemRow>().size();
  sampler.value().reset();
  EXPECT_EQ(rows.Of<SystemRow>().size(), n);
}

TDBG_TEST(GpusAreSampledBesideTheHost) {
  testing::CollectedRows rows;
  SamplerOptions options;
  options.interval_ns = SamplerOptions::kLeastIntervalNs;
  options.nvml_library = TDBG_FAKE_NVML_LIBRARY;
  auto sampler = SystemSampler::Start(options, rows.sink());
  EXPECT_OK(sampler);
  EXPECT_TRUE(rows.WaitFor<GpuRow>(3, "GPU-1"));
  sampler.value()->Close();
  EXPECT_EQ(rows.Columns("gpu/GPU-1"), GpuRow::kColumns);
}

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
