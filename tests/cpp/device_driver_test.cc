// Each way in which a CUDA driver can be missing says so.

#include <string>

#include "fake_devices.h"
#include "testing.h"

namespace tdbg {
namespace {

using testing::Alive;
using testing::FreshDriver;

TDBG_TEST(NoLibraryIsSaid) {
  const auto driver = cuda::Driver::Load("/nowhere/libcuda.so.1");
  EXPECT_FALSE(driver.ok());
  EXPECT_TRUE(driver.status().code() == StatusCode::kNotFound);
  EXPECT_NE(driver.status().message().find("no CUDA driver"),
            std::string::npos);
  EXPECT_NE(driver.status().message().find("/nowhere"), std::string::npos);
}

TDBG_TEST(ALibraryThatIsNoDriverIsSaid) {
  const auto driver = cuda::Driver::Load("libm.so.6");
  EXPECT_TRUE(driver.status().code() == StatusCode::kUnsupported);
  EXPECT_NE(driver.status().message().find("libm.so.6 has no cuInit"),
            std::string::npos);
}

TDBG_TEST(NoDeviceIsSaid) {
  fakecuda_reset(0);
  const auto driver = cuda::Driver::Load(TDBG_FAKE_CUDA_LIBRARY);
  EXPECT_TRUE(driver.status().code() == StatusCode::kNotFound);
  EXPECT_EQ(driver.status().message(), "the CUDA driver finds no device");
}

TDBG_TEST(ErrorsHaveTheNamesOfTheDriver) {
  fakecuda_reset(1);
  fakecuda_fail("cuInit", 1, 719);
  EXPECT_EQ(cuda::Driver::Load(TDBG_FAKE_CUDA_LIBRARY).status().message(),
            "cuInit: CUDA_ERROR_LAUNCH_FAILED (719)");
  fakecuda_fail("cuDeviceGetCount", 1, 987654);
  EXPECT_EQ(cuda::Driver::Load(TDBG_FAKE_CUDA_LIBRARY).status().message(),
            "cuDeviceGetCount: an unknown error (987654)");
  const cuda::Driver driver = FreshDriver(3);
  EXPECT_EQ(driver.n_devices(), 3);
  EXPECT_OK(driver.Check(0, "cuInit"));
  EXPECT_TRUE(driver.Check(2, "cuMemAlloc").code() ==
              StatusCode::kResourceExhausted);
}

TDBG_TEST(ADeviceThatIsNotThereIsNotUsable) {
  const cuda::Driver driver = FreshDriver(1);
  testing::DeviceRun run(driver);
  EXPECT_FALSE(run.capture().usable(1));
  EXPECT_FALSE(run.capture().usable(-1));
  EXPECT_TRUE(run.capture().usable(0));
  EXPECT_EQ(run.capture().state(1).reason, "no CUDA device 1 among 1");
  EXPECT_EQ(run.capture().state(1).failures, 0U);
  EXPECT_FALSE(run.capture().state(5).is_usable);  // Nobody asked yet.
}

TDBG_TEST(KernelsThatAreNotThereAreSaid) {
  const cuda::Driver driver = FreshDriver(1);
  setenv("TDBG_CUDA_KERNELS", "/nowhere/kernels.fatbin", 1);
  testing::DeviceRun run(driver);
  EXPECT_FALSE(run.capture().usable(0));
  EXPECT_EQ(run.capture().state(0).reason,
            "TDBG_CUDA_KERNELS=/nowhere/kernels.fatbin: cannot be read");
}

// As where they are of a newer CUDA than the driver.
TDBG_TEST(KernelsThatTheDriverRefusesAreSaid) {
  const cuda::Driver driver = FreshDriver(1);
  fakecuda_fail("cuModuleLoadData", 1, 222);
  testing::DeviceRun run(driver);
  EXPECT_FALSE(run.capture().usable(0));
  const std::string reason = run.capture().state(0).reason;
  EXPECT_NE(reason.find("cuModuleLoadData: "), std::string::npos);
  EXPECT_NE(reason.find("(222): the kernels are of "), std::string::npos);
  EXPECT_NE(reason.find("the driver is of CUDA 12.4"), std::string::npos);
}

TDBG_TEST(NothingStaysOfAnyOfThem) { EXPECT_EQ(Alive(), ""); }

}  // namespace
}  // namespace tdbg

int main(int argc, char** argv) { return tdbg::testing::Run(argc, argv); }
