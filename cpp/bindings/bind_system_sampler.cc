// SystemSampler, whose rows and events a Capture takes.

#include <pybind11/pybind11.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "bindings/convert.h"
#include "bindings/register.h"
#include "capture/capture.h"
#include "format/record.h"
#include "sampler/profile_rows.h"
#include "sampler/system_sampler.h"
#include "writer/writer.h"

namespace tdbg::bindings {
namespace {

constexpr std::uint16_t kInformation = 1;

// Writes to the run of a Capture, which outlives it.
class CaptureSink : public RowSink {
 public:
  explicit CaptureSink(Writer* writer) : writer_(writer) {}

  void Write(const std::string& table, const std::string& columns,
             std::span<const std::byte> rows) override {
    Definition definition;
    definition.role = TensorRole::kTable;
    definition.dtype = DType::kNumpy;
    definition.item_size = RowSize(columns);
    definition.name = "profile/" + table;
    definition.dtype_text = columns;
    (void)writer_->AddSamples(writer_->Define(std::move(definition)), rows);
  }
  void WriteMachine(const std::string& json) override {
    AddEvent(EventKind::kConfiguration, json);
  }
  void WriteChange(const std::string& json) override {
    AddEvent(EventKind::kChange, json);
  }

 private:
  void AddEvent(EventKind kind, const std::string& json) {
    (void)writer_->AddEvent(kNoStep, {.kind = kind,
                                      .severity = kInformation,
                                      .wall_ns = WallNs(),
                                      .json = json});
  }

  Writer* const writer_;
};

std::int64_t ParseInterval(double interval) {
  constexpr double kLeastInterval = 0.05;
  constexpr double kLongestInterval = 86'400.0;
  if (!(interval >= kLeastInterval && interval <= kLongestInterval)) {
    Throw(Status::InvalidArgument(
        "the interval of samples must be from 0.05 to 86400 s, not " +
        std::to_string(interval)));
  }
  return std::llround(interval * 1e9);
}

std::unique_ptr<SystemSampler> StartSampler(Capture& capture, double interval,
                                            const std::string& node_file,
                                            const std::string& nvml_library) {
  SamplerOptions options;
  options.interval_ns = ParseInterval(interval);
  options.node_file = node_file;
  options.nvml_library = nvml_library;
  Result<std::unique_ptr<SystemSampler>> sampler = [&] {
    const ReleaseGil released;
    return SystemSampler::Start(
        options, std::make_unique<CaptureSink>(&capture.writer()));
  }();
  return ValueOrThrow(std::move(sampler), node_file);
}

bool FollowProcess(SystemSampler& sampler, std::int32_t pid, std::int32_t rank,
                   std::uint32_t kind, std::int32_t worker) {
  const ReleaseGil released;
  return sampler.AddProcess(pid, rank, kind, worker);
}

void SetInterval(SystemSampler& sampler, double interval) {
  const std::int64_t interval_ns = ParseInterval(interval);
  const ReleaseGil released;
  (void)sampler.SetInterval(interval_ns);  // It is a valid one.
}

void CloseSampler(SystemSampler& sampler, double timeout) {
  const std::chrono::milliseconds bound = ParseSeconds(timeout);
  const ReleaseGil released;
  sampler.Close(bound);
}

py::dict SampledColumns() {
  py::dict columns;
  columns[SystemRow::kTable] = SystemRow::kColumns;
  columns[DiskRow::kTable] = DiskRow::kColumns;
  columns[NetworkRow::kTable] = NetworkRow::kColumns;
  columns[GpuRow::kTable] = GpuRow::kColumns;
  columns[ProcessRow::kTable] = ProcessRow::kColumns;
  columns[kCoreTable] = CoreColumns(4);
  return columns;
}

}  // namespace

void RegisterSystemSampler(py::module_& module) {
  // A sampler that is collected instead of closed closes itself.  It keeps the
  // GIL meanwhile, which its threads do not need.
  py::class_<SystemSampler>(module, "SystemSampler", PlainType())
      .def(py::init(&StartSampler), py::arg("capture"), py::arg("interval"),
           py::arg("node_file") = "", py::arg("nvml_library") = Gpus::kLibrary,
           py::keep_alive<1, 2>())
      .def("add_process", &FollowProcess, py::arg("pid"), py::arg("rank"),
           py::arg("kind"), py::arg("worker") = -1)
      .def("set_interval", &SetInterval, py::arg("interval"))
      .def("close", &CloseSampler, py::arg("timeout") = 1.0)
      .def_property_readonly("is_sampling", &SystemSampler::is_sampling)
      .def_property_readonly("cpu_ns", &SystemSampler::cpu_ns)
      .def_property_readonly("n_samples", &SystemSampler::n_samples);
  module.def("sampled_columns", &SampledColumns);
}

}  // namespace tdbg::bindings
