// Retention, applied to runs that exist.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "bindings/convert.h"
#include "bindings/register.h"
#include "writer/retention.h"

namespace py = pybind11;

namespace tdbg::bindings {
namespace {

py::dict DictOf(const Removal& removal) {
  py::dict result;
  result["directory"] = removal.directory;
  result["shard"] = removal.number;
  result["bytes"] = removal.n_bytes;
  result["values_only"] = !removal.is_all;
  result["first_step"] = removal.gap.first_step;
  result["last_step"] = removal.gap.last_step;
  result["records"] = removal.gap.records;
  return result;
}

py::tuple ApplyRetention(std::vector<std::string> directories,
                         std::int64_t newest_step,
                         std::optional<std::int64_t> keep_last,
                         std::int64_t keep_every, std::uint64_t max_bytes,
                         bool is_dry, bool is_live) {
  const RetentionOptions options{
      .last_steps = keep_last, .every = keep_every, .max_bytes = max_bytes};
  // Whoever reads a run that has ended looks again when it is asked.
  const auto grace = is_live ? Retention::kGrace : std::chrono::seconds::zero();
  RetentionReport report;
  {
    const ReleaseGil released;
    Retention retention(FileSystem::Posix(), options, [] {}, grace);
    report = retention.Apply({.directories = std::move(directories),
                              .newest_step = newest_step,
                              .is_dry = is_dry});
  }
  if (!report.status.ok()) Throw(report.status);
  py::list removals;
  for (const Removal& removal : report.removals) {
    removals.append(DictOf(removal));
  }
  return py::make_tuple(removals, report.n_bytes);
}

}  // namespace

void RegisterRetention(py::module_& module) {
  module.def("apply_retention", &ApplyRetention, py::arg("directories"),
             py::arg("newest_step"), py::kw_only(), py::arg("keep_last"),
             py::arg("keep_every"), py::arg("max_bytes"), py::arg("is_dry"),
             py::arg("is_live"));
}

}  // namespace tdbg::bindings
