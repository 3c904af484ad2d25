#include "reducers/cuda/device.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "reducers/cuda/fatbin.h"
#include "reducers/cuda/kernel_abi.h"

namespace tdbg::cuda {
namespace {

constexpr std::array<const char*, 4> kKernelNames = {
    kStatisticsKernel, kInlineStatisticsKernel, kUnitCountsKernel,
    kHistogramKernel};

unsigned BlockThreads(Kernel kernel) {
  return kernel == Kernel::kStatistics || kernel == Kernel::kInlineStatistics
             ? kStatisticsThreads
             : kBlockThreads;
}

Result<std::vector<char>> ReadImage(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && image.empty()) {
    return Status::NotFound(std::string("TDBG_CUDA_KERNELS=") + path +
                            ": cannot be read");
  }
  image.push_back('\0');  // PTX is text.
  return image;
}

}  // namespace

Device::Scope::Scope(const Device& device, int n_attempts)
    : driver_(*device.driver_) {
  do {
    status_ = Enter(device);
    if (!status_.ok()) Leave();
  } while (!status_.ok() && --n_attempts > 0);
}

Device::Scope::~Scope() { Leave(); }

Status Device::Scope::Enter(const Device& device) {
  TDBG_RETURN_IF_ERROR(
      driver_.Check(driver_.context_push(device.context_), "cuCtxPushCurrent"));
  is_pushed_ = true;
  mode_ = kCaptureModeRelaxed;
  TDBG_RETURN_IF_ERROR(driver_.Check(driver_.exchange_capture_mode(&mode_),
                                     "cuThreadExchangeStreamCaptureMode"));
  is_relaxed_ = true;
  return Status::Ok();
}

void Device::Scope::Leave() {
  // Neither may stay behind, so each is tried twice.
  if (is_relaxed_ && driver_.exchange_capture_mode(&mode_) != kSuccess) {
    (void)driver_.exchange_capture_mode(&mode_);
  }
  Context context = nullptr;
  if (is_pushed_ && driver_.context_pop(&context) != kSuccess) {
    (void)driver_.context_pop(&context);
  }
  is_relaxed_ = is_pushed_ = false;
}

Result<std::unique_ptr<Device>> Device::Open(const Driver* driver, int index) {
  if (index < 0 || index >= driver->n_devices()) {
    return Status::InvalidArgument("no CUDA device " + std::to_string(index) +
                                   " among " +
                                   std::to_string(driver->n_devices()));
  }
  std::unique_ptr<Device> device(new Device(driver, index));
  TDBG_RETURN_IF_ERROR(device->Load());
  return device;
}

Status Device::Load() {
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->device_get(&handle_, index_), "cuDeviceGet"));
  Context context = nullptr;
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->primary_context_retain(&context, handle_),
                     "cuDevicePrimaryCtxRetain"));
  context_ = context;
  const Scope scope(*this);
  TDBG_RETURN_IF_ERROR(scope.status());
  return LoadKernels();
}

Status Device::LoadKernels() {
  const void* image = Fatbin().empty() ? nullptr : Fatbin().data();
  std::vector<char> file;
  const char* path = std::getenv("TDBG_CUDA_KERNELS");  // NOLINT: at start.
  if (path != nullptr && *path != '\0') {
    Result<std::vector<char>> read = ReadImage(path);
    if (!read.ok()) return read.status();
    file = std::move(read).value();
    image = file.data();
  }
  if (image == nullptr) {
    return Status::Unsupported("this build of tdbg has no CUDA kernels");
  }
  const Status loaded = driver_->Check(
      driver_->module_load_data(&module_, image), "cuModuleLoadData");
  if (!loaded.ok()) {
    const char* source = file.empty() ? FatbinCompiler() : path;
    return Status(loaded.code(), loaded.message() + ": the kernels are of " +
                                     source +
                                     ", for compute capability 8.0 and "
                                     "later; the driver is of CUDA " +
                                     driver_->version());
  }
  int n_processors = 0;
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->device_get_attribute(
                         &n_processors, kAttributeMultiprocessorCount, handle_),
                     "cuDeviceGetAttribute"));
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    Loaded& kernel = kernels_[i];
    TDBG_RETURN_IF_ERROR(
        driver_->Check(driver_->module_get_function(&kernel.function, module_,
                                                    kKernelNames[i]),
                       "cuModuleGetFunction"));
    int n_blocks = 0;
    TDBG_RETURN_IF_ERROR(driver_->Check(
        driver_->occupancy(
            &n_blocks, kernel.function,
            static_cast<int>(BlockThreads(static_cast<Kernel>(i))), 0),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor"));
    kernel.n_blocks =
        static_cast<unsigned>(std::max(1, n_blocks * n_processors));
  }
  return Status::Ok();
}

Device::~Device() {
  if (context_ == nullptr || is_abandoned_) return;
  {
    const Scope scope(*this, 2);
    if (scope.status().ok()) FreeAll();
  }
  (void)driver_->primary_context_release(handle_);
}

void Device::FreeAll() {
  // What fails is lost with the process at the latest.
  for (EventHandle event : events_) (void)driver_->event_destroy(event);
  for (Stream stream : streams_) (void)driver_->stream_destroy(stream);
  for (const DeviceAddress address : memory_) (void)driver_->mem_free(address);
  for (std::byte* p : pinned_) (void)driver_->mem_free_host(p);
  if (module_ != nullptr) (void)driver_->module_unload(module_);
}

Status Device::Launch(Kernel kernel, std::uint64_t n_tiles, Stream stream,
                      void** arguments) const {
  const Loaded& loaded = kernels_[static_cast<std::size_t>(kernel)];
  const auto n_blocks = static_cast<unsigned>(
      std::clamp<std::uint64_t>(n_tiles, 1, loaded.n_blocks));
  return driver_->Check(driver_->launch_kernel(loaded.function, n_blocks, 1, 1,
                                               BlockThreads(kernel), 1, 1, 0,
                                               stream, arguments, nullptr),
                        "cuLaunchKernel");
}

Result<DeviceAddress> Device::Allocate(std::size_t n) {
  if (allocated_bytes() + n > kMaxBytes) {
    return Status::LimitExceeded("the bound of device memory is reached");
  }
  DeviceAddress address = 0;
  TDBG_RETURN_IF_ERROR(
      driver_->Check(driver_->mem_alloc(&address, n), "cuMemAlloc"));
  memory_.push_back(address);
  n_bytes_.fetch_add(n, std::memory_order_relaxed);
  return address;
}

Result<std::byte*> Device::AllocatePinned(std::size_t n) {
  void* p = nullptr;
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->mem_host_alloc(&p, n, kHostPortable), "cuMemHostAlloc"));
  pinned_.push_back(static_cast<std::byte*>(p));
  return pinned_.back();
}

Result<EventHandle> Device::NewEvent() {
  EventHandle event = nullptr;
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->event_create(&event, kEventDisableTiming), "cuEventCreate"));
  events_.push_back(event);
  return event;
}

Result<Stream> Device::NewStream() {
  Stream stream = nullptr;
  TDBG_RETURN_IF_ERROR(driver_->Check(
      driver_->stream_create(&stream, kStreamNonBlocking), "cuStreamCreate"));
  streams_.push_back(stream);
  return stream;
}

Result<Device::Captured> Device::CapturedInto(Stream stream) const {
  int status = kCaptureNone;
  Captured captured;
  const int result = driver_->stream_get_capture_info(
      stream, &status, &captured.id, &captured.graph, nullptr, nullptr);
  // The default stream cannot tell while another one is captured.
  if (result != kSuccess ||
      (status != kCaptureNone && status != kCaptureActive)) {
    return Status::LimitExceeded("the stream's capture is not to be used");
  }
  if (status == kCaptureNone) captured = {};
  return captured;
}

bool Device::is_idle() const {
  return std::none_of(streams_.begin(), streams_.end(), [&](Stream stream) {
    return driver_->stream_query(stream) == kErrorNotReady;
  });
}

}  // namespace tdbg::cuda
