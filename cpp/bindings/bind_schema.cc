#include <cstdint>
#include <type_traits>

#include "bindings/register.h"
#include "format/codec.h"
#include "format/commit_page.h"
#include "format/record.h"
#include "python_capture/capture_flags.h"
#include "tensor/dtype.h"
#include "tensor/summary.h"
#include "writer/record_counters.h"

namespace tdbg::bindings {
namespace {

namespace py = pybind11;

// One name of an enumeration or of a set of flags, with its number.
template <typename T>
py::arg_v Entry(const char* name, T value) {
  if constexpr (std::is_enum_v<T>) {
    return py::arg(name) = static_cast<std::int64_t>(
               static_cast<std::underlying_type_t<T>>(value));
  } else {
    return py::arg(name) = static_cast<std::int64_t>(value);
  }
}

py::dict RecordTypes() {
  return py::dict(
      Entry("PAD", RecordType::kPad),
      Entry("DEFINITION", RecordType::kDefinition),
      Entry("ROWS", RecordType::kRows), Entry("TENSOR", RecordType::kTensor),
      Entry("STEP", RecordType::kStep), Entry("SCALAR", RecordType::kScalar),
      Entry("EVENT", RecordType::kEvent), Entry("SPAN", RecordType::kSpan),
      Entry("GAP", RecordType::kGap),
      Entry("HISTOGRAM", RecordType::kHistogram),
      Entry("INDEX", RecordType::kIndex), Entry("END", RecordType::kEnd),
      Entry("SAMPLES", RecordType::kSamples));
}

py::dict TensorRoles() {
  return py::dict(
      Entry("WEIGHT", TensorRole::kWeight), Entry("BIAS", TensorRole::kBias),
      Entry("GRADIENT", TensorRole::kGradient),
      Entry("INPUT", TensorRole::kInput), Entry("OUTPUT", TensorRole::kOutput),
      Entry("LOSS", TensorRole::kLoss), Entry("SCALAR", TensorRole::kScalar),
      Entry("BUFFER", TensorRole::kBuffer),
      Entry("OPTIMIZER_STATE", TensorRole::kOptimizerState),
      Entry("UPDATE", TensorRole::kUpdate),
      Entry("UNIT_SUMMARY", TensorRole::kUnitSummary),
      Entry("SPAN", TensorRole::kSpan),
      Entry("GRADIENT_UNCLIPPED", TensorRole::kGradientUnclipped),
      Entry("OUTPUT_GRADIENT", TensorRole::kOutputGradient),
      Entry("OTHER", TensorRole::kOther),
      Entry("PREDICTION", TensorRole::kPrediction),
      Entry("LABEL", TensorRole::kLabel),
      Entry("MODEL_INPUT", TensorRole::kModelInput),
      Entry("GRADIENT_LOCAL", TensorRole::kGradientLocal),
      Entry("TABLE", TensorRole::kTable));
}

py::dict GapReasons() {
  return py::dict(Entry("QUEUE_FULL", GapReason::kQueueFull),
                  Entry("DISK_NEARLY_FULL", GapReason::kDiskNearlyFull),
                  Entry("IO_ERROR", GapReason::kIoError),
                  Entry("LARGER_THAN_QUEUE", GapReason::kLargerThanQueue),
                  Entry("REFUSED", GapReason::kRefused),
                  Entry("STALLED", GapReason::kStalled),
                  Entry("SAMPLED", GapReason::kSampled),
                  Entry("DEVICE_ERROR", GapReason::kDeviceError),
                  Entry("RETENTION", GapReason::kRetention));
}

py::dict GapContents() {
  return py::dict(Entry("ROWS", GapBit(RecordType::kRows)),
                  Entry("TENSORS", GapBit(RecordType::kTensor)),
                  Entry("SCALARS", GapBit(RecordType::kScalar)),
                  Entry("STEPS", GapBit(RecordType::kStep)),
                  Entry("EVENTS", GapBit(RecordType::kEvent)),
                  Entry("SPANS", GapBit(RecordType::kSpan)),
                  Entry("HISTOGRAMS", GapBit(RecordType::kHistogram)),
                  Entry("SAMPLES", GapBit(RecordType::kSamples)));
}

py::dict CaptureFlags() {
  namespace flags = python_capture::capture_flags;
  return py::dict(Entry("ROWS", flags::kRows), Entry("VALUES", flags::kValues),
                  Entry("SMALL_VALUES", flags::kSmallValues),
                  Entry("HISTOGRAM", flags::kHistogram),
                  Entry("UNITS", flags::kUnits),
                  Entry("LIMITED_VALUES", flags::kLimitedValues));
}

// Sizes and limits that Python computes with.
py::dict Sizes() {
  return py::dict(
      Entry("ALIGNMENT", limits::kAlignment),
      Entry("FILE_HEADER", limits::kFileHeader),
      Entry("RECORD_HEADER", limits::kRecordHeader),
      Entry("CHUNK", kChunkBytes), Entry("MAX_DIMENSIONS", limits::kDimensions),
      Entry("MAX_NAME", limits::kName), Entry("MAX_EVENT", limits::kEvent));
}

py::dict Schema() {
  using py::literals::operator""_a;
  return py::dict(
      "RecordType"_a = RecordTypes(),
      "WriterRole"_a = py::dict(Entry("TRAIN", WriterRole::kTrain),
                                Entry("ENGINE", WriterRole::kEngine),
                                Entry("PROFILER", WriterRole::kProfiler)),
      "TensorRole"_a = TensorRoles(),
      "PlacementKind"_a =
          py::dict(Entry("SHARD", PlacementKind::kShard),
                   Entry("REPLICATE", PlacementKind::kReplicate),
                   Entry("PARTIAL", PlacementKind::kPartial)),
      "EventKind"_a =
          py::dict(Entry("CONFIGURATION", EventKind::kConfiguration),
                   Entry("COLLECTIONS", EventKind::kCollections),
                   Entry("CHANGE", EventKind::kChange),
                   Entry("FINDING", EventKind::kFinding),
                   Entry("STATUS", EventKind::kStatus),
                   Entry("MESSAGE", EventKind::kMessage)),
      "StepFlag"_a = py::dict(Entry("SKIPPED", kStepSkipped),
                              Entry("INTERRUPTED", kStepInterrupted),
                              Entry("SAMPLED", kStepSampled)),
      "RowFlag"_a = py::dict(Entry("RESCALED", kRescaled)),
      "GapReason"_a = GapReasons(), "GapContent"_a = GapContents(),
      "EndReason"_a = py::dict(Entry("ROTATED", EndReason::kRotated),
                               Entry("CLOSED", EndReason::kClosed)),
      "ExtremeClass"_a = py::dict(Entry("FLOAT64", ExtremeClass::kFloat64),
                                  Entry("INT64", ExtremeClass::kInt64),
                                  Entry("UINT64", ExtremeClass::kUInt64)),
      "Codec"_a = py::dict(
          Entry("RAW", Codec::kRaw), Entry("ZSTD", Codec::kZstd),
          Entry("ZSTD_PLANES", Codec::kZstdPlanes),
          Entry("PLANES", Codec::kPlanes), Entry("SPARSE", Codec::kSparse)),
      "WriterState"_a = py::dict(Entry("RUNNING", WriterState::kRunning),
                                 Entry("CLOSED", WriterState::kClosed),
                                 Entry("DEGRADED", WriterState::kDegraded)),
      "CaptureFlag"_a = CaptureFlags(), "Size"_a = Sizes());
}

}  // namespace

void RegisterSchema(py::module_& module) { module.def("schema", &Schema); }

}  // namespace tdbg::bindings
