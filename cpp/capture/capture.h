// Capture is what the hooks call: it reduces tensors where they lie and hands
// rows and values to the writer.  The only place where reducers meet it.
//
// Rows of a step are collected and written as few `rows` records, in the order
// of the calls, before the step is ended.
//
// Thread safety: all methods may be called from any thread (autograd calls from
// its own).  Like the writer, it is inert in a forked child.
//
// Errors: Open reports them.  Afterwards a tensor that cannot be captured is
// refused and counted, never an error.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "capture/capture_item.h"
#include "capture/unit_summary_spec.h"
#include "format/record.h"
#include "tensor/tensor_view.h"
#include "writer/writer.h"

namespace tdbg {

struct CaptureOptions {
  // Statistics of floats of up to 32 bits as exactly as those of float64.
  bool precise = false;
  // Threads that reduce one large tensor, at most.
  unsigned n_threads = 1;
};

class DeviceCapture;

class Capture {
 public:
  static Result<std::unique_ptr<Capture>> Open(const WriterOptions& options,
                                               const CaptureOptions& own = {});
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Reduces each item and appends its row to those of the step.  Elements are
  // multiplied by `scale` first (rows are then flagged as rescaled); integers
  // are not.  REQUIRES: `scale` is finite and not zero.
  void Statistics(std::int64_t step, std::span<const CaptureItem> items,
                  CallSite site, double scale);

  // Whether so many more rows are only kept: then Statistics does not hand any
  // to the writer, and cannot wait for it.
  [[nodiscard]] bool HasRoom(std::size_t n_rows);

  // Copies the row of another tensor with the same elements (an output that is
  // the next input).  False, and nothing happens, if the step does not hold
  // that row any more.
  bool Repeat(std::int64_t step, std::uint32_t definition, CallSite site,
              std::uint32_t of, CallSite of_site);

  // Appends rows that the caller has computed to those of the step.  In a row
  // of count 0, the rest of the summary is ignored.  A row of an unknown
  // definition, or of one without statistics, is refused.
  void AddRows(std::int64_t step, std::span<const Row> rows);

  // Counts the elements of the item by sign and magnitude, each times `scale`
  // as for Statistics, and stores that; of no elements, a histogram of no bins.
  bool CountHistogram(std::int64_t step, const CaptureItem& item, CallSite site,
                      double scale);

  // Copies the values of the item, as they lie.
  bool Values(std::int64_t step, const CaptureItem& item, CallSite site);

  // Counts the units of `item` and stores them as the tensor `unit_definition`
  // (uint64, shape (3, units): active, out_of_range, count).
  bool UnitSummary(std::int64_t step, std::uint32_t unit_definition,
                   const CaptureItem& item, CallSite site,
                   UnitSummarySpec spec);

  // Writes the rows collected for the step, then ends it.  Rows that come to it
  // afterwards (of an optimizer that steps after the one that ended the step)
  // are written when the next step ends, or sooner.
  bool EndStep(const StepRecord& step);

  // Writes all collected rows, then flushes the writer.
  Status Flush(bool durable, std::chrono::milliseconds timeout);

  // Writes all collected rows, then closes the writer.
  Status Close(std::chrono::milliseconds timeout);

  // Captures tensors on devices; made at the first call.  Rows of devices
  // are written when their step is ended here.
  // REQUIRES: !writer().inert().
  [[nodiscard]] DeviceCapture& devices();

  // Definitions, scalars, events and refusals go straight there.
  [[nodiscard]] Writer& writer() { return *writer_; }

 private:
  // Rows of all steps that may wait together before they are written.
  static constexpr std::size_t kMaxRows = 4096;

  Capture(std::unique_ptr<Writer> writer, const CaptureOptions& own);
  // The share of zeros in a tensor by its row of this step;
  // Writer::kUnknownShare when there is none at hand.
  float ZeroShare(std::int64_t step, std::uint32_t definition, CallSite site);
  // Keeps the rows until the step ends; writes them when there are many.
  void Keep(std::int64_t step, std::span<const Row> rows)
      TDBG_EXCLUDES(order_mutex_);
  void WriteRows(std::int64_t step) TDBG_REQUIRES(order_mutex_);
  std::vector<Row>& RowsOf(std::int64_t step) TDBG_REQUIRES(mutex_);
  void WriteAllRows() TDBG_EXCLUDES(order_mutex_);

  // Constant after construction.
  const std::unique_ptr<Writer> writer_;
  const CaptureOptions own_;

  // Constant once has_devices_ is set.  Goes before the writer: it holds a lock
  // on the pages of its staging memory.
  std::unique_ptr<DeviceCapture> devices_;
  std::atomic<bool> has_devices_{false};

  // Held while rows are handed to the writer, so that none falls behind the end
  // of its step.  Taken before mutex_.
  Mutex order_mutex_;
  std::int64_t last_ended_ TDBG_GUARDED_BY(order_mutex_) = kNoStep;
  Mutex mutex_;
  // By step, in the order of the calls; n_rows_ in all of them together.
  std::map<std::int64_t, std::vector<Row>> rows_ TDBG_GUARDED_BY(mutex_);
  std::size_t n_rows_ TDBG_GUARDED_BY(mutex_) = 0;
  // Memory for the next step's, so that none is asked for between the
  // allocations of a forward.
  std::vector<Row> spare_ TDBG_GUARDED_BY(mutex_);
  // Where ZeroShare looks first, and the last step of which it saw all rows.
  std::size_t next_share_ TDBG_GUARDED_BY(mutex_) = 0;
  std::int64_t searched_step_ TDBG_GUARDED_BY(mutex_) = kNoStep;
};

}  // namespace tdbg
