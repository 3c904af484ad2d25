// DeviceCapture takes tensors that lie on CUDA devices: statistics are reduced
// where the tensors are, raw values are copied into staging memory, and the
// records wait in the writer's queue until the device has delivered.  The only
// place where the device's reducers meet the writer.
//
// No call waits for a device.  Work is put on the stream that the tensors were
// made on, so memory that is freed afterwards is reused after it was read (a
// caching allocator reuses it in that stream's order).  Only the copies of raw
// values run on a stream of their own; until FenceRaw the caller keeps that
// memory alive and unchanged.
//
// All statistics of a step go into one block of results, which is fetched with
// one copy when the step ends; its records stand in the queue before the one
// that closes the step.
//
// Thread safety: all methods may be called from any thread.  In a forked child
// every call does nothing.
//
// Errors: none is returned or kept by the driver.  The first failure of a
// device ends its use: `usable` is false from then on, the reason stands in
// `state` (for the caller to log, once), and what was not delivered counts as
// dropped (GapReason::kDeviceError).  What this path cannot take (a device that
// is not usable, strides of too many dimensions) is given back, for the caller
// to take another way; what finds no room is refused and counted, as on the
// CPU.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "capture/capture_item.h"
#include "capture/unit_summary_spec.h"
#include "format/record.h"
#include "writer/writer.h"

namespace tdbg {

class DeviceEngine;
namespace cuda {
class Driver;
}  // namespace cuda

// A stream of a device: the framework's handle; null or 1 for the default one,
// 2 for that of the calling thread.  It stays valid until the step that it was
// used in has ended.
struct DeviceStream {
  int device = 0;
  void* stream = nullptr;
};

// State and counters of one device.
struct DeviceState {
  bool is_usable = false;
  std::string reason;          // Why it is not; else empty.
  std::string values_reason;   // Why raw values cannot be taken; else empty.
  std::uint64_t launches = 0;  // Of kernels.
  std::uint64_t rows = 0;      // Launched for.
  std::uint64_t copies = 0;    // Of raw values, and their bytes.
  std::uint64_t copied_bytes = 0;
  std::uint64_t refused = 0;       // Tensors: nothing was free for them.
  std::uint64_t uploads = 0;       // Of tables of tensors.
  std::uint64_t failures = 0;      // Calls of the driver that failed.
  std::uint64_t device_bytes = 0;  // Memory held on the device.
};

// The multiplier of elements of floats: `factor`, divided by the float32
// at `divisor` in the device's memory when there is one (the scale of a
// gradient scaler, which nobody has to fetch).
struct DeviceScale {
  double factor = 1.0;
  const void* divisor = nullptr;
};

// The outcome for one item.
enum class DeviceAnswer : std::uint8_t {
  kCaptured,
  kRefused,    // And counted as refused.
  kUnhandled,  // Not counted: the caller captures it another way.
};

class DeviceCapture {
 public:
  // Uses the driver of this machine, or `driver` (for tests).
  // REQUIRES: both outlive this; the writer is closed before this is destroyed.
  explicit DeviceCapture(Writer* writer, const cuda::Driver* driver = nullptr);
  ~DeviceCapture();
  DeviceCapture(const DeviceCapture&) = delete;
  DeviceCapture& operator=(const DeviceCapture&) = delete;

  // Whether tensors of this device can be taken: the kernels are in the build,
  // and driver and device work.  Loads them at the first call for a device,
  // which takes a moment.
  bool usable(int device);

  // Like Capture::Statistics, of items that all lie on `where.device`.
  // Appends to `*unhandled` the index of each item that it cannot take, in
  // order.
  void Statistics(std::int64_t step, std::span<const CaptureItem> items,
                  CallSite site, DeviceScale scale, DeviceStream where,
                  std::vector<std::size_t>* unhandled);

  // Like Capture::Repeat: of a tensor that was taken on `where.device` at this
  // step (or, while `where` is captured into a graph, into that graph).
  bool Repeat(std::int64_t step, std::uint32_t definition, CallSite site,
              std::uint32_t of, CallSite of_site, DeviceStream where);

  // Like Capture's methods.  While `where` is captured into a graph they return
  // kUnhandled.
  DeviceAnswer UnitSummary(std::int64_t step, std::uint32_t unit_definition,
                           const CaptureItem& item, CallSite site,
                           UnitSummarySpec spec, DeviceStream where);
  DeviceAnswer CountHistogram(std::int64_t step, const CaptureItem& item,
                              CallSite site, DeviceScale scale,
                              DeviceStream where);
  // Also kUnhandled unless contiguous.  The values are copied after what the
  // stream has to do now; until FenceRaw their memory is read.
  DeviceAnswer Values(std::int64_t step, const CaptureItem& item, CallSite site,
                      DeviceStream where);

  // Lets the stream wait, on the device, for all copies of raw values that are
  // under way: before anything on it changes or frees their memory.
  void FenceRaw(DeviceStream where);

  // Before EndStep of the writer: fetches the results of the step.  Of a step
  // that ends while one of its streams is being captured into a graph they are
  // lost (and counted): nothing may wait for that stream then.
  void EndStep(std::int64_t step);
  // Before a flush or the end: fetches the results of all steps.
  void EndAllSteps();

  // The id of the graph that the stream is being captured into; 0: none.
  std::uint64_t CaptureId(DeviceStream where);
  // After a replay, on `where`, of the graph in which Statistics was called
  // under `capture_id`: its rows, as that replay made them, belong to `step`.
  bool Replayed(std::uint64_t capture_id, std::int64_t step,
                DeviceStream where);

  [[nodiscard]] DeviceState state(int device);

 private:
  class Engines;
  std::shared_ptr<DeviceEngine> EngineFor(int device);
  template <typename List>
  void Offer(List* ready);
  DeviceAnswer Refuse(std::int64_t step, std::uint32_t definition);

  Writer* const writer_;
  std::unique_ptr<Engines> engines_;
};

}  // namespace tdbg
