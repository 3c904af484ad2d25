#include "reducers/cuda/driver.h"

#include <dlfcn.h>

#include <cstdlib>

namespace tdbg::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

std::string NameOf(const Driver& driver, int result) {
  const char* name = nullptr;
  if (driver.get_error_name == nullptr ||
      driver.get_error_name(result, &name) != kSuccess || name == nullptr) {
    name = "an unknown error";
  }
  return name;
}

std::string LibraryPath() {
  // Read once, before threads of ours exist.
  const char* path = std::getenv("TDBG_CUDA_DRIVER");  // NOLINT
  return path == nullptr || *path == '\0' ? kLibrary : path;
}

}  // namespace

Status Driver::Check(int result, const char* call) const {
  if (result == kSuccess) return Status::Ok();
  const std::string message = std::string(call) + ": " + NameOf(*this, result) +
                              " (" + std::to_string(result) + ")";
  if (result == kErrorOutOfMemory) return Status::ResourceExhausted(message);
  return Status::IoError(message, 0);
}

std::string Driver::version() const {
  return std::to_string(version_ / 1000) + "." +
         std::to_string(version_ % 1000 / 10);
}

Result<Driver> Driver::Load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status::NotFound("no CUDA driver: " +
                            std::string(why == nullptr ? path : why));
  }
  Driver driver;
#define TDBG_CUDA_RESOLVE(symbol, member, parameters)                     \
  driver.member =                                                         \
      reinterpret_cast<decltype(driver.member)>(dlsym(library, #symbol)); \
  if (driver.member == nullptr) {                                         \
    return Status::Unsupported("the CUDA driver " + path + " has no " +   \
                               #symbol + ": it is older than CUDA 11.3"); \
  }
  TDBG_CUDA_FUNCTIONS(TDBG_CUDA_RESOLVE)
#undef TDBG_CUDA_RESOLVE
  int result = driver.init(0);
  if (result == kErrorNoDevice) {
    return Status::NotFound("the CUDA driver finds no device");
  }
  TDBG_RETURN_IF_ERROR(driver.Check(result, "cuInit"));
  result = driver.driver_get_version(&driver.version_);
  TDBG_RETURN_IF_ERROR(driver.Check(result, "cuDriverGetVersion"));
  result = driver.device_get_count(&driver.n_devices_);
  TDBG_RETURN_IF_ERROR(driver.Check(result, "cuDeviceGetCount"));
  if (driver.n_devices_ <= 0) {
    return Status::NotFound("the CUDA driver finds no device");
  }
  return driver;
}

Result<const Driver*> Driver::Installed() {
  // Never destroyed: threads may call the driver until the process ends.
  static const auto* const kInstalled = new Result<Driver>(Load(LibraryPath()));
  if (!kInstalled->ok()) return kInstalled->status();
  return &kInstalled->value();
}

}  // namespace tdbg::cuda
