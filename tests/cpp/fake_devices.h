// What the tests of the device path share: the fake driver, and somebody who
// plays the framework on it: tensors, streams, graphs.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "capture/device_capture.h"
#include "fake_cuda/control.h"
#include "reader/run_reader.h"
#include "reducers/cuda/driver.h"
#include "temporary_directory.h"
#include "testing.h"
#include "writer/writer.h"

// Of the driver, what only frameworks use.
extern "C" {
int cuStreamSynchronize(tdbg::cuda::Stream stream);
int cuStreamBeginCapture_v2(tdbg::cuda::Stream stream, int mode);
int cuStreamEndCapture(tdbg::cuda::Stream stream, tdbg::cuda::Graph* graph);
int cuGraphInstantiateWithFlags(void** executable, tdbg::cuda::Graph graph,
                                unsigned long long flags);
int cuGraphLaunch(void* executable, tdbg::cuda::Stream stream);
int cuGraphDestroy(tdbg::cuda::Graph graph);
int cuGraphExecDestroy(void* executable);
}

namespace tdbg::testing {

// A context of a device that is current for the calling thread, with streams
// and memory: as a framework has them, all of it until the end.
class Framework {
 public:
  explicit Framework(const cuda::Driver& driver, int device = 0)
      : driver_(driver), device_(device) {
    EXPECT_EQ(driver_.primary_context_retain(&context_, device), 0);
  }
  ~Framework() {
    Enter();
    for (cuda::Stream stream : streams_) driver_.stream_destroy(stream);
    for (const cuda::DeviceAddress p : memory_) driver_.mem_free(p);
    Leave();
    driver_.primary_context_release(device_);
  }
  Framework(const Framework&) = delete;
  Framework& operator=(const Framework&) = delete;

  // Between them failures are not for the framework.
  void Enter() {
    fakecuda_exempt(1);
    EXPECT_EQ(driver_.context_push(context_), 0);
  }
  void Leave() {
    cuda::Context context = nullptr;
    EXPECT_EQ(driver_.context_pop(&context), 0);
    // Nobody left another one behind, or another mode.
    EXPECT_TRUE(context == context_);
    int mode = 0;
    EXPECT_EQ(driver_.exchange_capture_mode(&mode), 0);
    EXPECT_EQ(mode, 0);
    fakecuda_exempt(0);
  }

  DeviceStream NewStream(unsigned flags = cuda::kStreamNonBlocking) {
    Enter();
    cuda::Stream stream = nullptr;
    EXPECT_EQ(driver_.stream_create(&stream, flags), 0);
    streams_.push_back(stream);
    Leave();
    return {.device = device_, .stream = stream};
  }
  DeviceStream default_stream() { return {.device = device_}; }

  void* Allocate(std::size_t n) {
    Enter();
    cuda::DeviceAddress p = 0;
    EXPECT_EQ(driver_.mem_alloc(&p, n), 0);
    memory_.push_back(p);
    Leave();
    return reinterpret_cast<void*>(p);
  }
  // A tensor with these elements, there at once.
  template <typename T>
  void* Tensor(const std::vector<T>& values) {
    void* p = Allocate(values.size() * sizeof(T) + 1);
    std::memcpy(p, values.data(), values.size() * sizeof(T));
    return p;
  }
  // Sets all bytes when the stream comes to it, as a kernel would.
  void Fill(void* p, unsigned char value, std::size_t n, DeviceStream where) {
    Enter();
    EXPECT_EQ(driver_.memset(reinterpret_cast<std::uintptr_t>(p), value, n,
                             StreamOf(where)),
              0);
    Leave();
  }
  int Synchronize(DeviceStream where) {
    Enter();
    const int result = cuStreamSynchronize(StreamOf(where));
    Leave();
    return result;
  }
  static cuda::Stream StreamOf(DeviceStream where) {
    return static_cast<cuda::Stream>(where.stream);
  }

 private:
  const cuda::Driver& driver_;
  const int device_;
  cuda::Context context_ = nullptr;
  std::vector<cuda::Stream> streams_;
  std::vector<cuda::DeviceAddress> memory_;
};

// The fake driver, as new.
inline cuda::Driver FreshDriver(int n_devices = 2) {
  fakecuda_reset(n_devices);
  setenv("TDBG_CUDA_KERNELS", TDBG_FAKE_CUDA_LIBRARY, 1);  // Any file will do.
  auto driver = cuda::Driver::Load(TDBG_FAKE_CUDA_LIBRARY);
  EXPECT_OK(driver);
  return std::move(driver).value();
}

// What is alive in the driver, by kind; empty when nothing is.
inline std::string Alive() {
  std::string alive;
  for (const char* kind : {"device", "pinned", "registered", "streams",
                           "events", "modules", "contexts", "objects"}) {
    const long n = fakecuda_live(kind);
    if (n != 0) alive += std::string(kind) + " " + std::to_string(n) + " ";
  }
  return alive;
}

// A graph as a framework makes and replays it.
class CapturedGraph {
 public:
  // Captures what `body` does on `stream`.
  template <typename Body>
  CapturedGraph(Framework* framework, DeviceStream stream, Body body)
      : framework_(framework) {
    framework->Enter();
    EXPECT_EQ(cuStreamBeginCapture_v2(Framework::StreamOf(stream), 0), 0);
    framework->Leave();
    body();
    framework->Enter();
    EXPECT_EQ(cuStreamEndCapture(Framework::StreamOf(stream), &graph_), 0);
    EXPECT_EQ(cuGraphInstantiateWithFlags(&executable_, graph_, 0), 0);
    framework->Leave();
  }
  ~CapturedGraph() {
    framework_->Enter();
    EXPECT_EQ(cuGraphExecDestroy(executable_), 0);
    EXPECT_EQ(cuGraphDestroy(graph_), 0);
    framework_->Leave();
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void Replay(DeviceStream stream) {
    framework_->Enter();
    EXPECT_EQ(cuGraphLaunch(executable_, Framework::StreamOf(stream)), 0);
    framework_->Leave();
  }

 private:
  Framework* const framework_;
  cuda::Graph graph_ = nullptr;
  void* executable_ = nullptr;
};

// A writer, and a device capture on it.
class DeviceRun {
 public:
  static constexpr std::chrono::milliseconds kPatience{20000};

  explicit DeviceRun(const cuda::Driver& driver,
                     std::uint64_t queue_bytes = 8ULL << 20) {
    WriterOptions options;
    options.run_directory = directory_.path();
    options.min_free_bytes = 0;
    options.queue_bytes = queue_bytes;
    auto opened = Writer::Open(options);
    EXPECT_OK(opened);
    writer_ = std::move(opened).value();
    capture_ = std::make_unique<DeviceCapture>(writer_.get(), &driver);
  }
  ~DeviceRun() { (void)writer_->Close(kPatience); }

  Writer& writer() { return *writer_; }
  DeviceCapture& capture() { return *capture_; }
  void DropCapture() { capture_.reset(); }

  std::uint32_t Define(const std::string& name, DType dtype,
                       std::vector<std::int64_t> shape,
                       TensorRole role = TensorRole::kOther) {
    Definition definition;
    definition.name = name;
    definition.role = role;
    definition.dtype = dtype;
    definition.item_size = ItemSize(dtype);
    definition.shape = std::move(shape);
    return writer_->Define(definition);
  }

  // Statistics of one tensor; whether it was taken (or refused).
  bool Take(std::int64_t step, std::uint32_t definition, const void* data,
            DeviceStream where, CallSite site = {}, DeviceScale scale = {}) {
    const CaptureItem item{
        .definition = definition, .data = data, .strides = {}};
    std::vector<std::size_t> left;
    capture_->Statistics(step, {&item, 1}, site, scale, where, &left);
    return left.empty();
  }
  void EndStep(std::int64_t step) {
    capture_->EndStep(step);
    EXPECT_TRUE(writer_->EndStep({.step = step}));
  }
  Status Close(std::chrono::milliseconds timeout = kPatience) {
    capture_->EndAllSteps();
    return writer_->Close(timeout);
  }
  void ExpectBalance() {
    const Counters c = writer_->counters();
    EXPECT_EQ(c.offered, c.written + c.dropped + c.failed);
    EXPECT_EQ(c.offered_bytes,
              c.written_bytes + c.dropped_bytes + c.failed_bytes);
  }
  [[nodiscard]] std::unique_ptr<RunReader> Read() {
    auto reader = RunReader::Open(writer_->directory(), {});
    EXPECT_OK(reader);
    return std::move(reader).value();
  }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<Writer> writer_;
  std::unique_ptr<DeviceCapture> capture_;  // Goes first.
};

}  // namespace tdbg::testing
