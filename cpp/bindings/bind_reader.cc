#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/locked_reader.h"
#include "bindings/python_files.h"
#include "bindings/register.h"
#include "bindings/tables.h"
#include "format/names.h"
#include "reader/commit_reader.h"
#include "reader/local_directory.h"
#include "reader/remote_files.h"
#include "reader/run_reader.h"

namespace tdbg::bindings {
namespace {

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
                                         bool use_caches, bool map_files,
                                         std::uint64_t max_tensor_bytes,
                                         std::uint64_t cached_bytes,
                                         unsigned threads,
                                         std::shared_ptr<PythonFiles> files) {
  ReaderOptions options;
  options.use_caches = use_caches;
  options.map_files = map_files;
  options.max_tensor_bytes = max_tensor_bytes;
  options.cached_bytes = cached_bytes;
  options.n_threads = threads;
  if (run.has_value()) {
    options.run = ParseUuid(*run);
  }
  return std::make_unique<LockedReader>(directory, options, std::move(files));
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

py::array ReadTensor(LockedReader& reader, std::size_t index) {
  std::uint32_t shard = 0;
  Result<TensorValue> read = reader.With([&](RunReader& inner) {
    if (index >= inner.n_tensors()) {
      return Result<TensorValue>(Status::NotFound("no such tensor"));
    }
    shard = inner.ShardOfTensor(index);
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

std::vector<Problem> VerifyWith(const LockedReader& reader,
                                const ReaderOptions& options) {
  auto opened = reader.OpenAnother(options);
  if (!opened.ok()) {
    return {{ProblemKind::kIo, "", 0, 0, opened.status().message()}};
  }
  RunReader& inner = *opened.value();
  // Damage in a shard that may still grow shows at the second look.
  inner.Poll();
  inner.FinishCheck();
  std::vector<Problem> problems = inner.problems();
  for (std::size_t i = 0; i < inner.n_tensors(); ++i) {
    const auto value = inner.ReadTensor(i);
    if (value.ok()) continue;
    const Status& status = value.status();
    problems.push_back({KindOf(status),
                        ShardName(inner.ShardOfTensor(i), ".tds"),
                        status.offset().value_or(0), 0, status.message()});
  }
  return problems;
}

// Problems that a reader finds which uses no index, those of all values, and
// where an index tells something else.
std::vector<Problem> Verify(LockedReader& reader) {
  ReaderOptions options = reader.options();
  options.use_index = false;
  options.check_index = true;
  if (reader.is_far()) {  // One reader at a time fetches.
    return reader.With([&](RunReader&) { return VerifyWith(reader, options); });
  }
  const ReleaseGil released;
  return VerifyWith(reader, options);
}

py::tuple ReadHistogram(LockedReader& reader, std::size_t index) {
  std::uint32_t shard = 0;
  Result<Histogram> read = reader.With([&](RunReader& inner) {
    const std::vector<HistogramEntry>& places = inner.histograms();
    if (index >= places.size()) {
      return Result<Histogram>(Status::NotFound("no such histogram"));
    }
    shard = places[index].shard_number;
    return inner.ReadHistogram(index);
  });
  if (shard == 0) {
    throw py::index_error("there is no histogram " + std::to_string(index));
  }
  Histogram histogram = ValueOrThrow(
      std::move(read), reader.directory() + "/" + ShardName(shard, ".tds"));
  return py::make_tuple(
      ArrayOf(std::move(histogram.keys), py::dtype::of<std::uint16_t>()),
      ArrayOf(std::move(histogram.counts), py::dtype::of<std::uint64_t>()));
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

// What the commit page in a writer's directory says, without its records.
py::object LookAtWriter(const std::string& path,
                        const std::shared_ptr<PythonFiles>& files) {
  CommitReader reader;
  if (files != nullptr) {
    const RemoteDirectory directory(files);
    reader.Poll(&directory);
  } else if (const auto directory = LocalDirectory::Open(path);
             directory.ok()) {
    reader.Poll(directory.value().get());
  }
  if (!reader.header() || !reader.slot()) return py::none();
  py::dict result;
  result["state"] = Name(reader.liveness());
  result["pid"] = reader.header()->pid;
  result["process_start"] = reader.header()->process_start;
  result["boot_id"] = BytesOf(reader.header()->boot_id);
  result["host"] = BytesOf(reader.header()->host);
  result["counter"] = reader.slot()->counter;
  result["heartbeat_ns"] = reader.slot()->heartbeat_ns;
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
  module.def("look_at_writer", &LookAtWriter, py::arg("directory"),
             py::arg("files") = nullptr);
  module.attr("STEP_DTYPE") = TableDType<StepEntry>();
  module.attr("TENSOR_DTYPE") = TableDType<TensorEntry>();
  module.attr("SCALAR_DTYPE") = TableDType<ScalarEntry>();
  module.attr("SPAN_DTYPE") = TableDType<PackedSpan>();
  module.attr("GAP_DTYPE") = TableDType<Gap>();
  module.attr("SEGMENT_DTYPE") = TableDType<Segment>();
  module.attr("HOLE_DTYPE") = TableDType<Hole>();
  using Self = LockedReader;
  constexpr auto pack = [](const auto& entry) { return Pack(entry); };
  py::class_<Self> type(module, "RunReader", PlainType());
  type.def(py::init(&OpenReader), py::arg("directory"),
           py::arg("run_uuid") = py::none(), py::arg("use_caches") = true,
           py::arg("map_files") = ReaderOptions().map_files,
           py::arg("max_tensor_bytes") = ReaderOptions().max_tensor_bytes,
           py::arg("cached_bytes") = ReaderOptions().cached_bytes,
           py::arg("threads") = 0, py::arg("files") = nullptr)
      .def("was_replaced",
           [](Self& self) {
             return self.With(
                 [](RunReader& inner) { return inner.WasReplaced(); });
           })
      .def("poll", &Self::Poll)
      .def(
          "steps",
          [](Self& self, std::uint64_t start,
             std::optional<std::uint64_t> stop) {
            return TableOf(self.With([&](RunReader& reader) {
              return reader.ReadSteps(start, stop.value_or(reader.n_steps()));
            }));
          },
          py::arg("start") = 0, py::arg("stop") = py::none())
      .def_property_readonly(
          "n_rows",
          [](Self& self) {
            return self.With([](RunReader& reader) { return reader.n_rows(); });
          })
      .def("rows", &Rows, py::arg("start") = 0, py::arg("stop") = py::none())
      .def("verify", &Verify)
      .def(
          "tensors",
          [](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::tensors, start, kCopy));
          },
          py::arg("start") = 0)
      .def("read_tensor", &ReadTensor, py::arg("index"))
      .def(
          "expect_tensors",
          [](Self& self, const std::vector<std::uint64_t>& indices) {
            if (!self.is_far()) return;
            self.With(
                [&](RunReader& reader) { reader.ExpectTensors(indices); });
          },
          py::arg("indices"))
      .def(
          "scalars",
          [](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::scalars, start, kCopy));
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
      .def(
          "histograms",
          [](Self& self, std::size_t start) {
            return TableOf(self.Tail(&RunReader::histograms, start, kCopy));
          },
          py::arg("start") = 0)
      .def("read_histogram", &ReadHistogram, py::arg("index"))
      .def(
          "problems",
          [](Self& self, std::size_t start) {
            return self.Tail(&RunReader::problems, start, kCopy);
          },
          py::arg("start") = 0)
      .def("holes",
           [](Self& self) {
             return TableOf(
                 self.With([](RunReader& reader) { return reader.holes(); }));
           })
      .def_property_readonly("end_is_unknown",
                             [](Self& self) {
                               return self.With([](RunReader& reader) {
                                 return reader.end_is_unknown();
                               });
                             })
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
  RegisterDefinitions(type);
  RegisterQueries(type);
  RegisterEnvelope(module, type);
}

}  // namespace tdbg::bindings
