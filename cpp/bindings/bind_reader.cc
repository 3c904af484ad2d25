#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "bindings/convert.h"
#include "bindings/register.h"
#include "bindings/tables.h"
#include "format/names.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {
namespace {

// A RunReader and the lock that lets threads share it.
class LockedReader {
 public:
  LockedReader(std::string directory, std::unique_ptr<RunReader> reader)
      : directory_(std::move(directory)), reader_(std::move(reader)) {}

  // What `function` returns of the reader, without the GIL.
  template <typename Function>
  auto With(Function function) {
    const ReleaseGil released;
    const MutexLock lock(mutex_);
    return function(*reader_);
  }

  // What `convert` makes of table[start:].
  template <typename Table, typename Convert>
  auto Tail(Table table, std::size_t start, Convert convert) {
    return With([&](RunReader& reader) {
      const auto& entries = (reader.*table)();
      std::vector<decltype(convert(entries.front()))> result;
      if (start < entries.size()) {
        result.reserve(entries.size() - start);
        std::transform(entries.begin() + static_cast<std::ptrdiff_t>(start),
                       entries.end(), std::back_inserter(result), convert);
      }
      return result;
    });
  }

  [[nodiscard]] const std::string& directory() const { return directory_; }

 private:
  const std::string directory_;  // Constant after construction.
  Mutex mutex_;
  const std::unique_ptr<RunReader> reader_ TDBG_GUARDED_BY(mutex_);
};

constexpr auto kCopy = [](const auto& entry) { return entry; };

py::bytes BytesOf(const Uuid& uuid) {
  return {reinterpret_cast<const char*>(uuid.data()), uuid.size()};  // NOLINT
}

const char* Name(Liveness liveness) {
  switch (liveness) {
    case Liveness::kUnknown:
      return "unknown";
    case Liveness::kRunning:
      return "running";
    case Liveness::kStalled:
      return "stalled";
    case Liveness::kClosed:
      return "closed";
    case Liveness::kDead:
      return "dead";
  }
  return "unknown";
}

std::unique_ptr<LockedReader> OpenReader(const std::string& directory,
                                         const std::optional<py::bytes>& run,
                                         bool use_caches) {
  ReaderOptions options;
  options.use_caches = use_caches;
  if (run.has_value()) {
    options.run = ParseUuid(*run);
  }
  Result<std::unique_ptr<RunReader>> reader = [&] {
    const ReleaseGil released;
    return RunReader::Open(directory, options);
  }();
  return std::make_unique<LockedReader>(
      directory, ValueOrThrow(std::move(reader), directory));
}

py::array Rows(LockedReader& reader, std::uint64_t start,
               std::optional<std::uint64_t> stop) {
  return TableOf(reader.With([&](RunReader& inner) {
    const std::uint64_t last =
        std::min(stop.value_or(std::numeric_limits<std::uint64_t>::max()),
                 inner.n_rows());
    return inner.Rows(std::min(start, last), last);
  }));
}

py::array Column(LockedReader& reader, const py::object& definitions) {
  std::vector<std::int64_t> numbers;
  AppendIntegers(definitions, &numbers);
  std::vector<std::uint32_t> ids;
  for (const std::int64_t number : numbers) {
    // Others name nothing, and so have no rows.
    if (number > 0 && number <= std::numeric_limits<std::uint32_t>::max()) {
      ids.push_back(static_cast<std::uint32_t>(number));
    }
  }
  return TableOf(
      reader.With([&](RunReader& inner) { return inner.Column(ids); }));
}

py::array ReadTensor(LockedReader& reader, std::size_t index) {
  std::uint32_t shard = 0;
  Result<TensorValue> read = reader.With([&](RunReader& inner) {
    if (index >= inner.tensors().size()) {
      return Result<TensorValue>(Status::NotFound("no such tensor"));
    }
    shard = inner.tensors()[index].shard_number;
    return inner.ReadTensor(index);
  });
  if (!read.ok() && read.status().code() == StatusCode::kNotFound &&
      shard == 0) {
    throw py::index_error("there is no tensor " + std::to_string(index));
  }
  auto value = std::make_unique<TensorValue>(ValueOrThrow(
      std::move(read), reader.directory() + "/" + ShardName(shard, ".tds")));
  const auto* const data = value->bytes.data();
  const auto size = static_cast<py::ssize_t>(value->bytes.size());
  const py::capsule owner(value.release(), [](void* pointer) {
    delete static_cast<TensorValue*>(pointer);
  });
  py::array array(py::dtype::of<std::uint8_t>(), {size}, {py::ssize_t{1}}, data,
                  owner);
  array.attr("setflags")(py::arg("write") = false);
  return array;
}

py::list Histograms(LockedReader& reader, std::size_t start) {
  py::list result;
  for (HistogramEntry& entry :
       reader.Tail(&RunReader::histograms, start, kCopy)) {
    Histogram& histogram = entry.histogram;
    result.append(py::make_tuple(
        entry.step, histogram.definition, histogram.call, histogram.micro_batch,
        ArrayOf(std::move(histogram.keys), py::dtype::of<std::uint16_t>()),
        ArrayOf(std::move(histogram.counts), py::dtype::of<std::uint64_t>())));
  }
  return result;
}

py::dict Identity(LockedReader& reader) {
  const FileHeader header =
      reader.With([](RunReader& inner) { return inner.identity(); });
  py::dict result;
  result["role"] = RoleName(header.role);
  result["rank"] = header.rank;
  result["world_size"] = header.world_size;
  result["generation"] = header.generation;
  result["run"] = BytesOf(header.run);
  result["attempt"] = BytesOf(header.attempt);
  result["attempt_ordinal"] = header.attempt_ordinal;
  result["created_ns"] = header.created_ns;
  return result;
}

py::object Commit(LockedReader& reader) {
  const std::optional<CommitSlot> slot =
      reader.With([](RunReader& inner) { return inner.commit(); });
  if (!slot.has_value()) {
    return py::none();
  }
  py::dict result;
  result["counter"] = slot->counter;
  result["visible"] = slot->visible;
  result["durable"] = slot->durable;
  result["heartbeat_ns"] = slot->heartbeat_ns;
  result["written"] = slot->written;
  result["lost"] = slot->lost;
  result["shard"] = slot->shard_number;
  result["state"] = static_cast<int>(slot->state);
  result["last_errno"] = slot->last_errno;
  return result;
}

}  // namespace

void RegisterReader(py::module_& module) {
  module.attr("STEP_DTYPE") = TableDType<PackedStep>();
  module.attr("TENSOR_DTYPE") = TableDType<TensorEntry>();
  module.attr("SCALAR_DTYPE") = TableDType<PackedScalar>();
  module.attr("SPAN_DTYPE") = TableDType<PackedSpan>();
  module.attr("GAP_DTYPE") = TableDType<Gap>();
  using Self = LockedReader;
  constexpr auto pack = [](const auto& entry) { return Pack(entry); };
  py::class_<Self>(module, "RunReader", PlainType())
      .def(py::init(&OpenReader), py::arg("directory"),
           py::arg("run_uuid") = py::none(), py::arg("use_caches") = true)
      .def("poll",
           [](Self& self) {
             return self.With([](RunReader& reader) { return reader.Poll(); });
           })
      .def(
          "definitions",
          [](Self& self, std::size_t start) {
            return self.Tail(&RunReader::definitions, start, kCopy);
          },
          py::arg("start") = 0)
      .def(
          "steps",
          [pack](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::steps, start, pack));
          },
          py::arg("start") = 0)
      .def_property_readonly(
          "n_rows",
          [](Self& self) {
            return self.With([](RunReader& reader) { return reader.n_rows(); });
          })
      .def("rows", &Rows, py::arg("start") = 0, py::arg("stop") = py::none())
      .def("column", &Column, py::arg("definitions"))
      .def(
          "tensors",
          [](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::tensors, start, kCopy));
          },
          py::arg("start") = 0)
      .def("read_tensor", &ReadTensor, py::arg("index"))
      .def(
          "scalars",
          [pack](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::scalars, start, pack));
          },
          py::arg("start") = 0)
      .def(
          "events",
          [](Self& self, std::size_t start) {
            return self.Tail(&RunReader::events, start, kCopy);
          },
          py::arg("start") = 0)
      .def(
          "spans",
          [pack](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::spans, start, pack));
          },
          py::arg("start") = 0)
      .def(
          "gaps",
          [](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::gaps, start, kCopy));
          },
          py::arg("start") = 0)
      .def("histograms", &Histograms, py::arg("start") = 0)
      .def(
          "problems",
          [](Self& self, std::size_t start) {
            return self.Tail(&RunReader::problems, start, kCopy);
          },
          py::arg("start") = 0)
      .def("identity", &Identity)
      .def("liveness",
           [](Self& self) {
             return Name(self.With(
                 [](RunReader& reader) { return reader.liveness(); }));
           })
      .def("commit", &Commit)
      .def_property_readonly("n_bytes", [](Self& self) {
        return self.With([](RunReader& reader) { return reader.n_bytes(); });
      });
}

}  // namespace tdbg::bindings
