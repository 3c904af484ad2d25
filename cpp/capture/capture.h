// Capture is what the hooks call: it reduces tensors where they lie and hands
// rows and values to the writer.  The only place where reducers meet it.
//
// Rows of a step are collected and written as few `rows` records, in the order
// of the calls, before the step is ended.
//
// Thread safety: all methods may be called from any thread (autograd calls from
// its own).
//
// Errors: Open reports them.  Afterwards a tensor that cannot be captured is
// refused and counted, never an error.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "format/record.h"
#include "tensor/tensor_view.h"
#include "writer/writer.h"

namespace tdbg {

// One tensor as a hook passes it: its definition holds dtype and shape.
struct CaptureItem {
  std::uint32_t definition = 0;
  const void* data = nullptr;
  std::span<const std::int64_t> strides;  // In bytes; empty: contiguous.
};

// Which call of a module in which micro-batch an item stems from.
struct CallSite {
  std::uint16_t call = 0;
  std::uint16_t micro_batch = 0;
};

class Capture {
 public:
  static Result<std::unique_ptr<Capture>> Open(const WriterOptions& options);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Reduces each item and appends its row to those of the step.  Elements are
  // multiplied by `scale` first (rows are then flagged as rescaled).
  void Statistics(std::int64_t step, std::span<const CaptureItem> items,
                  CallSite site, double scale);

  // Copies the values of the item.  With scale != 1 the tensor is stored as it
  // lies and flagged as not rescaled by omission of the flag.
  bool Values(std::int64_t step, const CaptureItem& item, CallSite site);

  // Counts the units of `item` and stores them as the tensor `unit_definition`
  // (uint64, shape (3, units): active, beyond, count).
  bool UnitSummary(std::int64_t step, std::uint32_t unit_definition,
                   const CaptureItem& item, CallSite site, double low,
                   double high);

  // Writes the rows collected for the step, then ends it.
  bool EndStep(const StepRecord& step);

  // Definitions, scalars, events, refusals, flush and close go straight there.
  [[nodiscard]] Writer& writer() { return *writer_; }

  // Writes collected rows, then closes the writer.
  Status Close(std::chrono::milliseconds timeout);

 private:
  explicit Capture(std::unique_ptr<Writer> writer);
  void WriteRows(std::int64_t step, std::vector<Row> rows);

  // Constant after construction.
  const std::unique_ptr<Writer> writer_;

  Mutex mutex_;
  std::int64_t rows_step_ TDBG_GUARDED_BY(mutex_) = kNoStep;
  std::vector<Row> rows_ TDBG_GUARDED_BY(mutex_);
};

}  // namespace tdbg
