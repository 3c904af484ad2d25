#include <pybind11/stl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/clock.h"
#include "bindings/capture_args.h"
#include "bindings/convert.h"
#include "bindings/names.h"
#include "bindings/register.h"
#include "bindings/tables.h"
#include "capture/capture.h"
#include "format/record.h"
#include "python_capture/tensor_shard.h"
#include "reducers/implementation.h"
#include "writer/writer.h"

namespace tdbg::bindings {
namespace {

using python_capture::ParseTensorShard;
using python_capture::Placements;
using python_capture::TensorShard;

CallSite Site(std::int64_t call, std::int64_t micro_batch) {
  return {Saturate16(call), Saturate16(micro_batch)};
}

std::unique_ptr<Capture> OpenCapture(
    const std::string& run_directory, const py::bytes& run_uuid,
    const py::bytes& attempt_uuid, std::uint32_t attempt_ordinal,
    const std::string& role, std::uint32_t rank, std::uint32_t world_size,
    std::uint64_t queue_bytes, std::uint64_t shard_bytes,
    std::uint64_t min_free_bytes, const std::string& overflow,
    const std::string& codec, double flush_interval, bool precise,
    unsigned threads, std::optional<std::int64_t> keep_last,
    std::int64_t keep_every, std::uint64_t max_bytes, double shard_age,
    std::uint64_t spool_bytes) {
  // A forced implementation that cannot run is reported here, not in a step.
  static_cast<void>(ValueOrThrow(ActiveImplementation()));
  const WriterOptions options{.run_directory = run_directory,
                              .role = ParseRole(role),
                              .run = ParseUuid(run_uuid),
                              .attempt = ParseUuid(attempt_uuid),
                              .attempt_ordinal = attempt_ordinal,
                              .rank = rank,
                              .world_size = world_size,
                              .queue_bytes = queue_bytes,
                              .shard_bytes = shard_bytes,
                              .shard_age = ParseSeconds(shard_age),
                              .spool_bytes = spool_bytes,
                              .min_free_bytes = min_free_bytes,
                              .overflow = ParseOverflow(overflow),
                              .codec = ParseCodec(codec),
                              .flush_interval = ParseSeconds(flush_interval),
                              .retention = {.last_steps = keep_last,
                                            .every = keep_every,
                                            .max_bytes = max_bytes}};
  Result<std::unique_ptr<Capture>> capture = [&] {
    const ReleaseGil released;
    return Capture::Open(options, {.precise = precise, .n_threads = threads});
  }();
  return ValueOrThrow(std::move(capture), run_directory);
}

void CheckShape(const std::vector<std::int64_t>& shape,
                std::uint32_t item_size) {
  std::uint64_t n_bytes = item_size;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      Throw(Status::InvalidArgument("a shape has no negative extent, not " +
                                    std::to_string(extent)));
    }
    if (!CheckedMul(n_bytes, static_cast<std::uint64_t>(extent), &n_bytes)) {
      Throw(Status::InvalidArgument("the product of the shape overflows"));
    }
  }
  if (shape.size() > limits::kDimensions) {
    Throw(Status::InvalidArgument("a tensor has at most 64 dimensions, not " +
                                  std::to_string(shape.size())));
  }
}

std::uint32_t Define(Capture& capture, const py::str& name, std::uint16_t role,
                     const std::string& dtype, std::vector<std::int64_t> shape,
                     std::int64_t item_size, std::uint32_t flags,
                     const py::sequence& aliases,
                     std::vector<std::int64_t> global_shape,
                     std::vector<std::int64_t> global_offset,
                     const Placements& placements) {
  ElementType type = ParseElementType(dtype, item_size);
  CheckShape(shape, type.item_size);
  TensorShard shard = ValueOrThrow(ParseTensorShard(
      std::move(global_shape), std::move(global_offset), placements));
  if (!shard.global_shape.empty() &&
      shard.global_shape.size() != shape.size()) {
    Throw(Status::InvalidArgument(
        "a global shape or offset has as many dimensions as the shape"));
  }
  Definition definition{.role = static_cast<TensorRole>(role),
                        .dtype = type.dtype,
                        .item_size = type.item_size,
                        .flags = flags,
                        .name = Utf8(name),
                        .dtype_text = std::move(type.text),
                        .shape = std::move(shape),
                        .global_shape = std::move(shard.global_shape),
                        .global_offset = std::move(shard.global_offset),
                        .placements = std::move(shard.placements),
                        .aliases = {}};
  for (const py::handle alias : aliases) {
    definition.aliases.push_back(Utf8(alias));
  }
  const ReleaseGil released;
  return capture.writer().Define(std::move(definition));
}

void TakeStatistics(Capture& capture, std::int64_t step, const py::object& ids,
                    const py::object& pointers, const py::object& strides,
                    std::int64_t call, std::int64_t micro_batch, double scale) {
  const CaptureArgs parsed = ParseCaptureArgs(ids, pointers, strides);
  const ReleaseGil released;
  capture.Statistics(step, parsed.items, Site(call, micro_batch), scale);
}

bool TakeValues(Capture& capture, std::int64_t step, std::int64_t id,
                std::uint64_t pointer, const py::object& strides,
                std::int64_t call, std::int64_t micro_batch) {
  const CaptureArgs parsed = ParseCaptureArg(id, pointer, strides);
  const ReleaseGil released;
  return capture.Values(step, parsed.items.front(), Site(call, micro_batch));
}

bool CountHistogram(Capture& capture, std::int64_t step, std::int64_t id,
                    std::uint64_t pointer, const py::object& strides,
                    std::int64_t call, std::int64_t micro_batch, double scale) {
  const CaptureArgs parsed = ParseCaptureArg(id, pointer, strides);
  const ReleaseGil released;
  return capture.CountHistogram(step, parsed.items.front(),
                                Site(call, micro_batch), scale);
}

bool TakeUnitSummary(Capture& capture, std::int64_t step, std::int64_t unit_id,
                     std::int64_t id, std::uint64_t pointer,
                     const py::object& strides, std::int64_t call,
                     std::int64_t micro_batch, double low, double high,
                     bool rows_are_units, bool units_last) {
  const CaptureArgs parsed = ParseCaptureArg(id, pointer, strides);
  const ReleaseGil released;
  return capture.UnitSummary(step, ParseId(unit_id), parsed.items.front(),
                             Site(call, micro_batch),
                             {.low = low,
                              .high = high,
                              .rows_are_units = rows_are_units,
                              .units_last = units_last});
}

bool AddScalar(Capture& capture, std::int64_t step, std::int64_t id,
               double value, std::int64_t wall_ns) {
  const Scalar scalar{
      .definition = ParseId(id), .wall_ns = wall_ns, .value = value};
  const ReleaseGil released;
  return capture.writer().AddScalars(step, {&scalar, 1});
}

bool AddEvent(Capture& capture, std::int64_t step, std::uint16_t kind,
              std::uint16_t severity, const py::bytes& json) {
  const Event event{.kind = static_cast<EventKind>(kind),
                    .severity = severity,
                    .wall_ns = WallNs(),
                    .json = json};
  const ReleaseGil released;
  return capture.writer().AddEvent(step, event);
}

bool AddSpan(Capture& capture, std::int64_t step, std::int64_t id,
             std::int64_t start_ns, std::int64_t duration_ns,
             std::uint64_t thread, std::uint32_t depth, std::int64_t value) {
  const Span span{.definition = ParseId(id),
                  .start_ns = start_ns,
                  .duration_ns = duration_ns,
                  .thread = thread,
                  .depth = depth,
                  .value = value};
  const ReleaseGil released;
  return capture.writer().AddSpans(step, {&span, 1});
}

bool AddSpans(Capture& capture, std::int64_t step, const py::array& rows) {
  if (!rows.dtype().equal(TableDType<PackedSpan>()) || rows.ndim() != 1) {
    throw py::type_error("spans are an array of SPAN_DTYPE, not of " +
                         Utf8(py::str(rows.dtype())));
  }
  std::vector<Span> spans;
  spans.reserve(static_cast<std::size_t>(rows.size()));
  for (py::ssize_t i = 0; i < rows.size(); ++i) {
    PackedSpan row;
    std::memcpy(&row, rows.data(i), sizeof(row));
    spans.push_back(Unpack(row));
  }
  const ReleaseGil released;
  return capture.writer().AddSpans(step, spans);
}

bool AddSamples(Capture& capture, const py::str& name,
                const std::string& columns, const py::buffer& rows) {
  const std::uint32_t row_size = RowSize(columns);
  const py::buffer_info info = rows.request();
  const auto n_bytes = static_cast<std::size_t>(info.size * info.itemsize);
  if (row_size == 0) {
    throw py::value_error("'" + columns +
                          "' are no columns of a table; begin with time:<i8");
  }
  if (n_bytes % row_size != 0 || PyBuffer_IsContiguous(info.view(), 'C') == 0) {
    throw py::value_error(std::to_string(n_bytes) +
                          " bytes are no whole rows of " +
                          std::to_string(row_size));
  }
  Definition definition;
  definition.role = TensorRole::kTable;
  definition.dtype = DType::kNumpy;
  definition.item_size = row_size;
  definition.name = Utf8(name);
  definition.dtype_text = columns;
  const ReleaseGil released;
  Writer& writer = capture.writer();
  return writer.AddSamples(writer.Define(std::move(definition)),
                           {static_cast<const std::byte*>(info.ptr), n_bytes});
}

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

void AddRows(Capture& capture, std::int64_t step, const py::object& ids,
             const py::object& calls, const py::object& micro_batches,
             const py::object& flags, const Array<std::uint64_t>& words) {
  const std::vector<Row> rows =
      ParseRows(ids, calls, micro_batches, flags,
                {words.data(), static_cast<std::size_t>(words.size())});
  const ReleaseGil released;
  capture.AddRows(step, rows);
}

bool AddHistogram(Capture& capture, std::int64_t step, std::int64_t id,
                  const Array<std::uint16_t>& keys,
                  const Array<std::uint64_t>& counts, std::int64_t call,
                  std::int64_t micro_batch) {
  if (keys.size() != counts.size()) {
    throw py::value_error("keys and counts differ in length");
  }
  const Histogram histogram{
      .definition = ParseId(id),
      .call = Saturate16(call),
      .micro_batch = Saturate16(micro_batch),
      .keys = {keys.data(), keys.data() + keys.size()},
      .counts = {counts.data(), counts.data() + counts.size()}};
  const ReleaseGil released;
  return capture.writer().AddHistogram(step, histogram);
}

void Refuse(Capture& capture, std::int64_t step, std::uint64_t n_records,
            std::uint64_t n_bytes) {
  const ReleaseGil released;
  capture.writer().Refuse(step, n_records, n_bytes);
}

bool EndStep(Capture& capture, std::int64_t step, std::uint32_t mode,
             std::int64_t mode_step, std::uint32_t flags,
             std::uint32_t micro_batches, std::int64_t capture_ns,
             std::int64_t duration_ns, std::int64_t wall_ns) {
  const std::int64_t now_ns = WallNs();
  // Of a step that ended earlier, and elsewhere, only the wall time is known.
  const std::int64_t age_ns = wall_ns == 0 ? 0 : now_ns - wall_ns;
  const StepRecord record{.step = step,
                          .mode = mode,
                          .flags = flags,
                          .mode_step = mode_step,
                          .wall_ns = now_ns - age_ns,
                          .monotonic_ns = MonotonicNs() - age_ns,
                          .micro_batches = micro_batches,
                          .capture_ns = capture_ns,
                          .duration_ns = duration_ns};
  const ReleaseGil released;
  return capture.EndStep(record);
}

void Flush(Capture& capture, bool durable, double timeout) {
  const std::chrono::milliseconds bound = ParseSeconds(timeout);
  const Status status = [&] {
    const ReleaseGil released;
    return capture.Flush(durable, bound);
  }();
  ThrowIfError(status, capture.writer().directory());
}

bool Close(Capture& capture, double timeout) {
  const std::chrono::milliseconds bound = ParseSeconds(timeout);
  const ReleaseGil released;
  return capture.Close(bound).ok();
}

py::dict CountersOf(Capture& capture) {
  const Counters counters = [&] {
    const ReleaseGil released;
    return capture.writer().counters();
  }();
  py::dict result;
  result["offered"] = counters.offered;
  result["written"] = counters.written;
  result["dropped"] = counters.dropped;
  result["failed"] = counters.failed;
  result["offered_bytes"] = counters.offered_bytes;
  result["written_bytes"] = counters.written_bytes;
  result["dropped_bytes"] = counters.dropped_bytes;
  result["failed_bytes"] = counters.failed_bytes;
  result["file_bytes"] = counters.file_bytes;
  result["queued_bytes"] = counters.queued_bytes;
  result["shards"] = counters.shards;
  result["io_errors"] = counters.io_errors;
  result["last_errno"] = counters.last_errno;
  result["state"] = static_cast<int>(counters.state);
  result["silence_ms"] = counters.silence.count();
  result["steps_kept"] = counters.steps_kept;
  result["steps_left_out"] = counters.steps_left_out;
  return result;
}

py::dict LossesOf(Capture& capture) {
  const Counters counters = [&] {
    const ReleaseGil released;
    return capture.writer().counters();
  }();
  py::dict result;
  for (std::size_t i = 0; i < counters.losses.size(); ++i) {
    const Counters::Loss& loss = counters.losses[i];
    if (loss.records == 0) continue;
    result[py::str(NameOf(static_cast<GapReason>(i)))] =
        py::make_tuple(loss.records, loss.bytes, loss.what);
  }
  return result;
}

// By reason: (name, records, first step) of each tensor, and how many more.
py::dict LostTensorsOf(Capture& capture) {
  const std::vector<LostForReason> lost = [&] {
    const ReleaseGil released;
    return capture.writer().lost_tensors();
  }();
  py::dict result;
  for (const LostForReason& each : lost) {
    py::list named;
    for (const LostForReason::Tensor& tensor : each.named) {
      const Definition* known = capture.writer().definition(tensor.definition);
      if (known == nullptr) continue;
      named.append(
          py::make_tuple(known->name, tensor.records, tensor.first_step));
    }
    result[py::str(NameOf(each.reason))] = py::make_tuple(named, each.n_more);
  }
  return result;
}

}  // namespace

void RegisterCapture(py::module_& module) {
  const WriterOptions defaults;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  // A Capture that is collected instead of closed closes itself, bounded by the
  // writer's default timeout.  It keeps the GIL meanwhile: this may happen when
  // the interpreter is going down and would not give it back.
  py::class_<Capture>(module, "Capture", PlainType())
      .def(py::init(&OpenCapture), py::arg("run_directory"), py::kw_only(),
           py::arg("run_uuid"), py::arg("attempt_uuid"),
           py::arg("attempt_ordinal") = 0, py::arg("role") = "train",
           py::arg("rank") = 0, py::arg("world_size") = 1,
           py::arg("queue_bytes") = defaults.queue_bytes,
           py::arg("shard_bytes") = defaults.shard_bytes,
           py::arg("min_free_bytes") = defaults.min_free_bytes,
           py::arg("overflow") = "block", py::arg("codec") = "auto",
           py::arg("flush_interval") = 0.2, py::arg("precise") = false,
           py::arg("threads") = 1, py::arg("keep_last") = py::none(),
           py::arg("keep_every") = 0, py::arg("max_bytes") = 0,
           py::arg("shard_age") = 0.0,
           py::arg("spool_bytes") = defaults.spool_bytes)
      .def_property_readonly(
          "directory",
          [](Capture& capture) { return capture.writer().directory(); })
      .def_property_readonly(
          "generation",
          [](Capture& capture) { return capture.writer().generation(); })
      .def("define", &Define, py::arg("name"), py::arg("role"),
           py::arg("dtype") = "",
           py::arg("shape") = std::vector<std::int64_t>{}, py::kw_only(),
           py::arg("item_size") = 0, py::arg("flags") = 0,
           py::arg("aliases") = py::tuple(),
           py::arg("global_shape") = std::vector<std::int64_t>{},
           py::arg("global_offset") = std::vector<std::int64_t>{},
           py::arg("placements") = Placements{})
      .def("statistics", &TakeStatistics, py::arg("step"), py::arg("ids"),
           py::arg("pointers"), py::arg("strides") = py::none(), py::kw_only(),
           py::arg("call") = 0, py::arg("micro_batch") = 0,
           py::arg("scale") = 1.0)
      .def("values", &TakeValues, py::arg("step"), py::arg("id"),
           py::arg("pointer"), py::arg("strides") = py::none(), py::kw_only(),
           py::arg("call") = 0, py::arg("micro_batch") = 0)
      .def("count_histogram", &CountHistogram, py::arg("step"), py::arg("id"),
           py::arg("pointer"), py::arg("strides") = py::none(), py::kw_only(),
           py::arg("call") = 0, py::arg("micro_batch") = 0,
           py::arg("scale") = 1.0)
      .def("unit_summary", &TakeUnitSummary, py::arg("step"),
           py::arg("unit_id"), py::arg("id"), py::arg("pointer"),
           py::arg("strides") = py::none(), py::kw_only(), py::arg("call") = 0,
           py::arg("micro_batch") = 0, py::arg("low") = -kInfinity,
           py::arg("high") = kInfinity, py::arg("rows_are_units") = false,
           py::arg("units_last") = false)
      .def("scalar", &AddScalar, py::arg("step"), py::arg("id"),
           py::arg("value"), py::arg("wall_ns"))
      .def("event", &AddEvent, py::arg("step"), py::arg("kind"),
           py::arg("severity"), py::arg("json"))
      .def("span", &AddSpan, py::arg("step"), py::arg("id"),
           py::arg("start_ns"), py::arg("duration_ns"), py::kw_only(),
           py::arg("thread") = 0, py::arg("depth") = 0, py::arg("value") = 0)
      .def("spans", &AddSpans, py::arg("step"), py::arg("rows"))
      .def("samples", &AddSamples, py::arg("name"), py::arg("columns"),
           py::arg("rows"))
      .def("histogram", &AddHistogram, py::arg("step"), py::arg("id"),
           py::arg("keys"), py::arg("counts"), py::kw_only(),
           py::arg("call") = 0, py::arg("micro_batch") = 0)
      .def("add_rows", &AddRows, py::arg("step"), py::arg("ids"),
           py::arg("calls"), py::arg("micro_batches"), py::arg("flags"),
           py::arg("words"))
      .def("refuse", &Refuse, py::arg("step"), py::arg("n_records") = 1,
           py::arg("n_bytes") = 0)
      .def("end_step", &EndStep, py::arg("step"), py::arg("mode"),
           py::arg("mode_step"), py::kw_only(), py::arg("flags") = 0,
           py::arg("micro_batches") = 1, py::arg("capture_ns") = 0,
           py::arg("duration_ns") = 0, py::arg("wall_ns") = 0)
      .def("flush", &Flush, py::arg("durable") = false,
           py::arg("timeout") = 30.0)
      .def("close", &Close, py::arg("timeout") = 5.0)
      .def_property_readonly(
          "n_lost", [](Capture& capture) { return capture.writer().n_lost(); })
      .def("losses", &LossesOf)
      .def("lost_tensors", &LostTensorsOf)
      .def("counters", &CountersOf);
}

}  // namespace tdbg::bindings
